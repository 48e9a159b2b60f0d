// SPDX-License-Identifier: Apache-2.0
#include "net/http/http_server.h"

#include <gnutls/gnutls.h>
#include <microhttpd.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <map>
#include <optional>
#include <thread>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/byte_budget.h"
#include "core/cores.h"
#include "core/exceptions.h"
#include "core/logging.h"
#include "core/mutex.h"
#include "core/notification.h"
#include "core/owned_fd.h"
#include "net/http/http_connection.h"
#include "net/http/http_listener.h"
#include "net/http/received_request.h"

namespace millrace {
namespace {

// What epoll says beside the id of a connection, which is smaller than both bits.
constexpr uint64_t kListenerBit = uint64_t{1} << 62;
constexpr uint64_t kLingerBit = uint64_t{1} << 63;
constexpr uint64_t kWakeId = 0;

constexpr int kMaxAcceptsAtOnce = 64;
// A client that is refused may still be sending. Its bytes are read and dropped so long: an end of
// the connection with unread bytes would throw away the reply, too (RFC 9112, 9.6).
constexpr int64_t kLingerNs = 2'000'000'000;
constexpr size_t kMaxLingers = 256;
// Of the listening socket; more may come while it is emptied.
constexpr int kMaxAcceptTurnsAtStop = 64;
// A server that stops waits for connections to go.
constexpr int kDrainTickMs = 10;
// How long the replies of a server that stops may take to get out.
constexpr absl::Duration kFlushTime = absl::Seconds(5);

// The versions that gRPC's port speaks; GnuTLS by itself still takes 1.0 and 1.1.
constexpr char kTlsPriorities[] = "NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2";

// The library knows whole seconds.
unsigned IdleSeconds(absl::Duration time) {
  constexpr int64_t kYear = int64_t{24} * 3'600 * 365;
  const int64_t seconds = absl::ToInt64Seconds(absl::Ceil(time, absl::Seconds(1)));
  return static_cast<unsigned>(std::clamp<int64_t>(seconds, 1, kYear));
}

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
        shared_(std::make_shared<HttpShared>(options_)),
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
  MHD_Result OnHead(const std::shared_ptr<HttpConnection>& c, absl::string_view method,
                    absl::string_view version);
  MHD_Result OnBody(HttpConnection* c, absl::string_view piece, size_t* left);
  MHD_Result OnEnd(HttpConnection* c);
  std::optional<HttpReply> WhyNot(HttpConnection* c, absl::string_view version,
                                  const std::vector<HttpField>& fields, HttpBodyLength* length);
  MHD_Result Queue(HttpConnection* c, HttpReply reply);

  // Of the watching thread.
  void Watch();
  bool WatchOnce(int tick_ms);
  void OnEvent(uint64_t what);
  bool Accept(size_t number);
  void Refuse(int fd, int status, absl::string_view text);
  void OnLinger(int fd);
  void CloseLinger(int fd);
  void Tick(int64_t now_ns);
  void ListenFor(uint32_t events);

  void Wake() {
    const uint64_t one = 1;
    (void)!write(wake_.get(), &one, sizeof(one));
  }
  void Forget(Loop* loop, const std::string& host);
  std::vector<std::shared_ptr<HttpConnection>> Connections() const;
  // Under mu_; until a condition that holds when connections go, or the deadline.
  template <typename Condition>
  void WaitUntil(int64_t deadline_ns, Condition is_so);

  const HttpServerOptions options_;
  const HttpHandler handler_;
  const std::shared_ptr<HttpShared> shared_;
  const OwnedFd wake_;
  std::vector<std::string> addresses_;
  int port_ = 0;
  LibraryLog log_;
  std::vector<std::unique_ptr<Loop>> loops_;
  std::thread watcher_;
  Notification listeners_closed_;

  // Of the watching thread, once it runs.
  std::vector<HttpListener> listeners_;
  std::map<int, int64_t> lingers_;  // sockets to read from until then; see num_lingers_
  int64_t next_tick_ns_ = 0;
  bool is_paused_ = false;  // no files left: does not accept until the next tick

  Mutex stop_mu_;
  bool stopped_ ABSL_GUARDED_BY(stop_mu_) = false;

