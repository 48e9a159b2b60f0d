// SPDX-License-Identifier: Apache-2.0
#include "serving/server/rest_token.h"

#include <cstddef>
#include <memory>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/status.h"
#include "net/security.h"
#include "serving/cut_text.h"
#include "serving/rest/json_replies.h"
#include "serving/rest/rest_path.h"

namespace millrace {
namespace {

constexpr absl::string_view kScheme = "Bearer ";
constexpr size_t kMaxShownPath = 1024;

// What a header's value shows; "": nothing of this kind. The scheme's case is anybody's choice.
absl::string_view ShownToken(absl::string_view authorization) {
  if (!absl::StartsWithIgnoreCase(authorization, kScheme)) return "";
  return absl::StripAsciiWhitespace(authorization.substr(kScheme.size()));
}

}  // namespace

HttpHandler AskForToken(std::string token, HttpHandler next) {
  if (token.empty()) return next;
  return [token = std::move(token), next = std::move(next)](std::unique_ptr<HttpRequest> request) {
    const absl::string_view shown = ShownToken(request->header("Authorization"));
    if (IsSameSecret(token, shown)) return next(std::move(request));
    const Status refused = absl::UnauthenticatedError(
        absl::StrCat(request->method(), " ", CutText(request->path(), kMaxShownPath),
                     ": callers must show the token of this server, got ",
                     shown.empty() ? "none" : "another one"));
    HttpHeaders headers = {
        {"Content-Type", "application/json"},
        {"WWW-Authenticate", shown.empty() ? "Bearer realm=\"millrace\""
                                           : "Bearer realm=\"millrace\", error=\"invalid_token\""}};
    request->Answer(HttpStatus(refused.code()), std::move(headers), ErrorReply(refused));
  };
}

}  // namespace millrace
