// SPDX-License-Identifier: Apache-2.0
#include "distributed/link/unix_poller.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <limits>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/dcheck.h"
#include "core/exceptions.h"
#include "core/logging.h"
#include "net/visit_call.h"

namespace millrace {
namespace {

// Of no source.
constexpr uint64_t kWakeId = 0;

// For so long after the seat was in use the poller's threads leave the sockets to the next one who
// sits down: longer than most steps pause.
constexpr absl::Duration kSeatPause = absl::Milliseconds(1);

thread_local bool is_in_seat = false;

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

UnixPoller::Source::Source(bool is_link) : id_(NextId()), is_link_(is_link) {}

bool UnixPoller::IsInSeat() { return is_in_seat; }

StatusOr<UnixPoller*> UnixPoller::Shared() {
  static Mutex* const mu = new Mutex;
  static UnixPoller* shared = nullptr;  // guarded by mu
  MutexLock lock(mu);
  if (shared == nullptr) {
    MR_ASSIGN_OR_RETURN(std::unique_ptr<UnixPoller> started, Start());
    shared = started.release();
    NetworkSeat::SetOfProcess(shared, NetworkSeat::kSameHost);
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
    OwnedFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    // Edges: what was written is never read, and one write is one event.
    epoll_event event = {};
    event.events = uint32_t{EPOLLIN} | uint32_t{EPOLLET};
    event.data.u64 = kWakeId;
    if (!wake.open() || ::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, wake.get(), &event) != 0) {
      return absl::ResourceExhaustedError(
          absl::StrCat("Unix poller: the system must give an event descriptor, got ",
                       std::generic_category().message(errno)));
    }
    std::unique_ptr<UnixPoller> poller(new UnixPoller(std::move(epoll), std::move(wake)));
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
      const Source& added = *source;
      sources_.emplace(id, std::move(source));
      if (added.is_link()) ++num_links_;
    }
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0) return absl::OkStatus();
    const int error = errno;
    std::shared_ptr<Source> removed;
    MutexLock lock(&mu_);
    removed = TakeOut(id);
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
  std::shared_ptr<Source> removed;
  MutexLock lock(&mu_);
  removed = TakeOut(source.id());
}

std::shared_ptr<UnixPoller::Source> UnixPoller::TakeOut(uint64_t id) {
  const auto it = sources_.find(id);
  if (it == sources_.end()) return nullptr;
  std::shared_ptr<Source> source = std::move(it->second);
  sources_.erase(it);
  if (source->is_link()) --num_links_;
  return source;
}

std::optional<uint64_t> UnixPoller::AwaitEvent(absl::Time limit) {
  int timeout_ms = -1;
  if (limit != absl::InfiniteFuture()) {
    const absl::Duration left = std::max(limit - absl::Now(), absl::ZeroDuration());
    timeout_ms = static_cast<int>(
        std::min<int64_t>(absl::ToInt64Milliseconds(absl::Ceil(left, absl::Milliseconds(1))),
                          std::numeric_limits<int>::max()));
  }
  epoll_event event;
  // Else a signal, or time is over.
  if (::epoll_wait(epoll_.get(), &event, 1, timeout_ms) != 1) return std::nullopt;
  return uint64_t{event.data.u64};  // it is packed
}

Visit::Work* UnixPoller::Handle(uint64_t event) noexcept {
  std::shared_ptr<Source> source;
  {
    MutexLock lock(&mu_);
    const auto it = sources_.find(event);
    if (it == sources_.end()) return nullptr;  // removed meanwhile
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
  return work;
}

void UnixPoller::PollOne() {
  StandAside();
  const std::optional<uint64_t> event = AwaitEvent(absl::InfiniteFuture());
  if (!event) return;
  if (*event == kWakeId) return HandOnWake();
  Visit::Work* const work = Handle(*event);
  if (work != nullptr) RunVisitOn(threads_.get(), work);
}

// --- The seat
//
// Who sits there waits in the same epoll descriptor as the threads of the poller, and any of them
// may get an event. But a thread of the poller that has handled one stands aside when it finds the
// seat in use: so from the second step on the one in the seat is alone, and neither sitting down
// nor leaving needs to tell anybody. One thread that stands aside looks at the time. When the seat
// was left for a while, or its thread does not come back from a handler, they poll again.

void UnixPoller::StandAside() {
  MutexLock lock(&seat_mu_);
  if (used_ == absl::InfinitePast()) return;
  const auto was_used = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(seat_mu_) {
    const absl::Duration since = absl::Now() - used_;
    return since >= absl::ZeroDuration() && since < kSeatPause;  // the clock may be set back
  };
  while (is_asleep_ || was_used()) {
    if (has_watch_) {
      awake_.Wait(&seat_mu_);
    } else {
      has_watch_ = true;
      awake_.WaitWithTimeout(&seat_mu_, kSeatPause);
      has_watch_ = false;
    }
  }
  used_ = absl::InfinitePast();
  awake_.SignalAll();
}

bool UnixPoller::has_links() const {
  MutexLock lock(&mu_);
  return num_links_ > 0;
}

bool UnixPoller::Take() {
  MutexLock lock(&seat_mu_);
  if (is_taken_) return false;
  is_taken_ = is_asleep_ = true;
  return true;
}

void UnixPoller::Serve(absl::Time limit) noexcept {
  const std::optional<uint64_t> event = AwaitEvent(limit);
  {
    MutexLock lock(&seat_mu_);
    is_asleep_ = false;
    used_ = absl::Now();
    ++times_awake_;
    if (num_aside_ > 0) awake_.SignalAll();
  }
  if (!event || *event == kWakeId) return;
  is_in_seat = true;
  Visit::Work* const work = Handle(*event);
  is_in_seat = false;
  if (work == nullptr) return;
  // Another step's: this one waits for its own.
  RunVisitApart(work);
}

void UnixPoller::Leave() {
  MutexLock lock(&seat_mu_);
  is_taken_ = is_asleep_ = false;
  used_ = absl::Now();
}

void UnixPoller::Wake() noexcept {
  const uint64_t one = 1;
  // Fails when 2^64 are written, and then there is an event all the same.
  [[maybe_unused]] const ssize_t result = ::write(wake_.get(), &one, sizeof one);
}

void UnixPoller::HandOnWake() {
  MutexLock lock(&seat_mu_);
  // Whom it was meant for has left, or looks at its condition before it sleeps again.
  if (!is_asleep_) return;
  Wake();
  // Here the event would come back to this thread.
  const uint64_t times = times_awake_;
  ++num_aside_;
  while (times_awake_ == times) awake_.Wait(&seat_mu_);
  --num_aside_;
}

}  // namespace millrace
