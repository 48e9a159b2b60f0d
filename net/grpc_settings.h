// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_NET_GRPC_SETTINGS_H_
#define MILLRACE_NET_GRPC_SETTINGS_H_

// gRPC settings: what both ends of a connection set in the same way.
//
// Thread-safety: any thread. Failure: none.

#include "absl/time/time.h"

namespace millrace {

// Between two keepalive pings, and how long the answer may take.
inline constexpr absl::Duration kKeepalive = absl::Seconds(20);
inline constexpr absl::Duration kKeepaliveTimeout = absl::Seconds(10);

// gRPC holds messages in small pieces of malloc and frees them soon after: malloc is to keep what
// is freed. For the whole process, the first time; limits that the user sets are left alone.
void KeepFreedMemory();

}  // namespace millrace

#endif  // MILLRACE_NET_GRPC_SETTINGS_H_
