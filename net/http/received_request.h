// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_NET_HTTP_RECEIVED_REQUEST_H_
#define MILLRACE_NET_HTTP_RECEIVED_REQUEST_H_

// ReceivedRequest: a request that has come over a connection; and what a request's head must be.
//
// The head is copied once, into one string. The body grows as it comes, within the budget of all
// bodies; it goes back when the request goes.
//
// Thread-safety: one thread at a time; CheckHttpHead from any thread.
// Lifetime: keeps its connection's record, not the connection.
// Failure: a request that is destroyed unanswered is answered 500.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "net/http/growing_bytes.h"
#include "net/http/http_connection.h"
#include "net/http/http_server.h"

namespace millrace {

using HttpField = std::pair<absl::string_view, absl::string_view>;

// What the head of a request says of its body.
struct HttpBodyLength {
  static constexpr size_t kUnknown = SIZE_MAX;
  bool has_body = false;
  size_t bytes = kUnknown;
};

// The reply to a head that this server does not take. Two readings of where a request ends would
// let one client put words into another one's mouth: there is one Host and one length, and names
// have no spaces. `length` is set in any case.
std::optional<HttpReply> CheckHttpHead(absl::string_view target, absl::string_view version,
                                       absl::Span<const HttpField> fields, int64_t max_body_bytes,
                                       HttpBodyLength* length);

class ReceivedRequest final : public HttpRequest {
 public:
  // Of the connection's target; `fields` are copied.
  ReceivedRequest(std::shared_ptr<HttpConnection> connection, absl::string_view method,
                  absl::Span<const HttpField> fields, size_t body_bytes);
  ~ReceivedRequest() override;

  absl::string_view method() const override { return method_; }
  absl::string_view path() const override { return path_; }
  absl::string_view query() const override { return query_; }
  absl::string_view header(absl::string_view name) const override;
  absl::Span<const HttpField> headers() const override { return headers_; }
  absl::string_view body() const override { return body_.view(); }
  bool is_packed() const override { return packed_; }
  bool Unpack() override;
  absl::string_view peer() const override { return connection_->peer; }
  void Answer(int status, HttpHeaders headers, std::string body) override;
  void OnDisconnect(absl::AnyInvocable<void()> gone) override;

  size_t body_size() const { return body_.size(); }
  // False without memory or budget for it.
  bool AppendToBody(absl::string_view piece);
  // Takes the body out of its Content-Encoding, or leaves it packed when it has more than so many
  // bytes; the reply to one that cannot be.
  std::optional<HttpReply> Decode(int64_t max_gzip_bytes);

 private:
  absl::string_view Keep(absl::string_view text);
  std::optional<HttpReply> Inflate();
  void GzipIfWanted(HttpReply* reply) const;

  const std::shared_ptr<HttpConnection> connection_;
  const uint64_t number_;
  const size_t body_bytes_;  // that it shall have; or unknown
  std::string text_;         // method, target, names and values
  absl::string_view method_, path_, query_;
  std::vector<HttpField> headers_;
  GrowingBytes body_;
  bool packed_ = false;  // body_ is gzip
  bool answered_ = false;
};

}  // namespace millrace

#endif  // MILLRACE_NET_HTTP_RECEIVED_REQUEST_H_
