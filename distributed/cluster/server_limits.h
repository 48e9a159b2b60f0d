// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_CLUSTER_SERVER_LIMITS_H_
#define MILLRACE_DISTRIBUTED_CLUSTER_SERVER_LIMITS_H_

// ServerLimits: how much callers may take of a server of a cluster: the limits of its calls, and
// those of its sessions.
//
// What is beyond a limit is refused as net/call_limits.h says. A graph that a member runs may take
// memory without a limit: its ops do.
//
// Plain data. Sizes in bytes.

#include <cstdint>

#include "net/call_limits.h"

namespace millrace {

struct ServerLimits : CallLimits {
  // Sessions of clients at the master, and of masters at the worker: each so many.
  int64_t max_sessions = 10'000;
  // In one session of a master: signatures that a client refers to by number. Each keeps its
  // partitions registered.
  int64_t max_callables = 10'000;
  // In one session of a worker. Bytes: of the registered messages.
  int64_t max_graphs = 10'000;
  int64_t max_graph_bytes = int64_t{8} << 30;
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_CLUSTER_SERVER_LIMITS_H_
