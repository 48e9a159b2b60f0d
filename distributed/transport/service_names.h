// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_TRANSPORT_SERVICE_NAMES_H_
#define MILLRACE_DISTRIBUTED_TRANSPORT_SERVICE_NAMES_H_

// The services that a task has, as they are called on the wire.
//
// Our masters control workers by a service of our own (proto/worker_control.proto). Foreign masters
// and clients call TensorFlow's. TensorFlow's services and methods have its full names: those of
// its .proto files, and those that its own stubs call by, which lack the "grpc." of the package and
// are served next to them (AddNamesOfStubs).
//
// Thread-safety: functions of their arguments. Failure: none.

#include "net/rpc_server.h"

namespace millrace {

inline constexpr char kWorkerService[] = "/tensorflow.grpc.WorkerService/";
inline constexpr char kMasterService[] = "/tensorflow.grpc.MasterService/";
inline constexpr char kControlService[] = "/millrace.WorkerControl/";
inline constexpr char kOwnMasterService[] = "/millrace.Master/";

// Each method of TensorFlow's services once more, as "/tensorflow.<Service>/<Method>".
void AddNamesOfStubs(decltype(RpcServer::Options::handlers)* handlers);

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_TRANSPORT_SERVICE_NAMES_H_
