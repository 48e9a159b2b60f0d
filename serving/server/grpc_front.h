// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_SERVER_GRPC_FRONT_H_
#define MILLRACE_SERVING_SERVER_GRPC_FRONT_H_

// The gRPC front of a model server: TensorFlow Serving's PredictionService and ModelService on
// bytes, without generated services.
//
// The thread that read a request runs it. A client's deadline and its leaving end the request.
// Texts of errors are cut to 1,024 bytes with "...TRUNCATED" behind them, as there, but not within
// a character.
//
// Thread-safety: of the handlers as RpcServer asks. Lifetime: the handlers share what they need.
// Failure: none.

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "core/status.h"
#include "net/rpc_server.h"
#include "serving/model_requests.h"

namespace millrace {

std::map<std::string, RpcServer::Handler> GrpcFront(std::shared_ptr<const ModelRequests> requests);
// SessionService, for callers that may run each op of a graph (serving/session_run.h).
std::map<std::string, RpcServer::Handler> SessionFront(
    std::shared_ptr<const ModelRequests> requests, int64_t max_splat_bytes);

// As clients get it.
Status CutForClients(const Status& status);

}  // namespace millrace

#endif  // MILLRACE_SERVING_SERVER_GRPC_FRONT_H_
