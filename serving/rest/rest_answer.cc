// SPDX-License-Identifier: Apache-2.0
#include "serving/rest/rest_answer.h"

#include <cstddef>
#include <string>
#include <utility>

#include "serving/cut_text.h"
#include "serving/rest/json_replies.h"
#include "serving/rest/rest_path.h"

namespace millrace {
namespace {

constexpr size_t kMaxErrorBytes = 16 << 10;

}  // namespace

HttpHeaders RestReplyHeaders(bool cors) {
  HttpHeaders headers;
  for (const auto& [name, value] : ReplyHeaders(cors)) {
    headers.emplace_back(std::string(name), std::string(value));
  }
  return headers;
}

void AnswerPreflight(HttpRequest* request) {
  HttpHeaders headers = RestReplyHeaders(/*cors=*/true);
  const Status asked = CheckCorsPreflight(request->header("Origin"));
  if (asked.ok()) return request->Answer(200, std::move(headers), "");
  request->Answer(HttpStatus(asked.code()), std::move(headers), ErrorReply(asked));
}

void AnswerRestError(HttpRequest* request, const Status& error, bool cors) {
  HttpHeaders headers = RestReplyHeaders(cors);
  if (absl::IsResourceExhausted(error) || absl::IsUnavailable(error)) {
    headers.emplace_back("Retry-After", "1");
  }
  request->Answer(HttpStatus(error.code()), std::move(headers),
                  ErrorReply(Status(error.code(), CutText(error.message(), kMaxErrorBytes))));
}

}  // namespace millrace
