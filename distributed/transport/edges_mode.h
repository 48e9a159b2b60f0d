// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_TRANSPORT_EDGES_MODE_H_
#define MILLRACE_DISTRIBUTED_TRANSPORT_EDGES_MODE_H_

// How the tensors of a step travel between its tasks: each receiver asks for them (Pull), or each
// sender pushes them over a link (distributed/link). The master decides it for each step and tells
// all parts, so that sender and receiver always agree: pushed only when every task has said, as it
// registered its part, that it can, over links of the master's version. So a job whose tasks are of
// two releases, as while they are replaced one by one, goes on with calls.
//
// TensorFlow's messages have no place for that, so these are fields of their own in them, which
// others skip: masters and workers of TensorFlow go on with calls.
//
// Thread-safety: functions of their arguments. Failure: a message without the field says no.

#include "google/protobuf/message.h"

namespace millrace {

// Of a RunGraphRequest.
void SetPushed(google::protobuf::Message* request);
bool IsPushed(const google::protobuf::Message& request);

// Of a RegisterGraphResponse: over links of kLinkVersion.
void SetCanPush(google::protobuf::Message* response);
bool CanPush(const google::protobuf::Message& response);

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_TRANSPORT_EDGES_MODE_H_
