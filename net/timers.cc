// SPDX-License-Identifier: Apache-2.0
#include "net/timers.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <thread>
#include <utility>

#include "core/dcheck.h"
#include "core/exceptions.h"
#include "core/logging.h"
#include "core/mutex.h"
#include "core/status.h"

namespace millrace {
namespace {

using Steady = std::chrono::steady_clock;

class TimerThread : public Timers {
 public:
  TimerThread() {
    std::thread([this] { Run(); }).detach();
  }
  Clock* clock() override { return Clock::Real(); }
  std::shared_ptr<Timer> Make(absl::AnyInvocable<void()> fire) override {
    return std::make_shared<Queued>(this, std::move(fire));
  }

 private:
  class Queued;
  using Queue = std::multimap<Steady::time_point, Queued*>;

  // Has its place in the queue from the beginning: setting it needs no memory.
  class Queued : public Timer, public std::enable_shared_from_this<Queued> {
   public:
    Queued(TimerThread* thread, absl::AnyInvocable<void()> fire)
        : thread_(thread), fire_(std::move(fire)) {
      Queue made;
      place_ = made.extract(made.emplace(Steady::time_point(), this));
    }
    void Set(absl::Time when) override { thread_->Enter(this, when); }
    void Cancel() override { thread_->Leave(this); }

   private:
    friend class TimerThread;
    TimerThread* const thread_;
    absl::AnyInvocable<void()> fire_;  // by the thread alone, and one at a time
    // The thread's lock.
    Queue::node_type place_;        // while it is not set
    Queue::iterator entry_;         // while it is
    std::shared_ptr<Queued> self_;  // while it is
  };

  void Enter(Queued* timer, absl::Time when) {
    const auto left = std::clamp(when - absl::Now(), absl::ZeroDuration(), absl::Hours(24 * 365));
    MutexLock lock(&mu_);
    if (timer->self_ != nullptr) return;
    MR_DCHECK(!timer->place_.empty(), "a timer that is not set has its place: Set takes no memory");
    timer->place_.key() = Steady::now() + absl::ToChronoNanoseconds(left);
    timer->entry_ = queue_.insert(std::move(timer->place_));
    timer->self_ = timer->shared_from_this();
    if (timer->entry_ == queue_.begin()) changed_.SignalAll();
  }
  std::shared_ptr<Queued> TakeOut(Queued* timer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    MR_DCHECK(timer->self_ != nullptr && timer->place_.empty(),
              "a timer in the queue keeps itself, and its place is there");
    timer->place_ = queue_.extract(timer->entry_);
    return std::move(timer->self_);
  }
  void Leave(Queued* timer) {
    std::shared_ptr<Queued> kept;  // its last owner lets go without the lock
    MutexLock lock(&mu_);
    if (timer->self_ != nullptr) kept = TakeOut(timer);
  }
  void Run() {
    for (;;) {
      std::shared_ptr<Queued> due;
      {
        MutexLock lock(&mu_);
        const Steady::time_point now = Steady::now();
        if (queue_.empty()) {
          changed_.Wait(&mu_);
        } else if (const auto first = queue_.begin(); first->first > now) {
          changed_.WaitWithTimeout(&mu_, absl::FromChrono(first->first - now));
        } else {
          due = TakeOut(first->second);
        }
      }
      if (due != nullptr) Fire(due.get());
    }
  }
  // No exception ends the thread, and so the process: the other timers still fire.
  static void Fire(Queued* timer) {
    try {
      timer->fire_();
    } catch (...) {
      const Status status = StatusOfException("Timer");
      NoExceptions("Timer", [&] {
        LogWarning(status.message());
        return status;
      }).IgnoreError();
    }
  }

  Mutex mu_;
  CondVar changed_;
  Queue queue_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

std::shared_ptr<Timer> Timers::Start(absl::Time when, absl::AnyInvocable<void()> fire) {
  std::shared_ptr<Timer> timer = Make(std::move(fire));
  timer->Set(when);
  return timer;
}

Timers* Timers::Real() {
  static TimerThread* const timers = new TimerThread;
  return timers;
}

}  // namespace millrace
