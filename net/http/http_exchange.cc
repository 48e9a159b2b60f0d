// SPDX-License-Identifier: Apache-2.0
#include "net/http/http_exchange.h"

#include <gnutls/gnutls.h>
#include <microhttpd.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/match.h"
#include "core/byte_budget.h"
#include "core/exceptions.h"
#include "core/logging.h"
#include "core/status.h"

namespace millrace {
namespace {

// The library's list, whose bytes live as long as the request is read.
std::vector<HttpField> LibraryHeaders(MHD_Connection* mhd) {
  std::vector<HttpField> fields;
  MHD_get_connection_values_n(
      mhd, MHD_HEADER_KIND,
      [](void* fields, MHD_ValueKind, const char* name, size_t name_size, const char* value,
         size_t value_size) {
        try {
          static_cast<std::vector<HttpField>*>(fields)->emplace_back(
              absl::string_view(name, name_size),
              value == nullptr ? "" : absl::string_view(value, value_size));
        } catch (...) {
          return MHD_NO;  // out of memory: the size below tells
        }
        return MHD_YES;
      },
      &fields);
  return fields;
}

// A reply's body, until it has been sent or its connection is gone.
class SentBody {
 public:
  // Null: the budget has no room.
  static std::unique_ptr<SentBody> Make(std::string bytes,
                                        const std::shared_ptr<ByteBudget>& budget) {
    // At most so many times the number of connections are not counted.
    constexpr size_t kSmall = 4'096;
    const bool counts = bytes.size() > kSmall;
    if (counts && !budget->Take(static_cast<int64_t>(bytes.size()))) return nullptr;
    return std::unique_ptr<SentBody>(new SentBody(std::move(bytes), counts ? budget : nullptr));
  }
  ~SentBody() {
    if (budget_ != nullptr) budget_->Return(static_cast<int64_t>(bytes_.size()));
  }
  SentBody(const SentBody&) = delete;
  SentBody& operator=(const SentBody&) = delete;
  std::string& bytes() { return bytes_; }

