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

#include <memory>
#include <string>

#include "distributed/master/master_interface.h"

namespace millrace {

// While registered, sessions of this process on `address` ("host:port") use `master` directly.
void RegisterLocalMaster(const std::string& address, std::shared_ptr<MasterInterface> master);
void UnregisterLocalMaster(const std::string& address);

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_GRPC_SESSION_H_
