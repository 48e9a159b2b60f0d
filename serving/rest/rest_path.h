// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_REST_REST_PATH_H_
#define MILLRACE_SERVING_REST_REST_PATH_H_

// What a request to the REST front asks for, by its method and path, and what its reply's status
// and headers are: TensorFlow Serving's rules as pure functions.
//
//   POST /v1/models/NAME[/versions/N|/labels/L]:predict|classify|regress
//   GET  /v1/models/NAME[/versions/N|/labels/L][/metadata]
//   GET  /v1/models        lists the models (TensorFlow Serving refuses it)
//
// Paths are matched by its expressions, case-insensitively; name and label are %-decoded behind it.
// What must be written in small letters nevertheless, as there: "predict", "classify", "regress",
// "metadata" (METADATA asks for the status).
//
// Thread-safety: pure functions. Failure: InvalidArgument, `Malformed request: METHOD PATH`.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/status.h"

namespace millrace {

struct RestTarget {
  enum class Kind { kPredict, kClassify, kRegress, kStatus, kMetadata, kListModels };
  Kind kind = Kind::kStatus;
  std::string model_name;  // "" of kListModels only
  // At most one of them.
  std::optional<int64_t> version;
  std::optional<std::string> label;
};

// Is it below /v1/? Other paths that nobody else knows are 404 without a body.
bool IsRestPath(absl::string_view path);

// `path` is a path below /v1/, without a query, not decoded.
StatusOr<RestTarget> ParseRestPath(absl::string_view method, absl::string_view path);

// "a%2Fb" is "a/b"; what is no %XX stays as it is.
std::string PercentDecoded(absl::string_view text);

// The status of the reply to what ended with `code`.
int HttpStatus(absl::StatusCode code);

using RestHeaders = std::vector<std::pair<absl::string_view, absl::string_view>>;

// Of every reply with a body. `cors`: --rest_api_enable_cors_support.
RestHeaders ReplyHeaders(bool cors);

// With CORS, OPTIONS below /v1/ are answered with ReplyHeaders and no body; without CORS they are
// malformed as other methods are. `origin` is the request's header.
Status CheckCorsPreflight(absl::string_view origin);

}  // namespace millrace

#endif  // MILLRACE_SERVING_REST_REST_PATH_H_
