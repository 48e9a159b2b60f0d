// SPDX-License-Identifier: Apache-2.0
#include "serving/rest/rest_path.h"

#include <re2/re2.h>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"

namespace millrace {
namespace {

// The expressions say what clients may ask for, and are TensorFlow Serving's. RE2 takes what can
// be a name for a name: GET /v1/models/metadata asks for the status of the model "metadata".
const RE2& PostPath() {
  static const RE2& expression =
      *new RE2(R"((?i)/v1/models/([^/:]+))"
               R"((?:(?:/versions/(\d+))|(?:/labels/([^/:]+)))?:(classify|regress|predict))");
  return expression;
}

const RE2& GetPath() {
  static const RE2& expression =
      *new RE2(R"((?i)/v1/models(?:/([^/:]+))?)"
               R"((?:(?:/versions/(\d+))|(?:/labels/([^/:]+)))?(?:/(metadata))?)");
  return expression;
}

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  const char lower = absl::ascii_tolower(static_cast<unsigned char>(c));
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

// The kind that a matched path asks for; nothing when its last word is in the wrong case.
std::optional<RestTarget::Kind> PostKind(absl::string_view verb) {
  if (verb == "predict") return RestTarget::Kind::kPredict;
  if (verb == "classify") return RestTarget::Kind::kClassify;
  if (verb == "regress") return RestTarget::Kind::kRegress;
  return std::nullopt;
}

}  // namespace

bool IsRestPath(absl::string_view path) {
  return absl::StartsWithIgnoreCase(path, "/v1/") && !absl::StrContains(path, '\n');
}

StatusOr<RestTarget> ParseRestPath(absl::string_view method, absl::string_view path) {
  const Status malformed = InvalidArgument("Malformed request: ", method, " ", path);
  const re2::StringPiece text(path.data(), path.size());
  std::string name, version, label, last;
  const bool is_get = method == "GET";
  if (is_get) {
    if (!RE2::FullMatch(text, GetPath(), &name, &version, &label, &last)) return malformed;
  } else if (method != "POST" ||
             !RE2::FullMatch(text, PostPath(), &name, &version, &label, &last)) {
    return malformed;
  }
  RestTarget target;
  target.model_name = PercentDecoded(name);
  if (!version.empty()) {
    int64_t number = 0;
    if (!absl::SimpleAtoi(version, &number)) {
      return InvalidArgument("Failed to convert version: ", version, " to numeric.");
    }
    target.version = number;
  }
  if (!label.empty()) target.label = PercentDecoded(label);
  if (!is_get) {
    const std::optional<RestTarget::Kind> kind = PostKind(last);
    if (!kind.has_value()) return malformed;
    target.kind = *kind;
    return target;
  }
  if (!name.empty()) {
    target.kind = last == "metadata" ? RestTarget::Kind::kMetadata : RestTarget::Kind::kStatus;
    return target;
  }
  if (target.version.has_value() || target.label.has_value() || !last.empty()) {
    return InvalidArgument("Missing model name in request.");
  }
  target.kind = RestTarget::Kind::kListModels;
  return target;
}

std::string PercentDecoded(absl::string_view text) {
  std::string decoded;
  decoded.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    const int high = text[i] == '%' && i + 2 < text.size() ? HexDigit(text[i + 1]) : -1;
    const int low = high >= 0 ? HexDigit(text[i + 2]) : -1;
    if (low < 0) {
      decoded.push_back(text[i]);
      continue;
    }
    decoded.push_back(static_cast<char>(high * 16 + low));
    i += 2;
  }
  return decoded;
}

int HttpStatus(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kOk:
      return 200;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kOutOfRange:
      return 400;
    case absl::StatusCode::kUnauthenticated:
      return 401;
    case absl::StatusCode::kPermissionDenied:
      return 403;
    case absl::StatusCode::kNotFound:
      return 404;
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kAborted:
      return 409;
    case absl::StatusCode::kResourceExhausted:
      return 429;
    case absl::StatusCode::kCancelled:
      return 499;
    case absl::StatusCode::kUnimplemented:
      return 501;
    case absl::StatusCode::kUnavailable:
      return 503;
    case absl::StatusCode::kDeadlineExceeded:
      return 504;
    default:
      return 500;  // unknown, internal, data loss
  }
}

RestHeaders ReplyHeaders(bool cors) {
  RestHeaders headers = {{"Content-Type", "application/json"}};
  if (cors) {
    headers.push_back({"Access-Control-Allow-Origin", "*"});
    headers.push_back({"Access-Control-Allow-Methods", "POST, GET"});
    headers.push_back({"Access-Control-Allow-Headers", "Content-Type"});
  }
  return headers;
}

Status CheckCorsPreflight(absl::string_view origin) {
  if (!origin.empty()) return absl::OkStatus();
  return FailedPrecondition("Origin header is missing in CORS preflight");
}

}  // namespace millrace
