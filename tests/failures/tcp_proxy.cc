// SPDX-License-Identifier: Apache-2.0
#include "tests/failures/tcp_proxy.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <deque>
#include <list>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/mutex.h"

namespace millrace {
namespace {

constexpr int kBacklog = 64;
// What one way of a connection keeps on its way; more stays with the sender.
constexpr size_t kMaxQueued = 1 << 20;

Status SystemError(absl::string_view what, int error) {
  return absl::UnknownError(absl::StrCat("TcpProxy: ", what, ": ", strerror(error)));
}

sockaddr_in Loopback(int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

void CloseWithReset(int fd) {
  const linger reset = {.l_onoff = 1, .l_linger = 0};
  setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
  close(fd);
}

void SendAtOnce(int fd) {
  const int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

// Bytes of one way of one connection.
struct Stream {
  struct Chunk {
    absl::Time due;
    std::string bytes;
  };
  int from = -1, to = -1;
  std::deque<Chunk> queue = {};
  size_t queued = 0;
  bool ended = false;  // the sender sends no more
  bool told = false;   // the receiver knows
  bool lossy = false;  // bytes were swallowed
};

struct Connection {
  int client, task;
  bool connecting = true;  // to the task
  bool broken = false;
  std::array<Stream, 2> streams;  // by Way
};

class PollingProxy : public TcpProxy {
 public:
  PollingProxy(int listener, int wake, int port, int target_port)
      : listener_(listener), wake_(wake), port_(port), target_port_(target_port) {
    thread_ = std::thread([this] { Serve(); });
  }
  ~PollingProxy() override {
    {
      MutexLock lock(&mu_);
      stopped_ = true;
    }
    Wake();
    thread_.join();
    close(listener_);
    close(wake_);
  }

  int port() const override { return port_; }
  void SetTarget(int target_port) override {
    MutexLock lock(&mu_);
    target_port_ = target_port;
  }
  void Set(Way way, Flow flow) override {
    {
      MutexLock lock(&mu_);
      flow_[Index(way)] = flow;
    }
    Wake();
  }
  void Delay(absl::Duration delay) override {
    MutexLock lock(&mu_);
    delay_ = delay;
  }
  void Cut() override {
    {
      MutexLock lock(&mu_);
      cut_ = true;
    }
    Wake();
  }
  void Heal() override {
    {
      MutexLock lock(&mu_);
      flow_ = {Flow::kPasses, Flow::kPasses};
      delay_ = absl::ZeroDuration();
    }
    Wake();
  }
  int64_t bytes(Way way) const override {
    MutexLock lock(&mu_);
    return bytes_[Index(way)];
  }
  int64_t connections() const override {
    MutexLock lock(&mu_);
    return accepted_;
  }

 private:
  static size_t Index(Way way) { return way == Way::kIn ? 0 : 1; }

  void Wake() {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(wake_, &one, sizeof one);
  }

  void Serve() {
    std::vector<pollfd> fds;
    while (true) {
      fds.assign({{wake_, POLLIN, 0}});
      int timeout_ms = -1;
      {
        MutexLock lock(&mu_);
        if (stopped_) break;
        if (std::exchange(cut_, false)) {
          for (Connection& c : connections_) c.broken = true;
        }
        Reap();
        // A connection is made by a packet to the task.
        fds.push_back({flow_[0] == Flow::kHeld ? -1 : listener_, POLLIN, 0});
        const absl::Time now = absl::Now();
        for (Connection& c : connections_) {
          fds.push_back({c.client, Interest(c, 1, 0, now, &timeout_ms), 0});
          fds.push_back(
              {c.task,
               static_cast<short>(c.connecting ? POLLOUT : Interest(c, 0, 1, now, &timeout_ms)),
               0});
          // Nothing to do with it now: poll would report a hang-up again and again.
          for (size_t i = fds.size() - 2; i < fds.size(); ++i) {
            if (fds[i].events == 0) fds[i].fd = -1;
          }
        }
      }
      if (poll(fds.data(), fds.size(), timeout_ms) < 0 && errno != EINTR) break;
      uint64_t count;
      [[maybe_unused]] const ssize_t n = read(wake_, &count, sizeof count);
      MutexLock lock(&mu_);
      const absl::Time now = absl::Now();
      for (Connection& c : connections_) {
        if (c.connecting) FinishConnect(c);
        for (size_t way = 0; way < 2; ++way) Move(c, way, now);
      }
      if (fds[1].revents != 0) Accept();
    }
    MutexLock lock(&mu_);
    for (Connection& c : connections_) c.broken = true;
    Reap();
  }

  // What to wait for at the end that stream `in` writes to and stream `out` reads from.
  short Interest(const Connection& c, size_t in, size_t out, absl::Time now, int* timeout_ms)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    int events = 0;
    const Stream& read = c.streams[out];
    if (flow_[out] != Flow::kHeld && !read.ended && read.queued < kMaxQueued) events |= POLLIN;
    const Stream& write = c.streams[in];
    if (!c.connecting && flow_[in] == Flow::kPasses && !write.queue.empty()) {
      const absl::Duration wait = write.queue.front().due - now;
      if (wait <= absl::ZeroDuration()) {
        events |= POLLOUT;
      } else {
        const int ms = static_cast<int>(absl::ToInt64Milliseconds(wait)) + 1;
        *timeout_ms = *timeout_ms < 0 ? ms : std::min(*timeout_ms, ms);
      }
    }
    return static_cast<short>(events);
  }

  void Accept() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const int client = accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (client < 0) return;
    const int task = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (task < 0) return CloseWithReset(client);
    SendAtOnce(client);
    SendAtOnce(task);
    const sockaddr_in address = Loopback(target_port_);
    if (connect(task, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 &&
        errno != EINPROGRESS) {
      close(task);
      return CloseWithReset(client);
    }
    ++accepted_;
    connections_.push_back(
        {.client = client,
         .task = task,
         .streams = {Stream{.from = client, .to = task}, Stream{.from = task, .to = client}}});
  }

  void FinishConnect(Connection& c) {
    pollfd fd = {c.task, POLLOUT, 0};
    if (poll(&fd, 1, 0) <= 0) return;
    int error = 0;
    socklen_t size = sizeof error;
    getsockopt(c.task, SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) c.broken = true;
    c.connecting = false;
  }

  void Move(Connection& c, size_t way, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    Stream& s = c.streams[way];
    if (c.broken || flow_[way] == Flow::kHeld) return;
    const bool passes = flow_[way] == Flow::kPasses;
    if (passes && s.lossy) {
      c.broken = true;
      return;
    }
    if (!(c.connecting && way == 1)) Receive(c, s, passes, now);
    if (!passes) {
      // What was on its way is lost as well.
      s.lossy = s.lossy || !s.queue.empty();
      s.queue.clear();
      s.queued = 0;
      return;
    }
    if (c.connecting) return;
    while (!c.broken && !s.queue.empty() && s.queue.front().due <= now) {
      std::string& bytes = s.queue.front().bytes;
      const ssize_t n = send(s.to, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n < 0) {
        c.broken = errno != EAGAIN && errno != EINTR;
        return;
      }
      bytes_[way] += n;
      s.queued -= static_cast<size_t>(n);
      bytes.erase(0, static_cast<size_t>(n));
      if (bytes.empty()) s.queue.pop_front();
    }
    if (s.ended && s.queue.empty() && !std::exchange(s.told, true)) shutdown(s.to, SHUT_WR);
  }

  void Receive(Connection& c, Stream& s, bool passes, absl::Time now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    char buffer[16384];
    while (!s.ended && s.queued < kMaxQueued) {
      const ssize_t n = recv(s.from, buffer, sizeof buffer, 0);
      if (n < 0) {
        if (errno != EAGAIN && errno != EINTR) c.broken = true;
        return;
      }
      if (n == 0) {
        s.ended = true;
        s.lossy = s.lossy || !passes;  // nobody heard of the end
        return;
      }
      if (!passes) {
        s.lossy = true;
        continue;
      }
      s.queue.push_back({now + delay_, std::string(buffer, static_cast<size_t>(n))});
      s.queued += static_cast<size_t>(n);
    }
  }

  // Ends connections that are broken or over.
  void Reap() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    connections_.remove_if([](const Connection& c) {
      if (c.broken) {
        CloseWithReset(c.client);
        CloseWithReset(c.task);
        return true;
      }
      if (!c.streams[0].told || !c.streams[1].told) return false;
      close(c.client);
      close(c.task);
      return true;
    });
  }

  const int listener_, wake_, port_;
  mutable Mutex mu_;
  int target_port_ ABSL_GUARDED_BY(mu_);
  std::array<Flow, 2> flow_ ABSL_GUARDED_BY(mu_) = {Flow::kPasses, Flow::kPasses};
  absl::Duration delay_ ABSL_GUARDED_BY(mu_) = absl::ZeroDuration();
  bool cut_ ABSL_GUARDED_BY(mu_) = false;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  std::array<int64_t, 2> bytes_ ABSL_GUARDED_BY(mu_) = {0, 0};
  int64_t accepted_ ABSL_GUARDED_BY(mu_) = 0;
  std::list<Connection> connections_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

}  // namespace

StatusOr<std::unique_ptr<TcpProxy>> TcpProxy::Start(int target_port) {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (listener < 0) return SystemError("socket", errno);
  sockaddr_in address = Loopback(0);
  socklen_t size = sizeof address;
  if (bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      listen(listener, kBacklog) != 0 ||
      getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    const int error = errno;
    close(listener);
    return SystemError("a port to listen on", error);
  }
  const int wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake < 0) {
    const int error = errno;
    close(listener);
    return SystemError("eventfd", error);
  }
  return std::unique_ptr<TcpProxy>(
      std::make_unique<PollingProxy>(listener, wake, ntohs(address.sin_port), target_port));
}

}  // namespace millrace
