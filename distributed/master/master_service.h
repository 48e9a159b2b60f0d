// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_MASTER_MASTER_SERVICE_H_
#define MILLRACE_DISTRIBUTED_MASTER_MASTER_SERVICE_H_

// Master service: the handlers of a Master's methods on an RpcServer. The other side is a
// RemoteMaster (grpc_master.h), or a program with TensorFlow's stubs.
//
// Thread-safety: all functions, from any thread. Lifetime: master and pools outlive the handlers.
// Failure: a request that is none of the method's is InvalidArgument; whatever a handler throws
// ends its call (net/rpc_server.h).

#include <functional>
#include <map>
#include <string>

#include "absl/types/span.h"
#include "core/io_pool.h"
#include "core/status.h"
#include "distributed/master/master.h"
#include "net/rpc_server.h"

namespace millrace {

// Threads for calls of remote clients that block. Those that wait for tasks keep none that compiles
// or closes.
struct MasterPools {
  IoPool waits{64};   // for tasks that are not there yet
  IoPool calls{64};   // for tasks that are
  IoPool closes{16};  // for the ends of sessions
};

// Whether a stranger may clear these containers of the server's own worker, and the master's
// sessions (Worker::CheckMayClear).
using CheckResetFn =
    std::function<Status(absl::Span<const std::string> containers, int master_sessions)>;

std::map<std::string, RpcServer::Handler> MasterHandlers(Master* master, MasterPools* pools,
                                                         CheckResetFn check_reset);

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_MASTER_MASTER_SERVICE_H_
