// SPDX-License-Identifier: Apache-2.0
#include "core/paced_thread.h"

#include <sys/resource.h>
#include <time.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/time/clock.h"
#include "core/background_thread.h"

namespace millrace {
namespace {

constexpr int kLowPriority = 10;

thread_local bool is_paced = false;
thread_local LoadPace::Mark mark_of_thread;
thread_local const CancellationManager* cancellation_of_thread = nullptr;

std::atomic<int64_t> num_pace_points{0};  // relaxed: a count

absl::Duration TimeOf(clockid_t id) {
  timespec time = {};
  ::clock_gettime(id, &time);
  return absl::DurationFromTimespec(time);
}

class RealClock final : public LoadPace::TimeSource {
 public:
  absl::Duration Now() override { return TimeOf(CLOCK_MONOTONIC); }
  absl::Duration Cpu() override { return TimeOf(CLOCK_THREAD_CPUTIME_ID); }
  void Sleep(absl::Duration duration) override { absl::SleepFor(duration); }
};

}  // namespace

LoadPace::TimeSource* LoadPace::TimeSource::Real() {
  static RealClock* const clock = new RealClock;
  return clock;
}

LoadPace* LoadPace::OfProcess() {
  static LoadPace* const pace = new LoadPace(TimeSource::Real());
  return pace;
}

void LoadPace::SetShare(double share) {
  MutexLock lock(&mu_);
  if (share_.exchange(share, std::memory_order_relaxed) < share) due_ = -absl::InfiniteDuration();
}

void LoadPace::Point(Mark* mark, const CancellationManager* cancellation) {
  if (!is_on()) {
    mark->is_set = false;
    return;
  }
  const absl::Duration cpu = clock_->Cpu();
  absl::Duration now = clock_->Now();
  if (mark->is_set) {
    const double share = share_.load(std::memory_order_relaxed);
    const absl::Duration used = std::clamp(cpu - mark->cpu, absl::ZeroDuration(), kLongestPiece);
    absl::Duration due;
    {
      MutexLock lock(&mu_);
      due = due_ = std::min(std::max(due_, mark->wall) + used / share, now + kLongestPiece / share);
    }
    if (due - now >= kShortestSleep) {
      while (now < due && is_on() && share_.load(std::memory_order_relaxed) <= share &&
             (cancellation == nullptr || !cancellation->IsCancelled())) {
        clock_->Sleep(std::min(due - now, kLongestSleep));
        now = clock_->Now();
      }
    }
  }
  *mark = {.is_set = true, .wall = now, .cpu = cpu};
}

void BecomePacedThread() {
  BecomeBackgroundThread();
  is_paced = true;
}

bool IsPacedThread() { return is_paced; }

void PacePoint() {
  if (!is_paced) return;
  num_pace_points.fetch_add(1, std::memory_order_relaxed);
  LoadPace::OfProcess()->Point(&mark_of_thread, cancellation_of_thread);
}

int64_t NumPacePointsForTesting() { return num_pace_points.load(std::memory_order_relaxed); }

const CancellationManager* CancellationOfPace() { return cancellation_of_thread; }

PaceUntilCancelled::PaceUntilCancelled(const CancellationManager* cancellation)
    : before_(std::exchange(cancellation_of_thread, cancellation)) {}
PaceUntilCancelled::~PaceUntilCancelled() { cancellation_of_thread = before_; }

Status AtLowPriority(absl::FunctionRef<Status()> work) {
  if (!is_paced || !LoadPace::OfProcess()->is_on()) return work();
  Status status;
  std::exception_ptr thrown;
  std::optional<std::thread> thread;
  try {
    thread.emplace([&] {
      BecomeBackgroundThread();
      if (::getpriority(PRIO_PROCESS, 0) < kLowPriority) {
        (void)::setpriority(PRIO_PROCESS, 0, kLowPriority);
      }
      try {
        status = work();
      } catch (...) {
        thrown = std::current_exception();
      }
    });
  } catch (const std::system_error&) {
    return work();
  }
  thread->join();
  if (thrown) std::rethrow_exception(thrown);
  return status;
}

}  // namespace millrace
