// SPDX-License-Identifier: Apache-2.0
#include "serving/rest/http_server.h"

#include <fcntl.h>
#include <gnutls/gnutls.h>
#include <microhttpd.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <map>
#include <optional>
#include <thread>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/byte_budget.h"
#include "core/cores.h"
#include "core/exceptions.h"
#include "core/logging.h"
#include "core/mutex.h"
#include "core/notification.h"
#include "core/owned_fd.h"
#include "serving/rest/growing_bytes.h"
#include "serving/rest/gzip.h"
#include "serving/rest/http_listener.h"

namespace millrace {
namespace {

// What epoll says beside the id of a connection, which is smaller than both bits.
constexpr uint64_t kListenerBit = uint64_t{1} << 62;
constexpr uint64_t kLingerBit = uint64_t{1} << 63;
constexpr uint64_t kWakeId = 0;

constexpr int kMaxAcceptsAtOnce = 64;
// The first reservation for a body; a Content-Length alone gets no more.
constexpr size_t kFirstBodyBytes = size_t{256} << 10;
// A client that is refused may still be sending. Its bytes are read and dropped so long: an end of
// the connection with unread bytes would throw away the reply, too (RFC 9112, 9.6).
constexpr int64_t kLingerNs = 2'000'000'000;
constexpr size_t kMaxLingers = 256;
// How long the replies of a server that stops may take to get out.
constexpr absl::Duration kFlushTime = absl::Seconds(5);

int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}
// 0 means "none" of a deadline.
int64_t DeadlineNs(absl::Duration from_now) {
  const int64_t ns = std::min(from_now, absl::Hours(24 * 365)) / absl::Nanoseconds(1);
  return NowNs() + ns;
}

// The library knows whole seconds.
unsigned IdleSeconds(absl::Duration time) {
  constexpr int64_t kYear = int64_t{24} * 3'600 * 365;
  const int64_t seconds = absl::ToInt64Seconds(absl::Ceil(time, absl::Seconds(1)));
  return static_cast<unsigned>(std::clamp<int64_t>(seconds, 1, kYear));
}

struct Reply {
  int status = 500;
  HttpHeaders headers = {};
  std::string body = "";
  bool close = false;  // the connection after it
};

// `text`: our own, without quotes.
std::string ErrorBody(absl::string_view text) {
  return absl::StrCat("{ \"error\": \"", text, "\" }\n");
}
Reply ErrorReply(int status, absl::string_view text) {
  Reply reply = {status, {{"Content-Type", "application/json"}}, ErrorBody(text), false};
  if (status == MHD_HTTP_TOO_MANY_REQUESTS || status == MHD_HTTP_SERVICE_UNAVAILABLE) {
    reply.headers.emplace_back("Retry-After", "1");
  }
  return reply;
}

// Puts a whole reply on a socket where the library would not take one. It fits into the socket's
// buffer, where at most an end of an earlier reply is; what does not is lost.
void SendRaw(int fd, int status, absl::string_view text) {
  const Reply reply = ErrorReply(status, text);
  std::string bytes = absl::StrCat(
      "HTTP/1.1 ", status, " ", MHD_get_reason_phrase_for(static_cast<unsigned>(status)), "\r\n");
  for (const auto& [name, value] : reply.headers) {
    absl::StrAppend(&bytes, name, ": ", value, "\r\n");
  }
  absl::StrAppend(&bytes, "Connection: close\r\nContent-Length: ", reply.body.size(), "\r\n\r\n",
                  reply.body);
  (void)!send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

// What a connection, and a request that outlives the server, needs of it.
struct Shared {
  explicit Shared(const HttpServerOptions& options)
      : bodies(std::make_shared<ByteBudget>(options.max_bytes_of_bodies)),
        watch(epoll_create1(EPOLL_CLOEXEC)),
        min_gzip_bytes(options.min_gzip_bytes),
        is_tls(!options.tls_key.empty()) {}
  const std::shared_ptr<ByteBudget> bodies;
  const OwnedFd watch;  // epoll
  const int64_t min_gzip_bytes;
  const bool is_tls;
  // Both are set before the server takes the lock of each connection: what a connection does under
  // its lock after that sees them.
  std::atomic<bool> draining{false};  // replies end their connections
  std::atomic<bool> ending{false};    // nothing waits for an answer
};

class Request;

// One connection. Its socket belongs to the library, which closes it after Closed(): until then,
// under `mu`, others may use it.
class Connection {
 public:
  //   kIdle -> kHeaders -> kBody -> kRunning -> kAnswered -> kIdle
  //                                    |            ^
  //                                    +-> kLater -> kResumed
  // The loop's thread does all of them but kLater -> kResumed, which is the answer's.
  enum class Phase { kIdle, kHeaders, kBody, kRunning, kLater, kResumed, kAnswered };

  Connection(std::shared_ptr<Shared> shared, uint64_t id, MHD_Connection* mhd, int fd,
             std::string peer)
      : shared(std::move(shared)), id(id), mhd(mhd), peer(std::move(peer)), fd_(fd) {}

  void Enter(Phase phase, int64_t deadline_ns) {
    MutexLock lock(&mu);
    phase_ = phase;
    deadline_ns_ = deadline_ns;
  }
  uint64_t request_number() {
    MutexLock lock(&mu);
    return request_;
  }

  // From any thread.
  void Answer(uint64_t request, Reply reply) {
    absl::AnyInvocable<void()> gone;  // goes after the lock
    MutexLock lock(&mu);
    if (!IsRunning(request)) return;
    gone = TakeGone();
    reply_ = std::move(reply);
    Resume();
  }

  // From any thread.
  void OnDisconnect(uint64_t request, absl::AnyInvocable<void()> gone) {
    {
      MutexLock lock(&mu);
      if (IsRunning(request) && !has_gone_) {
        gone_ = std::move(gone);
        if (!watched_) {
          epoll_event event = {.events = EPOLLRDHUP | EPOLLONESHOT, .data = {.u64 = id}};
          watched_ = epoll_ctl(shared->watch.get(), EPOLL_CTL_ADD, fd_, &event) == 0;
        }
        return;
      }
    }
    gone();  // the caller's own thread
  }

  // The client closed its side.
  void Gone() {
    absl::AnyInvocable<void()> gone;
    {
      MutexLock lock(&mu);
      has_gone_ = true;
      gone = TakeGone();
    }
    Tell(std::move(gone));
  }

  // After the handler: the reply, if it is there by now; else the connection leaves its loop.
  std::optional<Reply> ReplyOrSuspend() {
    MutexLock lock(&mu);
    if (!reply_.has_value() && !shared->ending) {
      phase_ = Phase::kLater;
      MHD_suspend_connection(mhd);
      return std::nullopt;
    }
    if (!reply_.has_value()) reply_ = ErrorReply(MHD_HTTP_SERVICE_UNAVAILABLE, "server stops");
    return std::exchange(reply_, std::nullopt);
  }
  // The reply for which the connection came back.
  std::optional<Reply> ReplyOfResumed() {
    MutexLock lock(&mu);
    if (phase_ != Phase::kResumed) return std::nullopt;
    return std::exchange(reply_, std::nullopt);
  }
  // A reply is on its way.
  void Answered(int64_t deadline_ns) {
    MutexLock lock(&mu);
    phase_ = Phase::kAnswered;
    deadline_ns_ = deadline_ns;
    Unwatch();
  }
  // The request has ended, in order or not.
  void Completed(int64_t deadline_ns) {
    absl::AnyInvocable<void()> gone;
    MutexLock lock(&mu);
    gone = TakeGone();
    ++request_;
    phase_ = Phase::kIdle;
    deadline_ns_ = deadline_ns;
    reply_.reset();
    Unwatch();
    if (shared->draining) CloseIfIdle();
  }
  void Closed() {
    absl::AnyInvocable<void()> gone;
    MutexLock lock(&mu);
    gone = TakeGone();
    ++request_;
    phase_ = Phase::kIdle;
    Unwatch();
    fd_ = -1;
  }

  // The server drains: a request that has come, or comes with the last packets, is still read.
  void Drain() {
    MutexLock lock(&mu);
    CloseIfIdle();
  }
  // The server waits no longer. True when that gave the request its reply.
  bool End() {
    absl::AnyInvocable<void()> gone;
    bool is_answered = false;
    {
      MutexLock lock(&mu);
      gone = TakeGone();
      if (phase_ == Phase::kLater) {
        reply_ = ErrorReply(MHD_HTTP_SERVICE_UNAVAILABLE, "server stops");
        Resume();
        is_answered = true;
      }
    }
    Tell(std::move(gone));
    return is_answered;
  }

  void CutIfLate(int64_t now_ns) {
    MutexLock lock(&mu);
    if (fd_ < 0 || deadline_ns_ == 0 || now_ns < deadline_ns_) return;
    deadline_ns_ = 0;
    const bool was_reading = phase_ == Phase::kHeaders || phase_ == Phase::kBody;
    if (was_reading && !shared->is_tls) {
      SendRaw(fd_, MHD_HTTP_REQUEST_TIMEOUT, "the request must come faster");
    }
    shutdown(fd_, SHUT_RDWR);
  }

  // For a reply in the middle of a body, which the library does not take. TLS: none.
  void RefuseRaw(int status, absl::string_view text) {
    MutexLock lock(&mu);
    if (fd_ >= 0) SendRaw(fd_, status, text);
  }
  // Of the socket; -1 when there is none.
  int Duplicate() {
    MutexLock lock(&mu);
    return fd_ < 0 ? -1 : fcntl(fd_, F_DUPFD_CLOEXEC, 0);
  }

  const std::shared_ptr<Shared> shared;
  const uint64_t id;
  MHD_Connection* const mhd;  // valid until Closed()
  const std::string peer;

  // Of the loop's thread alone.
  std::string target;                // as sent
  std::unique_ptr<Request> reading;  // until its handler has it
  std::optional<Reply> refusal;      // takes the place of the handler; the body is dropped
  bool may_be_sending = false;       // when the connection ends
  bool is_known = false;             // the client's certificate has been looked at

 private:
  bool IsRunning(uint64_t request) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    return fd_ >= 0 && request == request_ && !reply_.has_value() &&
           (phase_ == Phase::kRunning || phase_ == Phase::kLater);
  }
  // Under the lock, so that no one stops the loops while the library is in here. Until the
  // connection is resumed it is not closed.
  void Resume() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    if (phase_ != Phase::kLater) return;
    phase_ = Phase::kResumed;
    MHD_resume_connection(mhd);
  }
  static void Tell(absl::AnyInvocable<void()> gone) {
    if (!gone) return;
    const Status status = NoExceptions("HTTP server: the callback of OnDisconnect", [&] {
      gone();
      return absl::OkStatus();
    });
    if (!status.ok()) LogError(status.message());
  }
  absl::AnyInvocable<void()> TakeGone() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    return std::exchange(gone_, nullptr);
  }
  void Unwatch() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    if (watched_) epoll_ctl(shared->watch.get(), EPOLL_CTL_DEL, fd_, nullptr);
    watched_ = false;
  }
  void CloseIfIdle() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    if (fd_ >= 0 && phase_ == Phase::kIdle) shutdown(fd_, SHUT_RD);
  }

  Mutex mu;
  int fd_ ABSL_GUARDED_BY(mu);  // -1: closed
  Phase phase_ ABSL_GUARDED_BY(mu) = Phase::kIdle;
  int64_t deadline_ns_ ABSL_GUARDED_BY(mu) = 0;  // 0: none
  uint64_t request_ ABSL_GUARDED_BY(mu) = 0;     // counts: an old request answers nothing
  std::optional<Reply> reply_ ABSL_GUARDED_BY(mu);
  absl::AnyInvocable<void()> gone_ ABSL_GUARDED_BY(mu);
  bool watched_ ABSL_GUARDED_BY(mu) = false;
  bool has_gone_ ABSL_GUARDED_BY(mu) = false;
};