  mutable Mutex mu_;
  CondVar fewer_connections_;  // signalled while the server drains
  bool closes_idle_ ABSL_GUARDED_BY(mu_) = false;
  bool close_listeners_ ABSL_GUARDED_BY(mu_) = false;
  bool end_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t next_id_ ABSL_GUARDED_BY(mu_) = kWakeId + 1;
  int num_connections_ ABSL_GUARDED_BY(mu_) = 0;  // accepted and not closed
  absl::flat_hash_map<std::string, int> num_of_host_ ABSL_GUARDED_BY(mu_);
  // Those that their loops know.
  absl::flat_hash_map<uint64_t, std::shared_ptr<HttpConnection>> connections_ ABSL_GUARDED_BY(mu_);
  std::vector<int> new_lingers_ ABSL_GUARDED_BY(mu_);
  size_t num_lingers_ ABSL_GUARDED_BY(mu_) = 0;  // of lingers_ and new_lingers_
};

std::shared_ptr<HttpConnection>* ContextOf(MHD_Connection* mhd) {
  const MHD_ConnectionInfo* const info =
      MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
  return info == nullptr ? nullptr
                         : static_cast<std::shared_ptr<HttpConnection>*>(info->socket_context);
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
        {"max_bytes_of_replies", options.max_bytes_of_replies},
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
  for (const auto& [name, value] :
       {std::pair<absl::string_view, absl::Duration>{"linger_time", options.linger_time},
        {"close_time", options.close_time}}) {
    if (value < absl::ZeroDuration()) {
      return InvalidArgument("HTTP server: ", name, " must be >= 0, got ",
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
    tls.push_back({MHD_OPTION_HTTPS_PRIORITIES, 0, const_cast<char*>(kTlsPriorities)});
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
void Server::WaitUntil(int64_t deadline_ns, Condition is_so) {
  MutexLock lock(&mu_);
  while (!is_so()) {
    const int64_t left = deadline_ns - SteadyNs();
    if (left <= 0) return;
    fewer_connections_.WaitWithTimeout(&mu_, absl::Nanoseconds(left));
  }
}

void Server::Stop(absl::Duration drain) {
  MutexLock one_at_a_time(&stop_mu_);
  if (std::exchange(stopped_, true)) return;
  const bool is_running = watcher_.joinable();
  const int64_t deadline = DeadlineNs(drain);
  shared_->draining = true;
  if (is_running) {
    {
      MutexLock lock(&mu_);
      close_listeners_ = true;
    }
    Wake();
    listeners_closed_.Wait();
    const auto all_gone = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return num_connections_ == 0 && num_lingers_ == 0;
    };
    WaitUntil(std::min(deadline, DeadlineNs(options_.linger_time)), all_gone);
    {
      MutexLock lock(&mu_);
      closes_idle_ = true;
    }
    WaitUntil(deadline, all_gone);
    // From here on nothing suspends: a loop that ends with a suspended connection would abort.
    shared_->ending = true;
    std::vector<uint64_t> answered;
    for (const auto& connection : Connections()) {
      if (connection->End()) answered.push_back(connection->id);
    }
    WaitUntil(DeadlineNs(kFlushTime), [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
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

std::vector<std::shared_ptr<HttpConnection>> Server::Connections() const {
  std::vector<std::shared_ptr<HttpConnection>> all;
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
  auto connection = std::make_shared<HttpConnection>(shared_, id, mhd, info->connect_fd,
                                                     SocketAddressText(AddressOf(mhd), true));
  connection->Enter(HttpConnection::Phase::kIdle,
                    DeadlineNs(options_.idle_time + options_.header_time));
  auto kept = std::make_unique<std::shared_ptr<HttpConnection>>(connection);
  {
    MutexLock lock(&mu_);
    connections_.emplace(id, connection);
  }
  *context = kept.release();
}

void Server::OnClosed(Loop* loop, MHD_Connection* mhd, void** context) {
  const std::unique_ptr<std::shared_ptr<HttpConnection>> kept(
      static_cast<std::shared_ptr<HttpConnection>*>(*context));
  *context = nullptr;
  if (kept != nullptr) {
    HttpConnection* const c = kept->get();
    const int lingers = c->may_be_sending ? c->DuplicateSocket() : -1;
    c->Closed();
    c->reading.reset();
    MutexLock lock(&mu_);
    connections_.erase(c->id);
    if (lingers >= 0) {
      try {
        new_lingers_.push_back(lingers);
        ++num_lingers_;
        Wake();
      } catch (const std::bad_alloc&) {
        close(lingers);  // the client may see a reset
      }
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
    closes = close_listeners_;
    if (!closes) lingers.swap(new_lingers_);
  }
  if (shared_->draining) tick_ms = std::min(tick_ms, kDrainTickMs);
  if (closes) {
    // Clients that have connected already are served: a close of the listener resets them.
    for (size_t i = 0; i < listeners_.size(); ++i) {
      for (int turn = 0; turn < kMaxAcceptTurnsAtStop && Accept(i); ++turn) {
      }
    }
    listeners_.clear();
    is_paused_ = false;
    next_tick_ns_ = 0;  // that was of a server with time
    {
      // Not before: what throws above is done again.
      MutexLock lock(&mu_);
      close_listeners_ = false;
    }
    listeners_closed_.Notify();
    return true;
  }
  for (const int fd : lingers) {
    epoll_event event = {.events = EPOLLIN,
                         .data = {.u64 = kLingerBit | static_cast<uint64_t>(fd)}};
    if (lingers_.size() >= kMaxLingers ||
        epoll_ctl(shared_->watch.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
      CloseLinger(fd);
      continue;
    }
    lingers_.emplace(fd, SteadyNs() + kLingerNs);
    is_needed = true;
  }

  std::array<epoll_event, 64> events;
  const int count = epoll_wait(shared_->watch.get(), events.data(), static_cast<int>(events.size()),
                               is_needed ? tick_ms : -1);
  for (int i = 0; i < count; ++i) OnEvent(events[static_cast<size_t>(i)].data.u64);
  if (const int64_t now = SteadyNs(); now >= next_tick_ns_) {
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
  if ((what & kListenerBit) != 0) {
    Accept(static_cast<size_t>(what & ~kListenerBit));
    return;
  }
  std::shared_ptr<HttpConnection> connection;
  {
    MutexLock lock(&mu_);
    const auto it = connections_.find(what);
    if (it != connections_.end()) connection = it->second;
  }
  if (connection != nullptr) connection->Gone();
}

// True when more may wait.
bool Server::Accept(size_t number) {
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
      return false;
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
  return true;
}

void Server::Refuse(int fd, int status, absl::string_view text) {
  if (!shared_->is_tls) {
    SendRawReply(fd, status, text);
    shutdown(fd, SHUT_WR);
    // The request that has come by now: unread, it would throw away the reply.
    std::array<char, 4'096> dropped;
    (void)!recv(fd, dropped.data(), dropped.size(), MSG_DONTWAIT);
  }
  close(fd);
}

// The socket may have another descriptor, of the library: closing this one does not take it out of
// the watch, where its number would soon mean another socket.
void Server::CloseLinger(int fd) {
  epoll_ctl(shared_->watch.get(), EPOLL_CTL_DEL, fd, nullptr);
  close(fd);
  MutexLock lock(&mu_);
  --num_lingers_;
  if (shared_->draining) fewer_connections_.SignalAll();
}

void Server::OnLinger(int fd) {
  constexpr int kReadsAtOnce = 16;  // others want a turn
  static thread_local std::array<char, 64 << 10> dropped;
  if (!lingers_.contains(fd)) return;
  for (int i = 0; i < kReadsAtOnce; ++i) {
    const ssize_t got = recv(fd, dropped.data(), dropped.size(), MSG_DONTWAIT);
    if (got > 0) continue;
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    lingers_.erase(fd);
    CloseLinger(fd);
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
    CloseLinger(it->first);
    it = lingers_.erase(it);
  }
  MutexLock lock(&mu_);
  for (const auto& [id, connection] : connections_) {
    if (closes_idle_) connection->CloseIfIdle();
    connection->CutIfLate(now_ns);
  }
}

// ---- Requests

void* Server::OnTarget(void* self, const char* target, MHD_Connection* mhd) {
  std::shared_ptr<HttpConnection>* const context = ContextOf(mhd);
  if (context == nullptr) return nullptr;
  Server* const server = static_cast<Server*>(self);
  HttpConnection* const c = context->get();
  try {
    c->target = target;
  } catch (...) {
    c->target.clear();  // OnHead refuses it
  }
  c->refusal.reset();
  c->may_be_sending = true;
  c->Enter(HttpConnection::Phase::kHeaders, DeadlineNs(server->options_.header_time));
  return nullptr;
}

MHD_Result Server::OnAccess(void* self, MHD_Connection* mhd, const char*, const char* method,
                            const char* version, const char* data, size_t* size, void** seen) {
  Server* const server = static_cast<Server*>(self);
  std::shared_ptr<HttpConnection>* const context = ContextOf(mhd);
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

// The reply that takes the handler's place.
std::optional<HttpReply> Server::WhyNot(HttpConnection* c, absl::string_view version,
                                        const std::vector<HttpField>& fields,
                                        HttpBodyLength* length) {
  std::optional<HttpReply> refusal =
      CheckHttpHead(c->target, version, fields, options_.max_body_bytes, length);
  if (shared_->ending) return HttpErrorReply(MHD_HTTP_SERVICE_UNAVAILABLE, "server stops");
  if (!options_.client_ca.empty() && !c->is_known) {
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
  if (head != nullptr && head->header_size > static_cast<size_t>(options_.max_header_bytes)) {
    return HttpErrorReply(MHD_HTTP_REQUEST_HEADER_FIELDS_TOO_LARGE, "headers too large");
  }
  return refusal;
}

MHD_Result Server::OnHead(const std::shared_ptr<HttpConnection>& c, absl::string_view method,
                          absl::string_view version) {
  if (c->is_half_closed()) return MHD_NO;
  const std::vector<HttpField> fields = LibraryHeaders(c->mhd);
  HttpBodyLength length;
  std::optional<HttpReply> refusal = WhyNot(c.get(), version, fields, &length);
  c->may_be_sending = length.has_body;
  if (refusal.has_value()) {
    refusal->close = true;
    return Queue(c.get(), *std::move(refusal));
  }
  c->reading = std::make_unique<ReceivedRequest>(c, method, fields, length.bytes);
  c->Enter(HttpConnection::Phase::kBody, DeadlineNs(options_.body_time));
  return MHD_YES;
}

MHD_Result Server::OnBody(HttpConnection* c, absl::string_view piece, size_t* left) {
  *left = 0;
  if (c->refusal.has_value()) return MHD_YES;
  if (c->reading == nullptr) return MHD_NO;
  int status = MHD_HTTP_CONTENT_TOO_LARGE;
  absl::string_view text = "the body must be smaller";
  if (piece.size() <= static_cast<size_t>(options_.max_body_bytes) - c->reading->body_size()) {
    if (c->reading->AppendToBody(piece)) return MHD_YES;
    status = MHD_HTTP_TOO_MANY_REQUESTS;
    text = "too many bytes of requests at once";
  }
  c->reading.reset();
  if (shared_->is_tls) {
    // Only the library can write, and it does at the end of the body, which the deadline bounds.
    c->refusal = HttpErrorReply(status, text);
    c->refusal->close = true;
    return MHD_YES;
  }
  c->RefuseRaw(status, text);
  return MHD_NO;
}

MHD_Result Server::OnEnd(HttpConnection* c) {
  c->may_be_sending = false;
  if (c->refusal.has_value()) return Queue(c, *std::exchange(c->refusal, std::nullopt));
  if (c->reading == nullptr) {
    std::optional<HttpReply> reply = c->ReplyOfResumed();
    // Nothing to say yet: the library may call for a connection that is on its way out of the loop.
    return reply.has_value() ? Queue(c, *std::move(reply)) : MHD_YES;
  }
  std::unique_ptr<ReceivedRequest> request = std::move(c->reading);
  std::optional<HttpReply> refusal = request->Decode(options_.max_gzip_bytes_on_loop);
  if (refusal.has_value()) return Queue(c, *std::move(refusal));
  c->Enter(HttpConnection::Phase::kRunning, 0);
  const Status status = NoExceptions("HTTP server: the handler", [&] {
    handler_(std::move(request));
    return absl::OkStatus();
  });
  if (!status.ok()) LogError(status.message());
  std::optional<HttpReply> reply = c->ReplyOrSuspend();
  return reply.has_value() ? Queue(c, *std::move(reply)) : MHD_YES;
}

MHD_Result Server::Queue(HttpConnection* c, HttpReply reply) {
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
  if (response == nullptr) return MHD_NO;
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
  c->Answered(DeadlineNs(options_.reply_time));
  return MHD_queue_response(c->mhd, static_cast<unsigned>(reply.status), response);
}

void Server::OnCompleted(void* self, MHD_Connection* mhd, void** seen, MHD_RequestTerminationCode) {
  *seen = nullptr;
  std::shared_ptr<HttpConnection>* const context = ContextOf(mhd);
  if (context == nullptr) return;
  const HttpServerOptions& options = static_cast<Server*>(self)->options_;
  HttpConnection* const c = context->get();
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
