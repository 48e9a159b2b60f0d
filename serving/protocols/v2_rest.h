// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_PROTOCOLS_V2_REST_H_
#define MILLRACE_SERVING_PROTOCOLS_V2_REST_H_

// The Open Inference Protocol over REST, as KServe's and Triton's clients and static probes speak
// it:
//
//   GET  /v2                                     the server
//   GET  /v2/health/live, /v2/health/ready       200, or 503 while it is not so
//   GET  /v2/models/NAME[/versions/V]            the model: inputs, outputs, versions
//   GET  /v2/models/NAME[/versions/V]/ready      200; 503 while it is not so; 404
//   POST /v2/models/NAME[/versions/V]/infer      tensors in, tensors out (v2_json.h)
//
// A body with the header Inference-Header-Content-Length has binary data behind that many bytes of
// JSON; so has a reply.
//
// The thread that read a request runs it, unless it takes long (serving/rest/rest_lanes.h).
//
// Thread-safety: of the handler as HttpServer asks. Lifetime: it shares what it needs. Failure:
// {"error": "..."} with the status of HttpStatus (serving/rest/rest_path.h); 404 for other paths.

#include <memory>

#include "absl/time/time.h"
#include "net/http/http_server.h"
#include "serving/model_requests.h"
#include "serving/protocols/readiness.h"
#include "serving/rest/json_scan.h"
#include "serving/rest/rest_lanes.h"

namespace millrace {

struct V2RestOptions {
  // A request that has not begun to run by then ends.
  absl::Duration timeout = absl::Seconds(30);
  bool cors = false;
  JsonLimits limits = {};
  // Where inference runs, which it outlives; null: on the thread that read the request.
  RestLanes* lanes = nullptr;
};

// `others` answers what is not below /v2.
HttpHandler V2RestFront(std::shared_ptr<const ModelRequests> requests,
                        std::shared_ptr<const Readiness> readiness, V2RestOptions options,
                        HttpHandler others);

}  // namespace millrace

#endif  // MILLRACE_SERVING_PROTOCOLS_V2_REST_H_
