// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_REST_JSON_EXAMPLES_H_
#define MILLRACE_SERVING_REST_JSON_EXAMPLES_H_

// The body of a classify or regress request, as JSON, to Examples: TensorFlow Serving's form,
// acceptance and messages.
//
//   {"signature_name": "s", "context": {"age": 20}, "examples": [{"x": 1.5}, {"x": [2.5, 3.0]}]}
//
// A feature is a value or a list of values of one kind: whole numbers and booleans are int64s,
// numbers with a point or an exponent floats, strings and {"b64": "..."} bytes. An empty list is a
// feature without a kind. The first of equal keys of the request counts, the last of equal
// features.
//
// Thread-safety: pure function. Failure: InvalidArgument; mistakes in the context are reported
// before those in the examples.

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/status.h"
#include "proto/example.pb.h"
#include "serving/rest/json_scan.h"

namespace millrace {

struct JsonExamplesRequest {
  std::string signature_name;  // "": not said
  std::vector<tensorflow::Example> examples;
  std::optional<tensorflow::Example> context;
};

StatusOr<JsonExamplesRequest> ReadExamplesRequest(absl::string_view body,
                                                  const JsonLimits& limits = {});

}  // namespace millrace

#endif  // MILLRACE_SERVING_REST_JSON_EXAMPLES_H_