 private:
  SentBody(std::string bytes, std::shared_ptr<ByteBudget> budget)
      : bytes_(std::move(bytes)), budget_(std::move(budget)) {}
  std::string bytes_;
  const std::shared_ptr<ByteBudget> budget_;
};

}  // namespace

void HttpExchange::OnTarget(HttpConnection* c, const char* target) const {
  try {
    c->target = target;
  } catch (...) {
    c->target.clear();  // OnHead refuses it
  }
  c->refusal.reset();
  c->may_be_sending = true;
  c->Enter(HttpConnection::Phase::kHeaders, DeadlineNs(options_->header_time));
}

// The reply that takes the handler's place.
std::optional<HttpReply> HttpExchange::WhyNot(HttpConnection* c, absl::string_view version,
                                              const std::vector<HttpField>& fields,
                                              HttpBodyLength* length) const {
  std::optional<HttpReply> refusal =
      CheckHttpHead(c->target, version, fields, options_->max_body_bytes, length);
  if (shared_->ending) return HttpErrorReply(MHD_HTTP_SERVICE_UNAVAILABLE, "server stops");
  if (!options_->client_ca.empty() && !c->is_known) {
    const MHD_ConnectionInfo* const info =
        MHD_get_connection_info(c->mhd, MHD_CONNECTION_INFO_GNUTLS_SESSION);
    unsigned problems = 0;
    if (info == nullptr ||
        gnutls_certificate_verify_peers2(static_cast<gnutls_session_t>(info->tls_session),
                                         &problems) != GNUTLS_E_SUCCESS ||
        problems != 0) {
      return HttpErrorReply(MHD_HTTP_FORBIDDEN, "a certificate of the client is required");
    }
    c->is_known = true;
  }
  const MHD_ConnectionInfo* const head =
      MHD_get_connection_info(c->mhd, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
  if (head != nullptr && head->header_size > static_cast<size_t>(options_->max_header_bytes)) {
    return HttpErrorReply(MHD_HTTP_REQUEST_HEADER_FIELDS_TOO_LARGE, "headers too large");
  }
  return refusal;
}

bool HttpExchange::OnHead(const std::shared_ptr<HttpConnection>& c, absl::string_view method,
                          absl::string_view version) const {
  if (c->is_half_closed()) return false;
  const std::vector<HttpField> fields = LibraryHeaders(c->mhd);
  HttpBodyLength length;
  std::optional<HttpReply> refusal = WhyNot(c.get(), version, fields, &length);
  c->may_be_sending = length.has_body;
  if (refusal.has_value()) {
    refusal->close = true;
    return Queue(c.get(), *std::move(refusal));
  }
  c->reading = std::make_unique<ReceivedRequest>(c, method, fields, length.bytes);
  c->Enter(HttpConnection::Phase::kBody, DeadlineNs(options_->body_time));
  return true;
}

bool HttpExchange::OnBody(HttpConnection* c, absl::string_view piece) const {
  if (c->refusal.has_value()) return true;
  if (c->reading == nullptr) return false;
  int status = MHD_HTTP_CONTENT_TOO_LARGE;
  absl::string_view text = "the body must be smaller";
  if (piece.size() <= static_cast<size_t>(options_->max_body_bytes) - c->reading->body_size()) {
    if (c->reading->AppendToBody(piece)) return true;
    status = MHD_HTTP_TOO_MANY_REQUESTS;
    text = "too many bytes of requests at once";
  }
  c->reading.reset();
  if (shared_->is_tls) {
    // Only the library can write, and it does at the end of the body, which the deadline bounds.
    c->refusal = HttpErrorReply(status, text);
    c->refusal->close = true;
    return true;
  }
  c->RefuseRaw(status, text);
  return false;
}

bool HttpExchange::OnEnd(HttpConnection* c) const {
  c->may_be_sending = false;
  if (c->refusal.has_value()) return Queue(c, *std::exchange(c->refusal, std::nullopt));
  if (c->reading == nullptr) {
    std::optional<HttpReply> reply = c->ReplyOfResumed();
    // Nothing to say yet: the library may call for a connection that is on its way out of the loop.
    return reply.has_value() ? Queue(c, *std::move(reply)) : true;
  }
  std::unique_ptr<ReceivedRequest> request = std::move(c->reading);
  std::optional<HttpReply> refusal = request->Decode(options_->max_gzip_bytes_on_loop);
  if (refusal.has_value()) return Queue(c, *std::move(refusal));
  c->Enter(HttpConnection::Phase::kRunning, 0);
  const Status status = NoExceptions("HTTP server: the handler", [&] {
    (*handler_)(std::move(request));
    return absl::OkStatus();
  });
  if (!status.ok()) LogError(status.message());
  std::optional<HttpReply> reply = c->ReplyOrSuspend();
  return reply.has_value() ? Queue(c, *std::move(reply)) : true;
}

bool HttpExchange::Queue(HttpConnection* c, HttpReply reply) const {
  constexpr int kLeastStatus = 200, kMostStatus = 599;
  if (reply.status < kLeastStatus || reply.status > kMostStatus) {
    reply = HttpErrorReply(MHD_HTTP_INTERNAL_SERVER_ERROR, "the reply has no status");
  }
  if (reply.status == MHD_HTTP_NO_CONTENT || reply.status == MHD_HTTP_NOT_MODIFIED) {
    reply.body.clear();
  }
  std::unique_ptr<SentBody> body = SentBody::Make(std::move(reply.body), shared_->replies);
  if (body == nullptr) {
    return Queue(c, HttpErrorReply(MHD_HTTP_SERVICE_UNAVAILABLE,
                                   "too many bytes of replies wait for their clients"));
  }
  MHD_Response* const response = MHD_create_response_from_buffer_with_free_callback_cls(
      body->bytes().size(), body->bytes().data(),
      [](void* sent) { delete static_cast<SentBody*>(sent); }, body.get());
  if (response == nullptr) return false;
  (void)body.release();
  const std::unique_ptr<MHD_Response, void (*)(MHD_Response*)> owned(response,
                                                                     MHD_destroy_response);
  for (const auto& [name, value] : reply.headers) {
    if (absl::EqualsIgnoreCase(name, "content-length")) continue;
    if (MHD_add_response_header(response, name.c_str(), value.c_str()) != MHD_YES) {
      return Queue(c, HttpErrorReply(MHD_HTTP_INTERNAL_SERVER_ERROR,
                                     "a header of the reply must have no line break"));
    }
  }
  if (reply.close || shared_->draining) {
    MHD_add_response_header(response, "Connection", "close");
  }
  c->Answered(DeadlineNs(options_->reply_time));
  return MHD_queue_response(c->mhd, static_cast<unsigned>(reply.status), response) == MHD_YES;
}

void HttpExchange::OnCompleted(HttpConnection* c) const {
  c->reading.reset();
  c->Completed(DeadlineNs(options_->idle_time + options_->header_time));
}

}  // namespace millrace
