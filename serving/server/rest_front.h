// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_SERVER_REST_FRONT_H_
#define MILLRACE_SERVING_SERVER_REST_FRONT_H_

// The REST front of a model server: HTTP requests to ModelRequests, replies as JSON, byte for byte
// those of TensorFlow Serving (serving/rest/README.md tells where not).
//
// The thread that read a request runs it, unless it takes long (rest_lanes.h).
//
// Thread-safety: of the handler as HttpServer asks. Lifetime: it shares what it needs. Failure:
// {"error": "..."} with the status of HttpStatus (rest_path.h).

#include <functional>
#include <memory>

#include "absl/time/time.h"
#include "net/http/http_server.h"
#include "serving/model_requests.h"
#include "serving/rest/json_scan.h"
#include "serving/rest/rest_lanes.h"

namespace millrace {

struct RestFrontOptions {
  // A request that has not begun to run by then ends.
  absl::Duration timeout = absl::Seconds(30);
  bool cors = false;
  JsonLimits limits = {};
  // Where requests for steps run, which it outlives; null: on the thread that read them.
  RestLanes* lanes = nullptr;
  // What is asked for outside of /v1/: answers the request, or says false, then it is 404.
  std::function<bool(HttpRequest* request)> pages = nullptr;
};

HttpHandler RestFront(std::shared_ptr<const ModelRequests> requests, RestFrontOptions options = {});

}  // namespace millrace

#endif  // MILLRACE_SERVING_SERVER_REST_FRONT_H_