using Field = std::pair<absl::string_view, absl::string_view>;

// The library's list, whose bytes live as long as the request is read.
std::vector<Field> LibraryHeaders(MHD_Connection* mhd) {
  std::vector<Field> fields;
  MHD_get_connection_values_n(
      mhd, MHD_HEADER_KIND,
      [](void* fields, MHD_ValueKind, const char* name, size_t name_size, const char* value,
         size_t value_size) {
        try {
          static_cast<std::vector<Field>*>(fields)->emplace_back(
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

class Request final : public HttpRequest {
 public:
  Request(std::shared_ptr<Connection> connection, absl::string_view method,
          const std::vector<Field>& fields)
      : connection_(std::move(connection)),
        number_(connection_->request_number()),
        body_(connection_->shared->bodies) {
    // All names and values in one string.
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
  ~Request() override {
    if (answered_) return;
    // Of a request that no handler has seen it is dropped.
    try {
      connection_->Answer(
          number_, ErrorReply(MHD_HTTP_INTERNAL_SERVER_ERROR, "the request was not answered"));
    } catch (...) {
      connection_->Answer(number_, Reply());  // a 500 that needs no memory
    }
  }

  absl::string_view method() const override { return method_; }
  absl::string_view path() const override { return path_; }
  absl::string_view query() const override { return query_; }
  absl::string_view header(absl::string_view name) const override {
    for (const auto& [key, value] : headers_) {
      if (absl::EqualsIgnoreCase(key, name)) return value;
    }
    return "";
  }
  absl::Span<const Field> headers() const override { return headers_; }
  absl::string_view body() const override { return body_.view(); }
  absl::string_view peer() const override { return connection_->peer; }

  void Answer(int status, HttpHeaders headers, std::string body) override {
    if (std::exchange(answered_, true)) return;
    Reply reply = {status, std::move(headers), std::move(body), false};
    GzipIfWanted(&reply);
    connection_->Answer(number_, std::move(reply));
  }
  void OnDisconnect(absl::AnyInvocable<void()> gone) override {
    if (!answered_) connection_->OnDisconnect(number_, std::move(gone));
  }

  GrowingBytes& bytes() { return body_; }
  size_t most = SIZE_MAX;  // bytes of the body, if it says so

 private:
  absl::string_view Keep(absl::string_view text) {
    const size_t begin = text_.size();
    text_.append(text.data(), text.size());  // within what is reserved
    return absl::string_view(text_).substr(begin);
  }
  // Leaves the reply as it is when there is no memory.
  void GzipIfWanted(Reply* reply) const {
    const int64_t size = static_cast<int64_t>(reply->body.size());
    if (size < connection_->shared->min_gzip_bytes || !AcceptsGzip(header("accept-encoding"))) {
      return;
    }
    for (const auto& [name, value] : reply->headers) {
      if (absl::EqualsIgnoreCase(name, "content-encoding")) return;
    }
    StatusOr<std::string> packed =
        NoExceptions("gzip", [&]() -> StatusOr<std::string> { return Gzip(reply->body); });
    if (!packed.ok()) return;
    reply->headers.emplace_back("Content-Encoding", "gzip");
    reply->headers.emplace_back("Vary", "Accept-Encoding");
    reply->body = *std::move(packed);
  }

  const std::shared_ptr<Connection> connection_;
  const uint64_t number_;
  std::string text_;
  absl::string_view method_, path_, query_;
  std::vector<Field> headers_;
  GrowingBytes body_;
  bool answered_ = false;
};

// What the library says while a server starts, for its error.
class LibraryLog {
 public:
  static void Write(void* log, const char* format, va_list arguments) {
    LibraryLog* const self = static_cast<LibraryLog*>(log);
    MutexLock lock(&self->mu_);
    if (!self->open_) return;
    std::array<char, 512> line;
    const int size = std::vsnprintf(line.data(), line.size(), format, arguments);
    if (size > 0) {
      self->text_.append(line.data(), std::min(static_cast<size_t>(size), line.size() - 1));
    }
  }
  std::string Close() {
    MutexLock lock(&mu_);
    open_ = false;
    while (!text_.empty() && text_.back() == '\n') text_.pop_back();
    return std::exchange(text_, "");
  }

 private:
  Mutex mu_;
  bool open_ ABSL_GUARDED_BY(mu_) = true;
  std::string text_ ABSL_GUARDED_BY(mu_);
};

class Server;

// One event loop of the library, with its thread.
struct Loop {
  Server* server;
  MHD_Daemon* daemon = nullptr;
  int num_connections = 0;  // under the server's lock
};

class Server final : public HttpServer {
 public:
  Server(HttpServerOptions options, HttpHandler handler)
      : options_(std::move(options)),
        handler_(std::move(handler)),
        shared_(std::make_shared<Shared>(options_)),
        wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}
  ~Server() override { Stop(absl::ZeroDuration()); }

  Status Begin();

  const std::vector<std::string>& addresses() const override { return addresses_; }
  int port() const override { return port_; }
  int num_connections() const override {
    MutexLock lock(&mu_);
    return num_connections_;
  }
  void Stop(absl::Duration drain) override;

 private:
  // What the library calls, on the threads of the loops.
  static MHD_Result OnAccess(void* self, MHD_Connection* mhd, const char* url, const char* method,
                             const char* version, const char* data, size_t* size, void** seen);
  static void* OnTarget(void* self, const char* target, MHD_Connection* mhd);
  static void OnCompleted(void* self, MHD_Connection* mhd, void** seen,
                          MHD_RequestTerminationCode why);
  static void OnConnection(void* loop, MHD_Connection* mhd, void** context,
                           MHD_ConnectionNotificationCode what);

  Status StartLoops();
  void OnStarted(MHD_Connection* mhd, void** context);
  void OnClosed(Loop* loop, MHD_Connection* mhd, void** context);
  MHD_Result OnHead(const std::shared_ptr<Connection>& c, absl::string_view method,
                    absl::string_view version);
  MHD_Result OnBody(Connection* c, absl::string_view piece, size_t* left);
  MHD_Result OnEnd(Connection* c);
  // Sets what takes the handler's place.
  std::optional<Reply> WhyNot(Connection* c, absl::string_view version,
                              const std::vector<Field>& fields, bool* has_body, size_t* length);
  std::optional<Reply> Unpack(Request* request);
  MHD_Result Queue(Connection* c, Reply reply);

  // Of the watching thread.
  void Watch();
  bool WatchOnce(int tick_ms);
  void OnEvent(uint64_t what);
  void Accept(size_t number);
  void Refuse(int fd, int status, absl::string_view text);
  void OnLinger(int fd);
  void Tick(int64_t now_ns);
  void ListenFor(uint32_t events);

  void Wake() {
    const uint64_t one = 1;
    (void)!write(wake_.get(), &one, sizeof(one));
  }
  void Forget(Loop* loop, const std::string& host);
  std::vector<std::shared_ptr<Connection>> Connections() const;
  // Under mu_; until a condition that holds when connections go, or the time is over.
  template <typename Condition>
  void WaitUntil(absl::Duration time, Condition is_so);

  const HttpServerOptions options_;
  const HttpHandler handler_;
  const std::shared_ptr<Shared> shared_;
  const OwnedFd wake_;
  std::vector<std::string> addresses_;
  int port_ = 0;
  LibraryLog log_;
  std::vector<std::unique_ptr<Loop>> loops_;
  std::thread watcher_;
  Notification listeners_closed_;

  // Of the watching thread, once it runs.
  std::vector<HttpListener> listeners_;
  std::map<int, int64_t> lingers_;  // sockets to read from until then
  int64_t next_tick_ns_ = 0;
  bool is_paused_ = false;  // no files left: does not accept until the next tick

  Mutex stop_mu_;
  bool stopped_ ABSL_GUARDED_BY(stop_mu_) = false;

  mutable Mutex mu_;
  CondVar fewer_connections_;  // signalled while the server drains
  bool close_listeners_ ABSL_GUARDED_BY(mu_) = false;
  bool end_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t next_id_ ABSL_GUARDED_BY(mu_) = kWakeId + 1;
  int num_connections_ ABSL_GUARDED_BY(mu_) = 0;  // accepted and not closed
  absl::flat_hash_map<std::string, int> num_of_host_ ABSL_GUARDED_BY(mu_);
  // Those that their loops know.
  absl::flat_hash_map<uint64_t, std::shared_ptr<Connection>> connections_ ABSL_GUARDED_BY(mu_);
  std::vector<int> new_lingers_ ABSL_GUARDED_BY(mu_);
};

std::shared_ptr<Connection>* ContextOf(MHD_Connection* mhd) {
  const MHD_ConnectionInfo* const info =
      MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
  return info == nullptr ? nullptr
                         : static_cast<std::shared_ptr<Connection>*>(info->socket_context);
}

const sockaddr* AddressOf(MHD_Connection* mhd) {
  const MHD_ConnectionInfo* const info =
      MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
  return info == nullptr ? nullptr : info->client_addr;
}

// ---- Start and stop

Status CheckOptions(const HttpServerOptions& options) {
  if (options.addresses.empty()) {
    return InvalidArgument("HTTP server: addresses must name at least one, got none");
  }
  if (options.tls_key.empty() != options.tls_certificate.empty()) {
    return InvalidArgument("HTTP server: tls_key and tls_certificate must come together, got the ",
                           options.tls_key.empty() ? "certificate" : "key", " alone");
  }
  if (!options.client_ca.empty() && options.tls_key.empty()) {
    return InvalidArgument(
        "HTTP server: client_ca must come with tls_key and tls_certificate, got none of them");
  }
  constexpr int kMaxThreads = 1'024;
  if (options.num_threads < 0 || options.num_threads > kMaxThreads) {
    return InvalidArgument("HTTP server: num_threads must be in [0, ", kMaxThreads, "], got ",
                           options.num_threads);
  }
  constexpr int64_t kLeastHeader = 1'024, kMostHeader = int64_t{16} << 20;
  if (options.max_header_bytes < kLeastHeader || options.max_header_bytes > kMostHeader) {
    return InvalidArgument("HTTP server: max_header_bytes must be in [", kLeastHeader, ", ",
                           kMostHeader, "], got ", options.max_header_bytes);
  }
  for (const auto& [name, value] :
       {std::pair<absl::string_view, int64_t>{"max_body_bytes", options.max_body_bytes},
        {"max_inflate_ratio", options.max_inflate_ratio},
        {"max_bytes_of_bodies", options.max_bytes_of_bodies},
        {"max_connections", options.max_connections},
        {"max_connections_of_address", options.max_connections_of_address}}) {
    // Half of the largest number leaves room for sums.
    if (value < 1 || value > INT64_MAX / 2) {
      return InvalidArgument("HTTP server: ", name, " must be in [1, ", INT64_MAX / 2, "], got ",
                             value);
    }
  }
  for (const auto& [name, value] :
       {std::pair<absl::string_view, absl::Duration>{"idle_time", options.idle_time},
        {"header_time", options.header_time},
        {"body_time", options.body_time},
        {"reply_time", options.reply_time}}) {
    if (value <= absl::ZeroDuration()) {
      return InvalidArgument("HTTP server: ", name, " must be > 0, got ",
                             absl::FormatDuration(value));
    }
  }
  return absl::OkStatus();
}

Status CheckLibrary(bool needs_tls) {
  for (const auto& [feature, name] :
       {std::pair<MHD_FEATURE, absl::string_view>{MHD_FEATURE_EPOLL, "epoll"},
        {MHD_FEATURE_THREADS, "threads"},
        {MHD_FEATURE_AUTOSUPPRESS_SIGPIPE, "writes without SIGPIPE"},
        {MHD_FEATURE_TLS, "TLS"}}) {
    if (feature == MHD_FEATURE_TLS && !needs_tls) continue;
    if (MHD_is_feature_supported(feature) != MHD_YES) {
      return Unimplemented("HTTP server: libmicrohttpd must be built with ", name, ", got ",
                           MHD_get_version(), " without it");
    }
  }
  return absl::OkStatus();
}

Status Server::Begin() {
  if (!shared_->watch.open() || !wake_.open()) {
    return absl::ResourceExhaustedError("HTTP server: two more files must be free, got none");
  }
  for (const std::string& address : options_.addresses) {
    MR_ASSIGN_OR_RETURN(HttpListener listener, HttpListener::Open(address));
    addresses_.push_back(listener.address());
    if (listeners_.empty()) port_ = listener.port();
    listeners_.push_back(std::move(listener));
  }
  MR_RETURN_IF_ERROR(StartLoops());

  epoll_event event = {.events = EPOLLIN, .data = {.u64 = kWakeId}};
  int result = epoll_ctl(shared_->watch.get(), EPOLL_CTL_ADD, wake_.get(), &event);
  for (size_t i = 0; i < listeners_.size() && result == 0; ++i) {
    event.data.u64 = kListenerBit | i;
    result = epoll_ctl(shared_->watch.get(), EPOLL_CTL_ADD, listeners_[i].fd(), &event);
  }
  if (result != 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("HTTP server: its sockets must be watched, got: ", std::strerror(errno)));
  }
  watcher_ = std::thread([this] { Watch(); });
  return absl::OkStatus();
}

Status Server::StartLoops() {
  unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_USE_NO_LISTEN_SOCKET |
                   MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG;
  std::vector<MHD_OptionItem> tls;
  // The library copies nothing of it: options_ lives longer than the loops.
  const auto text = [](const std::string& pem) { return const_cast<char*>(pem.c_str()); };
  if (shared_->is_tls) {
    flags |= MHD_USE_TLS;
    tls.push_back({MHD_OPTION_HTTPS_MEM_KEY, 0, text(options_.tls_key)});
    tls.push_back({MHD_OPTION_HTTPS_MEM_CERT, 0, text(options_.tls_certificate)});
    if (!options_.client_ca.empty()) {
      tls.push_back({MHD_OPTION_HTTPS_MEM_TRUST, 0, text(options_.client_ca)});
    }
  }
  tls.push_back({MHD_OPTION_END, 0, nullptr});

  // Half of a connection's pool is its read buffer, the rest is for the list of headers.
  const size_t pool = 2 * static_cast<size_t>(options_.max_header_bytes);
  const int num_loops = options_.num_threads > 0 ? options_.num_threads : UsableCores();
  for (int i = 0; i < num_loops; ++i) {
    loops_.push_back(std::make_unique<Loop>(Loop{.server = this}));
    Loop* const loop = loops_.back().get();
    // Our own bound on connections is lower.
    loop->daemon = MHD_start_daemon(
        flags, 0, nullptr, nullptr, &OnAccess, this,            //
        MHD_OPTION_EXTERNAL_LOGGER, &LibraryLog::Write, &log_,  //
        MHD_OPTION_NOTIFY_CONNECTION, &OnConnection, loop,      //
        MHD_OPTION_NOTIFY_COMPLETED, &OnCompleted, this,        //
        MHD_OPTION_URI_LOG_CALLBACK, &OnTarget, this,           //
        MHD_OPTION_CONNECTION_LIMIT, static_cast<unsigned>(options_.max_connections) + 1,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, pool,  //
        MHD_OPTION_CONNECTION_MEMORY_INCREMENT, pool / 4, MHD_OPTION_CONNECTION_TIMEOUT,
        IdleSeconds(options_.idle_time),  //
        MHD_OPTION_ARRAY, tls.data(),     //
        MHD_OPTION_END);
    if (loop->daemon == nullptr) {
      loops_.pop_back();
      const std::string why = log_.Close();
      if (shared_->is_tls && i == 0) {
        return InvalidArgument(
            "HTTP server: key, certificate and client_ca must be PEM texts that ",
            "belong together, got: ", why);
      }
      return absl::ResourceExhaustedError(
          absl::StrCat("HTTP server: ", num_loops, " threads must start, got ", i, ": ", why));
    }
  }
  log_.Close();
  return absl::OkStatus();
}

template <typename Condition>
void Server::WaitUntil(absl::Duration time, Condition is_so) {
  const int64_t deadline = DeadlineNs(time);
  MutexLock lock(&mu_);
  while (!is_so()) {
    const int64_t left = deadline - NowNs();
    if (left <= 0) return;
    fewer_connections_.WaitWithTimeout(&mu_, absl::Nanoseconds(left));
  }
}

void Server::Stop(absl::Duration drain) {
  MutexLock one_at_a_time(&stop_mu_);
  if (std::exchange(stopped_, true)) return;
  const bool is_running = watcher_.joinable();
  shared_->draining = true;
  if (is_running) {
    {
      MutexLock lock(&mu_);
      close_listeners_ = true;
    }
    Wake();
    listeners_closed_.Wait();
    for (const auto& connection : Connections()) connection->Drain();
    WaitUntil(drain, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return num_connections_ == 0; });
    // From here on nothing suspends: a loop that ends with a suspended connection would abort.
    shared_->ending = true;
    std::vector<uint64_t> answered;
    for (const auto& connection : Connections()) {
      if (connection->End()) answered.push_back(connection->id);
    }
    WaitUntil(kFlushTime, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return std::none_of(answered.begin(), answered.end(),
                          [&](uint64_t id) { return connections_.contains(id); });
    });
  }
  for (const auto& loop : loops_) MHD_stop_daemon(loop->daemon);
  if (is_running) {
    {
      MutexLock lock(&mu_);
      end_ = true;
    }
    Wake();
    watcher_.join();
  }
  listeners_.clear();
}

std::vector<std::shared_ptr<Connection>> Server::Connections() const {
  std::vector<std::shared_ptr<Connection>> all;
  MutexLock lock(&mu_);
  all.reserve(connections_.size());
  for (const auto& [id, connection] : connections_) all.push_back(connection);
  return all;
}

// ---- Connections come and go

void Server::OnConnection(void* loop, MHD_Connection* mhd, void** context,
                          MHD_ConnectionNotificationCode what) {
  Loop* const self = static_cast<Loop*>(loop);
  try {
    if (what == MHD_CONNECTION_NOTIFY_STARTED) {
      self->server->OnStarted(mhd, context);
    } else {
      self->server->OnClosed(self, mhd, context);
    }
  } catch (...) {
    LogError("HTTP server: ", StatusOfException("a connection").message());
  }
}

// Without memory it has no context, and OnAccess ends it.
void Server::OnStarted(MHD_Connection* mhd, void** context) {
  const MHD_ConnectionInfo* const info =
      MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CONNECTION_FD);
  if (info == nullptr) return;
  uint64_t id;
  {
    MutexLock lock(&mu_);
    id = next_id_++;
  }
  auto connection = std::make_shared<Connection>(shared_, id, mhd, info->connect_fd,
                                                 SocketAddressText(AddressOf(mhd), true));
  connection->Enter(Connection::Phase::kIdle,
                    DeadlineNs(options_.idle_time + options_.header_time));
  auto kept = std::make_unique<std::shared_ptr<Connection>>(connection);
  {
    MutexLock lock(&mu_);
    connections_.emplace(id, connection);
  }
  *context = kept.release();
  // Stop did not see it.
  if (shared_->draining) connection->Drain();
}

void Server::OnClosed(Loop* loop, MHD_Connection* mhd, void** context) {
  const std::unique_ptr<std::shared_ptr<Connection>> kept(
      static_cast<std::shared_ptr<Connection>*>(*context));
  *context = nullptr;
  if (kept != nullptr) {
    Connection* const c = kept->get();
    const int lingers = c->may_be_sending ? c->Duplicate() : -1;
    c->Closed();
    c->reading.reset();
    MutexLock lock(&mu_);
    connections_.erase(c->id);
    if (lingers >= 0) {
      new_lingers_.push_back(lingers);
      Wake();
    }
  }
  Forget(loop, SocketAddressText(AddressOf(mhd), false));
}

void Server::Forget(Loop* loop, const std::string& host) {
  MutexLock lock(&mu_);
  --loop->num_connections;
  const auto of_host = num_of_host_.find(host);
  if (of_host != num_of_host_.end() && --of_host->second == 0) num_of_host_.erase(of_host);
  --num_connections_;
  if (shared_->draining) fewer_connections_.SignalAll();
}

// ---- The watching thread

void Server::Watch() {
  // Deadlines are kept to within an eighth of the shortest one.
  const absl::Duration shortest =
      std::min({options_.idle_time, options_.header_time, options_.body_time, options_.reply_time});
  const int tick_ms =
      static_cast<int>(std::clamp<int64_t>(absl::ToInt64Milliseconds(shortest / 8), 5, 250));
  bool goes_on = true;
  while (goes_on) {
    const Status status = NoExceptions("HTTP server: accepting connections", [&] {
      goes_on = WatchOnce(tick_ms);
      return absl::OkStatus();
    });
    if (!status.ok()) LogError(status.message());
  }
  for (const auto& [fd, until] : lingers_) close(fd);
  MutexLock lock(&mu_);
  for (const int fd : new_lingers_) close(fd);
  new_lingers_.clear();
}

// False at the end.
bool Server::WatchOnce(int tick_ms) {
  bool is_needed = is_paused_ || !lingers_.empty();
  bool closes = false;
  std::vector<int> lingers;
  {
    MutexLock lock(&mu_);
    if (end_) return false;
    is_needed |= num_connections_ > 0;
    closes = std::exchange(close_listeners_, false);
    lingers.swap(new_lingers_);
  }
  if (closes) {
    listeners_.clear();
    is_paused_ = false;
    listeners_closed_.Notify();
    return true;
  }
  for (const int fd : lingers) {
    epoll_event event = {.events = EPOLLIN,
                         .data = {.u64 = kLingerBit | static_cast<uint64_t>(fd)}};
    if (lingers_.size() >= kMaxLingers ||
        epoll_ctl(shared_->watch.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
      close(fd);
      continue;
    }
    lingers_.emplace(fd, NowNs() + kLingerNs);
    is_needed = true;
  }

  std::array<epoll_event, 64> events;
  const int count = epoll_wait(shared_->watch.get(), events.data(), static_cast<int>(events.size()),
                               is_needed ? tick_ms : -1);
  for (int i = 0; i < count; ++i) OnEvent(events[static_cast<size_t>(i)].data.u64);
  if (const int64_t now = NowNs(); now >= next_tick_ns_) {
    Tick(now);
    next_tick_ns_ = now + int64_t{tick_ms} * 1'000'000;
  }
  return true;
}

void Server::OnEvent(uint64_t what) {
  if (what == kWakeId) {
    uint64_t wakes;
    (void)!read(wake_.get(), &wakes, sizeof(wakes));
    return;
  }
  if ((what & kLingerBit) != 0) return OnLinger(static_cast<int>(what & ~kLingerBit));
  if ((what & kListenerBit) != 0) return Accept(static_cast<size_t>(what & ~kListenerBit));
  std::shared_ptr<Connection> connection;
  {
    MutexLock lock(&mu_);
    const auto it = connections_.find(what);
    if (it != connections_.end()) connection = it->second;
  }
  if (connection != nullptr) connection->Gone();
}

void Server::Accept(size_t number) {
  for (int i = 0; i < kMaxAcceptsAtOnce; ++i) {
    sockaddr_storage from = {};
    socklen_t size = sizeof(from);
    sockaddr* const address = reinterpret_cast<sockaddr*>(&from);
    const int fd = accept4(listeners_[number].fd(), address, &size, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        // The connection waits, and so do we: else epoll would say so again at once.
        is_paused_ = true;
        ListenFor(0);
      }
      return;
    }
    const std::string host = SocketAddressText(address, false);
    Loop* loop = nullptr;
    int refusal = 0;
    {
      MutexLock lock(&mu_);
      if (num_connections_ >= options_.max_connections) {
        refusal = MHD_HTTP_SERVICE_UNAVAILABLE;
      } else if (!host.empty() && num_of_host_[host] >= options_.max_connections_of_address) {
        refusal = MHD_HTTP_TOO_MANY_REQUESTS;
      } else {
        ++num_connections_;
        if (!host.empty()) ++num_of_host_[host];
        for (const auto& other : loops_) {
          if (loop == nullptr || other->num_connections < loop->num_connections) loop = other.get();
        }
        ++loop->num_connections;
      }
    }
    if (refusal != 0) {
      Refuse(fd, refusal, "too many connections");
      continue;
    }
    // Closes the socket if it cannot.
    if (MHD_add_connection(loop->daemon, fd, address, size) != MHD_YES) Forget(loop, host);
  }
}

void Server::Refuse(int fd, int status, absl::string_view text) {
  if (!shared_->is_tls) {
    SendRaw(fd, status, text);
    shutdown(fd, SHUT_WR);
    // The request that has come by now: unread, it would throw away the reply.
    std::array<char, 4'096> dropped;
    (void)!recv(fd, dropped.data(), dropped.size(), MSG_DONTWAIT);
  }
  close(fd);
}

void Server::OnLinger(int fd) {
  constexpr int kReadsAtOnce = 16;  // others want a turn
  static thread_local std::array<char, 64 << 10> dropped;
  for (int i = 0; i < kReadsAtOnce; ++i) {
    const ssize_t got = recv(fd, dropped.data(), dropped.size(), MSG_DONTWAIT);
    if (got > 0) continue;
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (lingers_.erase(fd) > 0) close(fd);
    return;
  }
}

void Server::ListenFor(uint32_t events) {
  for (size_t i = 0; i < listeners_.size(); ++i) {
    epoll_event event = {.events = events, .data = {.u64 = kListenerBit | i}};
    epoll_ctl(shared_->watch.get(), EPOLL_CTL_MOD, listeners_[i].fd(), &event);
  }
}

void Server::Tick(int64_t now_ns) {
  if (std::exchange(is_paused_, false)) ListenFor(EPOLLIN);
  for (auto it = lingers_.begin(); it != lingers_.end();) {
    if (it->second > now_ns) {
      ++it;
      continue;
    }
    close(it->first);
    it = lingers_.erase(it);
  }
  MutexLock lock(&mu_);
  for (const auto& [id, connection] : connections_) connection->CutIfLate(now_ns);
}

// ---- Requests

void* Server::OnTarget(void* self, const char* target, MHD_Connection* mhd) {
  std::shared_ptr<Connection>* const context = ContextOf(mhd);
  if (context == nullptr) return nullptr;
  Server* const server = static_cast<Server*>(self);
  Connection* const c = context->get();
  try {
    c->target = target;
  } catch (...) {
    c->target.clear();  // OnHead refuses it
  }
  c->refusal.reset();
  c->may_be_sending = true;
  c->Enter(Connection::Phase::kHeaders, DeadlineNs(server->options_.header_time));
  return nullptr;
}

MHD_Result Server::OnAccess(void* self, MHD_Connection* mhd, const char*, const char* method,
                            const char* version, const char* data, size_t* size, void** seen) {
  Server* const server = static_cast<Server*>(self);
  std::shared_ptr<Connection>* const context = ContextOf(mhd);
  if (context == nullptr) return MHD_NO;
  // The handler's exceptions end in OnEnd; these are of memory that we lack.
  try {
    if (*seen == nullptr) {
      *seen = context;
      return server->OnHead(*context, method, version);
    }
    if (*size > 0) return server->OnBody(context->get(), {data, *size}, size);
    return server->OnEnd(context->get());
  } catch (...) {
    return MHD_NO;
  }
}

// Or what is no character.
bool HasSpace(absl::string_view text) {
  return std::any_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_isspace(static_cast<unsigned char>(c)) ||
           absl::ascii_iscntrl(static_cast<unsigned char>(c));
  });
}

