// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_GRPC_SESSION_H_
#define MILLRACE_DISTRIBUTED_GRPC_SESSION_H_

// Sessions on "grpc://host:port": steps run on the cluster that the server there belongs to.
//
// When the server lives in this process its master is called directly: no network hop, and the
// thread that calls Run runs this task's part of the step. Otherwise messages go there over gRPC,
// with fed and fetched tensors as slices of their own.
//
// Linking this library registers the scheme. Thread-safety and failure: runtime/session.h.

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/types/span.h"
#include "core/io_pool.h"
#include "core/status.h"
#include "distributed/master/master.h"
#include "distributed/master/master_interface.h"
#include "net/rpc.h"

namespace millrace {

// While registered, sessions of this process on `address` ("host:port") use `master` directly.
void RegisterLocalMaster(const std::string& address, std::shared_ptr<MasterInterface> master);
void UnregisterLocalMaster(const std::string& address);

// The master at an address, over gRPC.
std::shared_ptr<MasterInterface> MakeGrpcMaster(std::shared_ptr<RpcChannel> channel);

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

// What a server needs to serve the calls of MakeGrpcMaster. Both outlive the handlers.
std::map<std::string, RpcServer::Handler> MasterHandlers(Master* master, MasterPools* pools,
                                                         CheckResetFn check_reset);

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_GRPC_SESSION_H_
