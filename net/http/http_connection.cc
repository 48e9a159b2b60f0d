// SPDX-License-Identifier: Apache-2.0
#include "net/http/http_connection.h"

#include <fcntl.h>
#include <microhttpd.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/exceptions.h"
#include "core/logging.h"
#include "core/status.h"
#include "net/http/received_request.h"

namespace millrace {
namespace {

// Outside of the connection's lock.
void Tell(absl::AnyInvocable<void()> gone) {
  if (!gone) return;
  const Status status = NoExceptions("HTTP server: the callback of OnDisconnect", [&] {
    gone();
    return absl::OkStatus();
  });
  if (!status.ok()) LogError(status.message());
}

}  // namespace

int64_t SteadyNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

int64_t DeadlineNs(absl::Duration from_now) {
  const int64_t ns = std::min(from_now, absl::Hours(24 * 365)) / absl::Nanoseconds(1);
  return std::max<int64_t>(SteadyNs() + ns, 1);
}

HttpReply HttpErrorReply(int status, absl::string_view text) {
  HttpReply reply = {status,
                     {{"Content-Type", "application/json"}},
                     absl::StrCat("{ \"error\": \"", text, "\" }\n"),
                     false};
  if (status == MHD_HTTP_TOO_MANY_REQUESTS || status == MHD_HTTP_SERVICE_UNAVAILABLE) {
    reply.headers.emplace_back("Retry-After", "1");
  }
  return reply;
}

void SendRawReply(int fd, int status, absl::string_view text) {
  const HttpReply reply = HttpErrorReply(status, text);
  std::string bytes = absl::StrCat(
      "HTTP/1.1 ", status, " ", MHD_get_reason_phrase_for(static_cast<unsigned>(status)), "\r\n");
  for (const auto& [name, value] : reply.headers) {
    absl::StrAppend(&bytes, name, ": ", value, "\r\n");
  }
  absl::StrAppend(&bytes, "Connection: close\r\nContent-Length: ", reply.body.size(), "\r\n\r\n",
                  reply.body);
  (void)!send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

HttpShared::HttpShared(const HttpServerOptions& options)
    : bodies(std::make_shared<ByteBudget>(options.max_bytes_of_bodies)),
      replies(std::make_shared<ByteBudget>(options.max_bytes_of_replies)),
      close_time(options.close_time),
      watch(epoll_create1(EPOLL_CLOEXEC)),
      wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      min_gzip_bytes(options.min_gzip_bytes),
      gunzip{.max_bytes = options.max_body_bytes, .max_ratio = options.max_inflate_ratio},
      is_tls(!options.tls_key.empty()) {}

void HttpShared::Wake() const {
  const uint64_t one = 1;
  (void)!write(wake.get(), &one, sizeof(one));
}

void HttpShared::TakeWakes() const {
  uint64_t wakes;
  (void)!read(wake.get(), &wakes, sizeof(wakes));
}

HttpConnection::HttpConnection(std::shared_ptr<HttpShared> shared, uint64_t id, MHD_Connection* mhd,
                               int fd, std::string peer)
    : shared(std::move(shared)), id(id), mhd(mhd), peer(std::move(peer)), fd_(fd) {}

HttpConnection::~HttpConnection() = default;

// ---- Of requests

uint64_t HttpConnection::request_number() {
  MutexLock lock(&mu_);
  return request_;
}

void HttpConnection::Answer(uint64_t request, HttpReply reply) {
  absl::AnyInvocable<void()> gone;  // goes after the lock
  MutexLock lock(&mu_);
  if (!IsRunning(request)) return;
  gone = TakeGone();
  reply_ = std::move(reply);
  Resume();
}

void HttpConnection::OnDisconnect(uint64_t request, absl::AnyInvocable<void()> gone) {
  {
    MutexLock lock(&mu_);
    if (IsRunning(request) && !has_gone_) {
      gone_ = std::move(gone);
      if (!watched_) {
        epoll_event event = {.events = EPOLLRDHUP | EPOLLONESHOT, .data = {.u64 = id}};
        watched_ = epoll_ctl(shared->watch.get(), EPOLL_CTL_ADD, fd_, &event) == 0;
      }
      return;
    }
  }
  gone();
}

// ---- Of the server

void HttpConnection::Gone() {
  absl::AnyInvocable<void()> gone;
  {
    MutexLock lock(&mu_);
    has_gone_ = true;
    gone = TakeGone();
  }
  Tell(std::move(gone));
}

void HttpConnection::CloseIfIdle() {
  MutexLock lock(&mu_);
  if (fd_ < 0 || phase_ != Phase::kIdle || half_closed_) return;
  int unread = 0;
  // The loop is about to see it.
  if (ioctl(fd_, FIONREAD, &unread) == 0 && unread > 0) return;
  half_closed_ = true;
  deadline_ns_ = DeadlineNs(shared->close_time);
  // The other side stays open: what comes there after a whole close is answered by a reset.
  shutdown(fd_, SHUT_WR);
}

bool HttpConnection::End() {
  absl::AnyInvocable<void()> gone;
  bool is_answered = false;
  {
    MutexLock lock(&mu_);
    gone = TakeGone();
    if (phase_ == Phase::kLater) {
      reply_ = HttpErrorReply(MHD_HTTP_SERVICE_UNAVAILABLE, "server stops");
      Resume();
      is_answered = true;
    }
  }
  Tell(std::move(gone));
  return is_answered;
}

void HttpConnection::CutIfLate(int64_t now_ns) {
  MutexLock lock(&mu_);
  if (fd_ < 0 || deadline_ns_ == 0 || now_ns < deadline_ns_) return;
  deadline_ns_ = 0;
  const bool was_reading = phase_ == Phase::kHeaders || phase_ == Phase::kBody;
  if (was_reading && !shared->is_tls) {
    SendRawReply(fd_, MHD_HTTP_REQUEST_TIMEOUT, "the request must come faster");
  }
  shutdown(fd_, SHUT_RDWR);
}

void HttpConnection::RefuseRaw(int status, absl::string_view text) {
  MutexLock lock(&mu_);
  if (fd_ >= 0) SendRawReply(fd_, status, text);
}

int HttpConnection::DuplicateSocket() {
  MutexLock lock(&mu_);
  return fd_ < 0 ? -1 : fcntl(fd_, F_DUPFD_CLOEXEC, 0);
}

// ---- Of the loop

void HttpConnection::Enter(Phase phase, int64_t deadline_ns) {
  MutexLock lock(&mu_);
  phase_ = phase;
  if (!half_closed_) deadline_ns_ = deadline_ns;
}

bool HttpConnection::is_half_closed() {
  MutexLock lock(&mu_);
  return half_closed_;
}

std::optional<HttpReply> HttpConnection::ReplyOrSuspend() {
  MutexLock lock(&mu_);
  if (!reply_.has_value() && !shared->ending) {
    phase_ = Phase::kLater;
    MHD_suspend_connection(mhd);
    return std::nullopt;
  }
  if (!reply_.has_value()) return HttpErrorReply(MHD_HTTP_SERVICE_UNAVAILABLE, "server stops");
  return std::exchange(reply_, std::nullopt);
}

std::optional<HttpReply> HttpConnection::ReplyOfResumed() {
  MutexLock lock(&mu_);
  if (phase_ != Phase::kResumed) return std::nullopt;
  return std::exchange(reply_, std::nullopt);
}

void HttpConnection::Answered(int64_t deadline_ns) {
  MutexLock lock(&mu_);
  phase_ = Phase::kAnswered;
  deadline_ns_ = deadline_ns;
  Unwatch();
}

void HttpConnection::Completed(int64_t deadline_ns) {
  absl::AnyInvocable<void()> gone;
  MutexLock lock(&mu_);
  gone = TakeGone();
  ++request_;
  phase_ = Phase::kIdle;
  deadline_ns_ = deadline_ns;
  reply_.reset();
  Unwatch();
}

void HttpConnection::Closed() {
  absl::AnyInvocable<void()> gone;
  MutexLock lock(&mu_);
  gone = TakeGone();
  ++request_;
  phase_ = Phase::kIdle;
  Unwatch();
  fd_ = -1;
}

// ---- Under the lock

bool HttpConnection::IsRunning(uint64_t request) const {
  return fd_ >= 0 && request == request_ && !reply_.has_value() &&
         (phase_ == Phase::kRunning || phase_ == Phase::kLater);
}

void HttpConnection::Resume() {
  if (phase_ != Phase::kLater) return;
  phase_ = Phase::kResumed;
  MHD_resume_connection(mhd);
}

absl::AnyInvocable<void()> HttpConnection::TakeGone() { return std::exchange(gone_, nullptr); }

void HttpConnection::Unwatch() {
  if (watched_) epoll_ctl(shared->watch.get(), EPOLL_CTL_DEL, fd_, nullptr);
  watched_ = false;
}

}  // namespace millrace
