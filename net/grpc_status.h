// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_NET_GRPC_STATUS_H_
#define MILLRACE_NET_GRPC_STATUS_H_

// gRPC status: a Status as it travels in the trailers of a call.
//
// Codes have the same numbers in both. A text is cut to kMaxStatusMessage, because gRPC bounds the
// trailers of a call; payloads travel in gRPC's binary details (status_payloads.h).
//
// Thread-safety: functions of their arguments. Failure: FromGrpcStatus throws for want of memory.

#include <grpcpp/support/status.h>

#include <cstddef>
#include <string>

#include "core/status.h"

namespace millrace {

// Of a text, in bytes as gRPC writes it: what is not printable ASCII takes three.
inline constexpr size_t kMaxStatusMessage = 3072;

// What the caller of a call that has ended hears. A connection that broke is Unavailable, and so is
// a call that the peer cancelled without a reason; Unavailable without payloads names `address`,
// which was called, and is marked where the call had no connection (not_sent.h). `cancelled_here`:
// this side has cancelled the call.
Status FromGrpcStatus(const std::string& address, const grpc::Status& status, bool cancelled_here);

// Without its text when there is no memory for it: the call must end.
grpc::Status ToGrpcStatus(const Status& status);

}  // namespace millrace

#endif  // MILLRACE_NET_GRPC_STATUS_H_
