// SPDX-License-Identifier: Apache-2.0
#include "net/http/http_watch.h"

#include <microhttpd.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/exceptions.h"
#include "core/logging.h"

namespace millrace {
namespace {

constexpr int kMaxAcceptsAtOnce = 64;
// Of the listening socket; more may come while it is emptied.
constexpr int kMaxAcceptTurnsAtStop = 64;
// A server that stops waits for connections to go.
constexpr int kDrainTickMs = 10;

}  // namespace

HttpWatch::HttpWatch(const HttpServerOptions* options, std::shared_ptr<HttpShared> shared,
                     HttpConnections* connections, HttpLingers* lingers, HttpLoops* loops)
    : options_(options),
      shared_(std::move(shared)),
      connections_(connections),
      lingers_(lingers),
      loops_(loops) {}

Status HttpWatch::Begin(std::vector<HttpListener> listeners) {
  listeners_ = std::move(listeners);
  epoll_event event = {.events = EPOLLIN, .data = {.u64 = HttpShared::kWakeId}};
  int result = epoll_ctl(shared_->watch.get(), EPOLL_CTL_ADD, shared_->wake.get(), &event);
  for (size_t i = 0; i < listeners_.size() && result == 0; ++i) {
    event.data.u64 = HttpShared::kListenerBit | i;
    result = epoll_ctl(shared_->watch.get(), EPOLL_CTL_ADD, listeners_[i].fd(), &event);
  }
  if (result != 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("HTTP server: its sockets must be watched, got: ", std::strerror(errno)));
  }
  thread_ = std::thread([this] { Run(); });
  return absl::OkStatus();
}

void HttpWatch::CloseListeners() {
  {
    MutexLock lock(&mu_);
    close_listeners_ = true;
  }
  shared_->Wake();
  listeners_closed_.Wait();
}

void HttpWatch::End() {
  if (is_running()) {
    {
      MutexLock lock(&mu_);
      end_ = true;
    }
    shared_->Wake();
    thread_.join();
  }
  listeners_.clear();
}

// ---- Of the thread

void HttpWatch::Run() {
  // Deadlines are kept to within an eighth of the shortest one.
  const absl::Duration shortest = std::min(
      {options_->idle_time, options_->header_time, options_->body_time, options_->reply_time});
  const int tick_ms =
      static_cast<int>(std::clamp<int64_t>(absl::ToInt64Milliseconds(shortest / 8), 5, 250));
  bool goes_on = true;
  while (goes_on) {
    const Status status = NoExceptions("HTTP server: accepting connections", [&] {
      goes_on = RunOnce(tick_ms);
      return absl::OkStatus();
    });
    if (!status.ok()) LogError(status.message());
  }
  lingers_->CloseAll();
}

// False at the end.
bool HttpWatch::RunOnce(int tick_ms) {
  bool closes = false;
  {
    MutexLock lock(&mu_);
    if (end_) return false;
    closes = close_listeners_;
  }
  if (closes) {
    AcceptTheLast();
    return true;
  }
  lingers_->WatchNewOnes();
  if (shared_->draining) tick_ms = std::min(tick_ms, kDrainTickMs);
  const bool is_needed = is_paused_ || !lingers_->empty() || connections_->num() > 0;
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

void HttpWatch::AcceptTheLast() {
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
}

void HttpWatch::OnEvent(uint64_t what) {
  if (what == HttpShared::kWakeId) return shared_->TakeWakes();
  if ((what & HttpShared::kLingerBit) != 0) {
    return lingers_->OnReadable(static_cast<int>(what & ~HttpShared::kLingerBit));
  }
  if ((what & HttpShared::kListenerBit) != 0) {
    Accept(static_cast<size_t>(what & ~HttpShared::kListenerBit));
    return;
  }
  const std::shared_ptr<HttpConnection> connection = connections_->Find(what);
  if (connection != nullptr) connection->Gone();
}

// True when more may wait.
bool HttpWatch::Accept(size_t number) {
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
    size_t loop = 0;
    if (const int refusal = connections_->Admit(host, &loop); refusal != 0) {
      Refuse(fd, refusal, "too many connections");
      continue;
    }
    if (!loops_->Add(loop, fd, address, size)) connections_->Leave(loop, host);
  }
  return true;
}

void HttpWatch::Refuse(int fd, int status, absl::string_view text) const {
  if (!shared_->is_tls) {
    SendRawReply(fd, status, text);
    shutdown(fd, SHUT_WR);
    // The request that has come by now: unread, it would throw away the reply.
    std::array<char, 4'096> dropped;
    (void)!recv(fd, dropped.data(), dropped.size(), MSG_DONTWAIT);
  }
  close(fd);
}

void HttpWatch::ListenFor(uint32_t events) {
  for (size_t i = 0; i < listeners_.size(); ++i) {
    epoll_event event = {.events = events, .data = {.u64 = HttpShared::kListenerBit | i}};
    epoll_ctl(shared_->watch.get(), EPOLL_CTL_MOD, listeners_[i].fd(), &event);
  }
}

void HttpWatch::Tick(int64_t now_ns) {
  if (std::exchange(is_paused_, false)) ListenFor(EPOLLIN);
  lingers_->CloseOldOnes(now_ns);
  connections_->Tick(now_ns);
}

}  // namespace millrace
