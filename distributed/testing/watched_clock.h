// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_TESTING_WATCHED_CLOCK_H_
#define MILLRACE_DISTRIBUTED_TESTING_WATCHED_CLOCK_H_

// WatchedClock: a FakeClock that knows when the one thread that waits on it has done what the time
// asks of it, and sleeps again.
//
// Threads: any may ask for the time; one waits on it at a time.

#include <map>
#include <thread>

#include "core/clock.h"
#include "core/mutex.h"

namespace millrace {

class WatchedClock : public FakeClock {
 public:
  absl::Time Now() override {
    const absl::Time now = FakeClock::Now();
    MutexLock lock(&mu_);
    seen_[std::this_thread::get_id()] = now;
    return now;
  }
  bool WaitUntil(CondVar* cv, Mutex* mu, absl::Time deadline) override {
    SetWaiting(true);
    const bool reached = FakeClock::WaitUntil(cv, mu, deadline);
    SetWaiting(false);
    return reached;
  }
  // Until the other thread sleeps and has seen what time it is.
  void Settle() {
    const absl::Time now = FakeClock::Now();
    MutexLock lock(&mu_);
    while (!waiting_ || seen_[waiter_] != now) changed_.Wait(&mu_);
  }
  void AdvanceAndSettle(absl::Duration duration) {
    Settle();
    Advance(duration);
    Settle();
  }

 private:
  void SetWaiting(bool waiting) {
    MutexLock lock(&mu_);
    waiting_ = waiting;
    waiter_ = std::this_thread::get_id();
    changed_.SignalAll();
  }

  Mutex mu_;
  CondVar changed_;
  bool waiting_ ABSL_GUARDED_BY(mu_) = false;
  std::thread::id waiter_ ABSL_GUARDED_BY(mu_);
  std::map<std::thread::id, absl::Time> seen_ ABSL_GUARDED_BY(mu_);
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_TESTING_WATCHED_CLOCK_H_
