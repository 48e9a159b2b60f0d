// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_PROTOCOLS_V2_GRPC_H_
#define MILLRACE_SERVING_PROTOCOLS_V2_GRPC_H_

// The Open Inference Protocol over gRPC: inference.GRPCInferenceService, whose methods KServe's and
// Triton's clients call.
//
// ServerReady follows the server's readiness. ModelReady of a model that nobody knows is false, as
// Triton says. Methods that Triton alone has (streams, statistics, its repository, shared memory)
// are not here, which gRPC's clients see as UNIMPLEMENTED.
//
// Thread-safety: of the handlers as RpcServer asks. Lifetime: the handlers share what they need.
// Failure: codes of ModelRequests and v2_messages.h.

#include <map>
#include <memory>
#include <string>

#include "net/rpc_server.h"
#include "serving/model_requests.h"
#include "serving/protocols/readiness.h"

namespace millrace {

std::map<std::string, RpcServer::Handler> InferenceHandlers(
    std::shared_ptr<const ModelRequests> requests, std::shared_ptr<const Readiness> readiness);

}  // namespace millrace

#endif  // MILLRACE_SERVING_PROTOCOLS_V2_GRPC_H_
