// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_TRANSPORT_GRPC_TRANSPORT_H_
#define MILLRACE_DISTRIBUTED_TRANSPORT_GRPC_TRANSPORT_H_

// gRPC transport: Transport over an RpcChannel. Its other side is
// distributed/worker/worker_service.h.
//
// Services and methods have TensorFlow's full names: those of its .proto files, by which we call,
// and those that its own stubs call by, which lack the "grpc." of the package and are served next
// to them (AddNamesOfStubs). Our own methods are those of millrace.Transport (transport.proto).
//
// Thread-safety: all functions, from any thread.
// Lifetime: the worker outlives the server that the handlers are given to.

#include <map>
#include <memory>
#include <string>

#include "distributed/transport/transport.h"
#include "net/rpc_channel.h"
#include "net/rpc_server.h"

namespace millrace {

inline constexpr char kWorkerService[] = "/tensorflow.grpc.WorkerService/";
inline constexpr char kMasterService[] = "/tensorflow.grpc.MasterService/";
inline constexpr char kTransportService[] = "/millrace.Transport/";
inline constexpr char kOwnMasterService[] = "/millrace.Master/";

std::shared_ptr<Transport> MakeGrpcTransport(const std::string& task,
                                             std::shared_ptr<RpcChannel> channel);

// Each method of TensorFlow's services once more, as "/tensorflow.<Service>/<Method>".
void AddNamesOfStubs(decltype(RpcServer::Options::handlers)* handlers);

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_TRANSPORT_GRPC_TRANSPORT_H_
