// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_WORKER_WORKER_SERVICE_H_
#define MILLRACE_DISTRIBUTED_WORKER_WORKER_SERVICE_H_

// Worker service: the handlers of a Worker's methods on an RpcServer. The other side is a
// GrpcTransport (distributed/transport/grpc_transport.h), or a program with TensorFlow's stubs.
//
// Errors of a step travel in the body of the answer, because gRPC's trailers hold few bytes.
//
// Thread-safety: all functions, from any thread. Lifetime: the worker outlives the handlers.
// Failure: a request that is none of the method's is InvalidArgument; whatever a handler throws
// ends its call (net/rpc_server.h).

#include <map>
#include <memory>
#include <string>

#include "distributed/transport/peer_counts.h"
#include "distributed/transport/transport.h"
#include "distributed/worker/worker.h"
#include "net/rpc_server.h"

namespace millrace {

std::map<std::string, RpcServer::Handler> WorkerHandlers(Worker* worker);

// Where a worker puts what `call`, a Pull, asks for: it travels as the call's answer, in a message
// at each Flush or as soon as the one before has been written. Whatever throws, the call ends.
// Methods from any thread. `counter` (may be null) counts the messages. With `trace` the messages
// say when their tensors were ready, and when they left.
std::shared_ptr<PullSink> MakePullStream(std::shared_ptr<ServerCall> call,
                                         std::shared_ptr<PeerCounter> counter = nullptr,
                                         bool trace = false);

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_WORKER_WORKER_SERVICE_H_
