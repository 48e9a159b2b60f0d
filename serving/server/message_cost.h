// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_SERVER_MESSAGE_COST_H_
#define MILLRACE_SERVING_SERVER_MESSAGE_COST_H_

// CheckMessageCost: what a message will take when it is read, from its bytes, before any of it is.
// Two bytes may be an empty text or message of forty and more.
//
//   MR_RETURN_IF_ERROR(CheckMessageCost(*PredictRequest::descriptor(), body, 4 * most));
//
// An estimate: each number its size, each text a fixed one and what is in it, each message one by
// its fields; within a factor of two of what protobuf takes. Bytes that are no such message may
// pass: protobuf refuses them.
//
// Thread-safety: functions. They take no memory but for a copy of what gRPC received in pieces.
// Failure: InvalidArgument for more than `most` bytes, and for groups, which no message here has.

#include <grpcpp/support/byte_buffer.h>

#include <cstdint>

#include "absl/strings/string_view.h"
#include "core/status.h"
#include "google/protobuf/descriptor.h"

namespace millrace {

Status CheckMessageCost(const google::protobuf::Descriptor& type, absl::string_view bytes,
                        int64_t most);
// The same of what gRPC received, which may take 64 MiB and eight times its bytes. A message of
// less than 1 MiB is not looked at: it cannot take more.
Status CheckReceivedCost(const google::protobuf::Descriptor& type, const grpc::ByteBuffer& bytes);

}  // namespace millrace

#endif  // MILLRACE_SERVING_SERVER_MESSAGE_COST_H_
