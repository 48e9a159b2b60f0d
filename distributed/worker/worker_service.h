// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_WORKER_WORKER_SERVICE_H_
#define MILLRACE_DISTRIBUTED_WORKER_WORKER_SERVICE_H_

// Worker service: the handlers of a Worker's methods on an RpcServer, which decode a message, call
// the worker and encode its answer. Our own service is for our masters (grpc_control.h),
// TensorFlow's for programs with its stubs: a foreign master, whose steps begin by RunGraph, or a
// foreign worker.
//
// Errors of a step travel in the body of the answer, because gRPC's trailers hold few bytes.
//
// Thread-safety: all functions, from any thread. Lifetime: the worker outlives the handlers.
// Failure: a request that is none of the method's is InvalidArgument; whatever a handler throws
// ends its call (net/rpc_server.h).

#include <map>
#include <memory>
#include <string>

#include "distributed/worker/worker.h"
#include "net/rpc_server.h"

namespace millrace {

std::map<std::string, RpcServer::Handler> WorkerHandlers(Worker* worker);

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_WORKER_WORKER_SERVICE_H_
