// SPDX-License-Identifier: Apache-2.0
#include "net/http/received_request.h"

#include <microhttpd.h>

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/exceptions.h"
#include "core/status.h"
#include "net/http/gzip.h"

namespace millrace {
namespace {

// The first reservation for a body; a Content-Length alone gets no more.
constexpr size_t kFirstBodyBytes = size_t{256} << 10;

// Or what is no character.
bool HasSpace(absl::string_view text) {
  return std::any_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_isspace(static_cast<unsigned char>(c)) ||
           absl::ascii_iscntrl(static_cast<unsigned char>(c));
  });
}

}  // namespace

std::optional<HttpReply> CheckHttpHead(absl::string_view target, absl::string_view version,
                                       absl::Span<const HttpField> fields, int64_t max_body_bytes,
                                       HttpBodyLength* length) {
  int num_hosts = 0, num_lengths = 0, num_codings = 0;
  absl::string_view coding;
  uint64_t content_length = 0;
  bool is_malformed = target.empty() || HasSpace(target);
  for (const auto& [name, value] : fields) {
    is_malformed |= name.empty() || HasSpace(name);
    if (absl::EqualsIgnoreCase(name, "host")) {
      ++num_hosts;
    } else if (absl::EqualsIgnoreCase(name, "content-length")) {
      ++num_lengths;
      if (!absl::SimpleAtoi(value, &content_length)) content_length = UINT64_MAX;
    } else if (absl::EqualsIgnoreCase(name, "transfer-encoding")) {
      ++num_codings;
      coding = value;
    }
  }
  length->has_body = num_codings > 0 || content_length > 0;
  length->bytes = HttpBodyLength::kUnknown;

  const bool is_old = version == MHD_HTTP_VERSION_1_0;
  if (is_malformed) {
    return HttpErrorReply(MHD_HTTP_BAD_REQUEST, "target and names of headers must have no spaces");
  }
  if (num_hosts > 1 || (num_hosts == 0 && !is_old)) {
    return HttpErrorReply(MHD_HTTP_BAD_REQUEST, "there must be one Host header");
  }
  if (num_lengths + num_codings > 1 || (num_codings > 0 && is_old)) {
    return HttpErrorReply(MHD_HTTP_BAD_REQUEST,
                          "there must be one Content-Length or Transfer-Encoding header");
  }
  if (num_codings > 0 && !absl::EqualsIgnoreCase(coding, "chunked")) {
    return HttpErrorReply(MHD_HTTP_NOT_IMPLEMENTED, "Transfer-Encoding must be chunked");
  }
  if (num_lengths == 0) return std::nullopt;
  if (content_length > static_cast<uint64_t>(max_body_bytes)) {
    return HttpErrorReply(
        MHD_HTTP_CONTENT_TOO_LARGE,
        absl::StrCat("the body must be at most ", max_body_bytes, " bytes, got ", content_length));
  }
  length->bytes = static_cast<size_t>(content_length);
  return std::nullopt;
}

ReceivedRequest::ReceivedRequest(std::shared_ptr<HttpConnection> connection,
                                 absl::string_view method, absl::Span<const HttpField> fields,
                                 size_t body_bytes)
    : connection_(std::move(connection)),
      number_(connection_->request_number()),
      body_bytes_(body_bytes),
      body_(connection_->shared->bodies) {
  const std::string& target = connection_->target;
  size_t size = method.size() + target.size();
  for (const auto& [name, value] : fields) size += name.size() + value.size();
  text_.reserve(size);
  method_ = Keep(method);
  absl::string_view kept = Keep(target);
  // What a proxy is asked: "http://host/path".
  for (const absl::string_view scheme : {"http://", "https://"}) {
    if (!absl::StartsWithIgnoreCase(kept, scheme)) continue;
    const size_t slash = kept.find('/', scheme.size());
    kept = slash == absl::string_view::npos ? "/" : kept.substr(slash);
    break;
  }
  const size_t question = kept.find('?');
  path_ = kept.substr(0, question);
  if (question != absl::string_view::npos) query_ = kept.substr(question + 1);
  headers_.reserve(fields.size());
  for (const auto& [name, value] : fields) headers_.emplace_back(Keep(name), Keep(value));
}

