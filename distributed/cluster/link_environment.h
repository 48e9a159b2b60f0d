// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_CLUSTER_LINK_ENVIRONMENT_H_
#define MILLRACE_DISTRIBUTED_CLUSTER_LINK_ENVIRONMENT_H_

// What the environment of a process says of the links on which its steps travel.
//
// Thread-safety: functions of their arguments and the environment.
// Failure: InvalidArgument for a MILLRACE_WIRE that is no name, a MILLRACE_UNIX_LINKS that is
// neither 0 nor 1, or a MILLRACE_LINK_SHARED_BYTES that is no number from 0 on.

#include <cstdint>

#include "core/status.h"

namespace millrace {

// Whether tasks of one host may have links within it, over a Unix socket: unless the environment
// variable MILLRACE_WIRE is "grpc" ("links" and "unix" leave it on), or MILLRACE_UNIX_LINKS is "0".
// Its "1" and an empty one leave it to the other variable.
StatusOr<bool> UnixLinksOfEnvironment();

// ServerLimits::max_link_shared_bytes of this process: that of the environment variable
// MILLRACE_LINK_SHARED_BYTES; `otherwise` when it is not set, or empty.
StatusOr<int64_t> LinkSharedBytesOfEnvironment(int64_t otherwise);

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_CLUSTER_LINK_ENVIRONMENT_H_
