// SPDX-License-Identifier: Apache-2.0
#include "distributed/link/unix_poller.h"

#include <sys/epoll.h>

#include <atomic>
#include <cerrno>
#include <system_error>
#include <utility>

#include "core/dcheck.h"
#include "core/exceptions.h"
#include "core/logging.h"
#include "net/visit_call.h"

namespace millrace {
namespace {

epoll_event EventOf(const UnixPoller::Source& source, uint32_t events) {
  epoll_event event = {};
  event.events = events | EPOLLONESHOT;
  event.data.u64 = source.id();
  return event;
}

uint64_t NextId() {
  // Relaxed: numbers that differ, nothing else is ordered by them.
  static std::atomic<uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

}  // namespace

UnixPoller::Source::Source() : id_(NextId()) {}

StatusOr<UnixPoller*> UnixPoller::Shared() {
  static Mutex* const mu = new Mutex;
  static UnixPoller* shared = nullptr;  // guarded by mu
  MutexLock lock(mu);
  if (shared == nullptr) {
    MR_ASSIGN_OR_RETURN(std::unique_ptr<UnixPoller> started, Start());
    shared = started.release();
  }
  return shared;
}

StatusOr<std::unique_ptr<UnixPoller>> UnixPoller::Start() {
  return NoExceptions("Unix poller", []() -> StatusOr<std::unique_ptr<UnixPoller>> {
    OwnedFd epoll(::epoll_create1(EPOLL_CLOEXEC));
    if (!epoll.open()) {
      return absl::ResourceExhaustedError(
          absl::StrCat("Unix poller: the system must give an epoll descriptor, got ",
                       std::generic_category().message(errno)));
    }
    std::unique_ptr<UnixPoller> poller(new UnixPoller(std::move(epoll)));
    CallThreads::Options options;
    options.owner = "Unix poller";
    options.num_pollers = kPollers;
    options.poll_one = [poller = poller.get()] {
      poller->PollOne();
      return true;
    };
    // When it fails no thread was started that could use the poller.
    MR_ASSIGN_OR_RETURN(poller->threads_, CallThreads::Start(std::move(options)));
    return poller;
  });
}

Status UnixPoller::Add(std::shared_ptr<Source> source, int fd, uint32_t events) {
  return NoExceptions("Unix poller", [&]() -> Status {
    const uint64_t id = source->id();
    epoll_event event = EventOf(*source, events);
    {
      MutexLock lock(&mu_);
      sources_.emplace(id, std::move(source));
    }
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0) return absl::OkStatus();
    const int error = errno;
    std::shared_ptr<Source> removed;  // goes without the lock
    MutexLock lock(&mu_);
    const auto it = sources_.find(id);
    removed = std::move(it->second);
    sources_.erase(it);
    return absl::ResourceExhaustedError(
        absl::StrCat("Unix poller: the system must watch one more socket, got ",
                     std::generic_category().message(error)));
  });
}

void UnixPoller::Arm(const Source& source, int fd, uint32_t events) {
  epoll_event event = EventOf(source, events);
  [[maybe_unused]] const int result = ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event);
  MR_DCHECK(result == 0, "a source is armed between Add and Remove, while its descriptor is open");
}

void UnixPoller::Remove(const Source& source, int fd) {
  // Fails when it was not added, which is as well.
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  std::shared_ptr<Source> removed;  // goes without the lock
  MutexLock lock(&mu_);
  const auto it = sources_.find(source.id());
  if (it == sources_.end()) return;
  removed = std::move(it->second);
  sources_.erase(it);
}

void UnixPoller::PollOne() {
  epoll_event event;
  if (::epoll_wait(epoll_.get(), &event, 1, -1) != 1) return;  // a signal
  std::shared_ptr<Source> source;
  {
    MutexLock lock(&mu_);
    const auto it = sources_.find(event.data.u64);
    if (it == sources_.end()) return;  // removed meanwhile
    source = it->second;
  }
  Visit::Work* work = nullptr;
  try {
    work = source->OnReady();
  } catch (...) {
    try {
      LogError(StatusOfException("Unix poller").message());
    } catch (...) {
      // No memory for a line. No exception may end the thread, and so the process.
    }
  }
  source = nullptr;  // the work may last
  if (work != nullptr) RunVisitOn(threads_.get(), work);
}

}  // namespace millrace
