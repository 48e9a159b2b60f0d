// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_REST_JSON_REPLIES_H_
#define MILLRACE_SERVING_REST_JSON_REPLIES_H_

// The replies of the REST front as JSON, in TensorFlow Serving's bytes: RapidJSON's PrettyWriter
// with 4 blanks, lists of a row on one line.
//
//   {\n    "predictions": [2.5, 3.0, 4.5\n    ]\n}
//
// Strings of an output whose alias ends in "_bytes" are {"b64": "..."}. Others are written as they
// are, UTF-8 or not.
//
// Thread-safety: pure functions. Failure: InvalidArgument for what has no JSON form, with its
// messages; ResourceExhausted for a reply larger than `max_bytes` (a tensor [2^30, 0] has no
// elements and 2^30 lists).

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "core/status.h"
#include "serving/aliased_tensor.h"
#include "serving/rest/json_tensors.h"

namespace millrace {

inline constexpr int64_t kMaxJsonReplyBytes = int64_t{1} << 30;

// "predictions" or "outputs", as the request was. The outputs come in the order given: callers sort
// them by alias.
StatusOr<std::string> PredictReply(absl::Span<const AliasedTensor> outputs, JsonForm form,
                                   int64_t max_bytes = kMaxJsonReplyBytes);

// A class of an example; without labels or scores these are "" and 0.
struct ClassAndScore {
  std::string label;
  float score = 0;
};
// "results": per example a list of [label, score].
StatusOr<std::string> ClassifyReply(absl::Span<const std::vector<ClassAndScore>> examples);
// "results": a number per example.
StatusOr<std::string> RegressReply(absl::Span<const float> values);

// {\n    "error": "..."\n}
std::string ErrorReply(const Status& error);

}  // namespace millrace

#endif  // MILLRACE_SERVING_REST_JSON_REPLIES_H_
