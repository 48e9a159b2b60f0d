// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_SERVER_REST_PROTOBUF_H_
#define MILLRACE_SERVING_SERVER_REST_PROTOBUF_H_

// Messages over REST: a POST to :predict, :classify or :regress with
//
//   Content-Type: application/x-protobuf        (or application/protobuf)
//
// has a PredictRequest, ClassificationRequest or RegressionRequest as its body, as gRPC carries it,
// and is answered with the response's message under the same type, or the other one of the two
// when only that stands in Accept. Tensors are neither written nor read as text.
//
// The path says which model is asked. What the message's model_spec says too must be the same;
// a version or label that only the message has counts. Signature and output filter are the
// message's.
//
// A body is bounded as one of JSON, what its message takes in memory by four times as much, what
// its tensors do not list by ServedModelOptions; messages within messages by protobuf's own bound,
// 100.
//
// Thread-safety: of the handler as HttpServer asks. Lifetime: it shares what it needs, `next` too.
// Failure: JSON {"error": "..."} with the status of HttpStatus (rest_path.h); of the models codes
// and texts of gRPC.

#include <memory>

#include "net/http/http_server.h"
#include "serving/model_requests.h"
#include "serving/server/rest_front.h"

namespace millrace {

// `next` answers everything else. Of the options, `pages` is not looked at.
HttpHandler ProtobufRestFront(std::shared_ptr<const ModelRequests> requests,
                              const RestFrontOptions& options, HttpHandler next);

}  // namespace millrace

#endif  // MILLRACE_SERVING_SERVER_REST_PROTOBUF_H_
