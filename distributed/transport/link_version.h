// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_TRANSPORT_LINK_VERSION_H_
#define MILLRACE_DISTRIBUTED_TRANSPORT_LINK_VERSION_H_

// The version of a task's links (distributed/link), which it says as it registers a part of a
// graph. A master whose own is another one refuses the task then, by name, before a step begins.
//
// TensorFlow's message has no place for it, so it is a field of its own, which others skip: a task
// of TensorFlow has no links.
//
// Thread-safety: functions of their arguments. Failure: a message without the field has no links.

#include <cstdint>

#include "google/protobuf/message.h"

namespace millrace {

// Of a RegisterGraphResponse: the task has links of kLinkVersion.
void SetLinkVersion(google::protobuf::Message* response);
// 0: it has none.
uint64_t LinkVersionOf(const google::protobuf::Message& response);

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_TRANSPORT_LINK_VERSION_H_