ReceivedRequest::~ReceivedRequest() {
  if (answered_) return;
  // Of a request that no handler has seen it is dropped.
  try {
    connection_->Answer(
        number_, HttpErrorReply(MHD_HTTP_INTERNAL_SERVER_ERROR, "the request was not answered"));
  } catch (...) {
    connection_->Answer(number_, HttpReply());  // a 500 that needs no memory
  }
}

absl::string_view ReceivedRequest::Keep(absl::string_view text) {
  const size_t begin = text_.size();
  text_.append(text.data(), text.size());  // within what is reserved
  return absl::string_view(text_).substr(begin);
}

absl::string_view ReceivedRequest::header(absl::string_view name) const {
  for (const auto& [key, value] : headers_) {
    if (absl::EqualsIgnoreCase(key, name)) return value;
  }
  return "";
}

void ReceivedRequest::Answer(int status, HttpHeaders headers, std::string body) {
  if (std::exchange(answered_, true)) return;
  HttpReply reply = {status, std::move(headers), std::move(body), false};
  GzipIfWanted(&reply);
  connection_->Answer(number_, std::move(reply));
}

void ReceivedRequest::OnDisconnect(absl::AnyInvocable<void()> gone) {
  if (!answered_) connection_->OnDisconnect(number_, std::move(gone));
}

// Leaves the reply as it is when there is no memory.
void ReceivedRequest::GzipIfWanted(HttpReply* reply) const {
  const int64_t size = static_cast<int64_t>(reply->body.size());
  if (size < connection_->shared->min_gzip_bytes || !AcceptsGzip(header("accept-encoding"))) return;
  for (const auto& [name, value] : reply->headers) {
    if (absl::EqualsIgnoreCase(name, "content-encoding")) return;
  }
  HttpHeaders headers;
  StatusOr<std::string> packed = NoExceptions("gzip", [&]() -> StatusOr<std::string> {
    headers = reply->headers;
    headers.emplace_back("Content-Encoding", "gzip");
    headers.emplace_back("Vary", "Accept-Encoding");
    return Gzip(reply->body);
  });
  if (!packed.ok()) return;
  reply->headers = std::move(headers);
  reply->body = *std::move(packed);
}

bool ReceivedRequest::AppendToBody(absl::string_view piece) {
  if (body_.size() == 0 && body_bytes_ != HttpBodyLength::kUnknown &&
      !body_.Reserve(std::min({body_bytes_, kFirstBodyBytes, 4 * piece.size() + 4'096}))) {
    return false;
  }
  return body_.Append(piece, body_bytes_);
}

std::optional<HttpReply> ReceivedRequest::Decode(int64_t max_gzip_bytes) {
  const absl::string_view coding = header("content-encoding");
  if (coding.empty() || absl::EqualsIgnoreCase(coding, "identity")) return std::nullopt;
  if (!absl::EqualsIgnoreCase(coding, "gzip") && !absl::EqualsIgnoreCase(coding, "x-gzip")) {
    return HttpErrorReply(MHD_HTTP_UNSUPPORTED_MEDIA_TYPE,
                          "Content-Encoding must be gzip or identity");
  }
  if (body().empty()) return std::nullopt;
  packed_ = true;
  if (static_cast<int64_t>(body().size()) > max_gzip_bytes) return std::nullopt;
  return Inflate();
}

bool ReceivedRequest::Unpack() {
  if (!packed_) return true;
  std::optional<HttpReply> refusal = Inflate();
  if (!refusal.has_value()) return true;
  Answer(refusal->status, std::move(refusal->headers), std::move(refusal->body));
  return false;
}

std::optional<HttpReply> ReceivedRequest::Inflate() {
  StatusOr<GrowingBytes> plain =
      Gunzip(body(), connection_->shared->gunzip, connection_->shared->bodies);
  if (plain.ok()) {
    body_ = *std::move(plain);
    packed_ = false;
    return std::nullopt;
  }
  const int status = absl::IsInvalidArgument(plain.status()) ? MHD_HTTP_BAD_REQUEST
                     : absl::IsOutOfRange(plain.status())    ? MHD_HTTP_CONTENT_TOO_LARGE
                                                             : MHD_HTTP_TOO_MANY_REQUESTS;
  return HttpErrorReply(status, plain.status().message());
}

}  // namespace millrace