std::optional<Reply> Server::WhyNot(Connection* c, absl::string_view version,
                                    const std::vector<Field>& fields, bool* has_body,
                                    size_t* length) {
  if (shared_->ending) return ErrorReply(MHD_HTTP_SERVICE_UNAVAILABLE, "server stops");
  int num_hosts = 0, num_lengths = 0, num_codings = 0;
  absl::string_view coding;
  uint64_t content_length = 0;
  bool is_malformed = c->target.empty() || HasSpace(c->target);
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
  *has_body = num_codings > 0 || content_length > 0;
  *length = SIZE_MAX;

  const bool is_old = version == MHD_HTTP_VERSION_1_0;
  if (!options_.client_ca.empty() && !c->is_known) {
    const MHD_ConnectionInfo* const info =
        MHD_get_connection_info(c->mhd, MHD_CONNECTION_INFO_GNUTLS_SESSION);
    unsigned problems = 0;
    if (info == nullptr ||
        gnutls_certificate_verify_peers2(static_cast<gnutls_session_t>(info->tls_session),
                                         &problems) != GNUTLS_E_SUCCESS ||
        problems != 0) {
      return ErrorReply(MHD_HTTP_FORBIDDEN, "a certificate of the client is required");
    }
    c->is_known = true;
  }
  if (is_malformed) {
    return ErrorReply(MHD_HTTP_BAD_REQUEST, "target and names of headers must have no spaces");
  }
  const MHD_ConnectionInfo* const head =
      MHD_get_connection_info(c->mhd, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
  if (head != nullptr && head->header_size > static_cast<size_t>(options_.max_header_bytes)) {
    return ErrorReply(MHD_HTTP_REQUEST_HEADER_FIELDS_TOO_LARGE, "headers too large");
  }
  // Two readings of where a request ends let one client put words into another one's mouth.
  if (num_hosts > 1 || (num_hosts == 0 && !is_old)) {
    return ErrorReply(MHD_HTTP_BAD_REQUEST, "there must be one Host header");
  }
  if (num_lengths + num_codings > 1 || (num_codings > 0 && is_old)) {
    return ErrorReply(MHD_HTTP_BAD_REQUEST,
                      "there must be one Content-Length or Transfer-Encoding header");
  }
  if (num_codings > 0 && !absl::EqualsIgnoreCase(coding, "chunked")) {
    return ErrorReply(MHD_HTTP_NOT_IMPLEMENTED, "Transfer-Encoding must be chunked");
  }
  if (num_lengths > 0) {
    if (content_length > static_cast<uint64_t>(options_.max_body_bytes)) {
      return ErrorReply(MHD_HTTP_CONTENT_TOO_LARGE,
                        absl::StrCat("the body must be at most ", options_.max_body_bytes,
                                     " bytes, got ", content_length));
    }
    *length = static_cast<size_t>(content_length);
  }
  return std::nullopt;
}

MHD_Result Server::OnHead(const std::shared_ptr<Connection>& c, absl::string_view method,
                          absl::string_view version) {
  const std::vector<Field> fields = LibraryHeaders(c->mhd);
  bool has_body = false;
  size_t length = SIZE_MAX;
  std::optional<Reply> refusal = WhyNot(c.get(), version, fields, &has_body, &length);
  c->may_be_sending = has_body;
  if (refusal.has_value()) {
    refusal->close = true;
    return Queue(c.get(), *std::move(refusal));
  }
  c->reading = std::make_unique<Request>(c, method, fields);
  c->reading->most = length;
  c->Enter(Connection::Phase::kBody, DeadlineNs(options_.body_time));
  return MHD_YES;
}

MHD_Result Server::OnBody(Connection* c, absl::string_view piece, size_t* left) {
  *left = 0;
  if (c->refusal.has_value()) return MHD_YES;
  if (c->reading == nullptr) return MHD_NO;
  Request* const request = c->reading.get();
  GrowingBytes& bytes = request->bytes();
  int status = 0;
  absl::string_view text;
  if (piece.size() > static_cast<size_t>(options_.max_body_bytes) - bytes.size()) {
    status = MHD_HTTP_CONTENT_TOO_LARGE;
    text = "the body must be smaller";
  } else if ((bytes.size() == 0 && request->most != SIZE_MAX &&
              !bytes.Reserve(std::min(request->most, kFirstBodyBytes))) ||
             !bytes.Append(piece, request->most)) {
    status = MHD_HTTP_TOO_MANY_REQUESTS;
    text = "too many bytes of requests at once";
  } else {
    return MHD_YES;
  }
  c->reading.reset();
  if (shared_->is_tls) {
    // Only the library can write, and it does at the end of the body, which the deadline bounds.
    c->refusal = ErrorReply(status, text);
    c->refusal->close = true;
    return MHD_YES;
  }
  c->RefuseRaw(status, text);
  return MHD_NO;
}

std::optional<Reply> Server::Unpack(Request* request) {
  const absl::string_view coding = request->header("content-encoding");
  if (coding.empty() || absl::EqualsIgnoreCase(coding, "identity")) return std::nullopt;
  if (!absl::EqualsIgnoreCase(coding, "gzip") && !absl::EqualsIgnoreCase(coding, "x-gzip")) {
    return ErrorReply(MHD_HTTP_UNSUPPORTED_MEDIA_TYPE, "Content-Encoding must be gzip or identity");
  }
  if (request->body().empty()) return std::nullopt;
  StatusOr<GrowingBytes> plain =
      Gunzip(request->body(),
             {.max_bytes = options_.max_body_bytes, .max_ratio = options_.max_inflate_ratio},
             shared_->bodies);
  if (plain.ok()) {
    request->bytes() = *std::move(plain);
    return std::nullopt;
  }
  const int status = absl::IsInvalidArgument(plain.status()) ? MHD_HTTP_BAD_REQUEST
                     : absl::IsOutOfRange(plain.status())    ? MHD_HTTP_CONTENT_TOO_LARGE
                                                             : MHD_HTTP_TOO_MANY_REQUESTS;
  return ErrorReply(status, plain.status().message());
}

MHD_Result Server::OnEnd(Connection* c) {
  c->may_be_sending = false;
  if (c->refusal.has_value()) return Queue(c, *std::exchange(c->refusal, std::nullopt));
  if (c->reading == nullptr) {
    std::optional<Reply> reply = c->ReplyOfResumed();
    // Nothing to say yet: the library may call for a connection that is on its way out of the loop.
    return reply.has_value() ? Queue(c, *std::move(reply)) : MHD_YES;
  }
  std::unique_ptr<Request> request = std::move(c->reading);
  if (std::optional<Reply> refusal = Unpack(request.get())) return Queue(c, *std::move(refusal));
  c->Enter(Connection::Phase::kRunning, 0);
  const Status status = NoExceptions("HTTP server: the handler", [&] {
    handler_(std::move(request));
    return absl::OkStatus();
  });
  if (!status.ok()) LogError(status.message());
  std::optional<Reply> reply = c->ReplyOrSuspend();
  return reply.has_value() ? Queue(c, *std::move(reply)) : MHD_YES;
}

MHD_Result Server::Queue(Connection* c, Reply reply) {
  constexpr int kLeastStatus = 200, kMostStatus = 599;
  if (reply.status < kLeastStatus || reply.status > kMostStatus) {
    reply = ErrorReply(MHD_HTTP_INTERNAL_SERVER_ERROR, "the reply has no status");
  }
  if (reply.status == MHD_HTTP_NO_CONTENT || reply.status == MHD_HTTP_NOT_MODIFIED) {
    reply.body.clear();
  }
  // The library frees the body once it is sent, or the connection is gone.
  auto body = std::make_unique<std::string>(std::move(reply.body));
  MHD_Response* const response = MHD_create_response_from_buffer_with_free_callback_cls(
      body->size(), body->data(), [](void* sent) { delete static_cast<std::string*>(sent); },
      body.get());
  if (response == nullptr) return MHD_NO;
  (void)body.release();
  const std::unique_ptr<MHD_Response, void (*)(MHD_Response*)> owned(response,
                                                                     MHD_destroy_response);
  for (const auto& [name, value] : reply.headers) {
    if (absl::EqualsIgnoreCase(name, "content-length")) continue;
    if (MHD_add_response_header(response, name.c_str(), value.c_str()) != MHD_YES) {
      return Queue(c, ErrorReply(MHD_HTTP_INTERNAL_SERVER_ERROR,
                                 "a header of the reply must have no line break"));
    }
  }
  if (reply.close || shared_->draining) {
    MHD_add_response_header(response, "Connection", "close");
  }
  c->Answered(DeadlineNs(options_.reply_time));
  return MHD_queue_response(c->mhd, static_cast<unsigned>(reply.status), response);
}

void Server::OnCompleted(void* self, MHD_Connection* mhd, void** seen, MHD_RequestTerminationCode) {
  *seen = nullptr;
  std::shared_ptr<Connection>* const context = ContextOf(mhd);
  if (context == nullptr) return;
  const HttpServerOptions& options = static_cast<Server*>(self)->options_;
  Connection* const c = context->get();
  c->reading.reset();
  c->Completed(DeadlineNs(options.idle_time + options.header_time));
}

}  // namespace

StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(HttpServerOptions options,
                                                        HttpHandler handler) {
  return NoExceptions("HTTP server", [&]() -> StatusOr<std::unique_ptr<HttpServer>> {
    MR_RETURN_IF_ERROR(CheckOptions(options));
    MR_RETURN_IF_ERROR(CheckLibrary(!options.tls_key.empty()));
    auto server = std::make_unique<Server>(std::move(options), std::move(handler));
    MR_RETURN_IF_ERROR(server->Begin());
    return std::unique_ptr<HttpServer>(std::move(server));
  });
}

}  // namespace millrace
