// SPDX-License-Identifier: Apache-2.0
#include "core/termination.h"

#include <signal.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>

#include "core/mutex.h"

namespace millrace {
namespace {

// What the handler touches: lock-free, so that it may. Release by the handler, acquire by readers.
std::atomic<int> first_signal{0};
std::atomic<int64_t> first_time_ms{0};
std::atomic<int> event_fd{-1};  // made once, for good: a handler may still be writing to it
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<int64_t>::is_always_lock_free);

// One request that comes twice: timeout(1) signals its child and then the child's group, a service
// manager every process and then the launcher passes it on.
constexpr int64_t kSameRequestMs = 500;

int64_t NowMs() {
  timespec now = {};
  ::clock_gettime(CLOCK_MONOTONIC, &now);  // may be called in a handler
  return int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1'000'000;
}

constexpr std::array<int, 2> kSignals = {SIGTERM, SIGINT};

struct Handlers {
  Mutex mu;
  int requests ABSL_GUARDED_BY(mu) = 0;  // that live
  std::array<struct sigaction, kSignals.size()> former ABSL_GUARDED_BY(mu) = {};
};
Handlers& AllHandlers() {
  static Handlers* const handlers = new Handlers;
  return *handlers;
}

extern "C" void OnTerminationSignal(int signal) {
  const int saved = errno;
  int first = 0;
  if (first_signal.compare_exchange_strong(first, signal, std::memory_order_release,
                                           std::memory_order_relaxed)) {
    first_time_ms.store(NowMs(), std::memory_order_relaxed);
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written =
        ::write(event_fd.load(std::memory_order_acquire), &one, sizeof(one));
  } else if (signal != first ||
             NowMs() - first_time_ms.load(std::memory_order_relaxed) > kSameRequestMs) {
    // A second request means: at once.
    ::signal(signal, SIG_DFL);
    ::raise(signal);
  }
  errno = saved;
}

}  // namespace

TerminationRequest::TerminationRequest() {
  Handlers& handlers = AllHandlers();
  MutexLock lock(&handlers.mu);
  if (handlers.requests++ > 0) return;
  if (event_fd.load(std::memory_order_relaxed) < 0) {
    event_fd.store(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), std::memory_order_release);
  }
  first_signal.store(0, std::memory_order_relaxed);
  first_time_ms.store(NowMs(), std::memory_order_relaxed);
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t drained = ::read(fd(), &count, sizeof(count));
  struct sigaction action = {};
  action.sa_handler = OnTerminationSignal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (size_t i = 0; i < kSignals.size(); ++i) {
    ::sigaction(kSignals[i], nullptr, &handlers.former[i]);
    // A shell that starts a program in the background has it ignore Ctrl-C.
    if (handlers.former[i].sa_handler == SIG_IGN) continue;
    ::sigaction(kSignals[i], &action, nullptr);
  }
}

TerminationRequest::~TerminationRequest() {
  Handlers& handlers = AllHandlers();
  MutexLock lock(&handlers.mu);
  if (--handlers.requests > 0) return;
  for (size_t i = 0; i < kSignals.size(); ++i) {
    // Somebody else's handler stays.
    struct sigaction current = {};
    ::sigaction(kSignals[i], nullptr, &current);
    if (current.sa_handler == OnTerminationSignal) {
      ::sigaction(kSignals[i], &handlers.former[i], nullptr);
    }
  }
}

int TerminationRequest::signal() const { return first_signal.load(std::memory_order_acquire); }

int TerminationRequest::fd() const { return event_fd.load(std::memory_order_acquire); }

}  // namespace millrace
