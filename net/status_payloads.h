// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_NET_STATUS_PAYLOADS_H_
#define MILLRACE_NET_STATUS_PAYLOADS_H_

// Status payloads on the wire: what a Status says besides its code and message, as far as it
// travels (core/status_kind.h).
//
// gRPC carries them in its binary details. Messages that tell of errors have no place for them, so
// they are a field of their own there, with a number that TensorFlow will never use; others skip
// it.
//
// Thread-safety: functions of their arguments. Failure: none; payloads of more than 3 KiB stay
// behind, and what a peer sends is left out where it is no payload that travels.

#include <string>

#include "absl/strings/string_view.h"
#include "core/status.h"
#include "google/protobuf/message.h"

namespace millrace {

// The payloads of a status that travel; "" when there are none, or too much of them.
std::string PayloadBytes(const Status& status);
// The same next to the fields of a message that has the status's code and text.
void AddPayloads(const Status& status, google::protobuf::Message* message);
// The status with the payloads that came with it; what is not understood is left out.
Status WithPayloads(Status status, absl::string_view bytes);
Status WithPayloadsOf(Status status, const google::protobuf::Message& message);

}  // namespace millrace

#endif  // MILLRACE_NET_STATUS_PAYLOADS_H_
