// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_CORE_CLOCK_H_
#define MILLRACE_CORE_CLOCK_H_

// Clock: time as an argument, so that tests decide what time it is.
//
// FakeClock stands still until Advance() is called; a thread that sleeps on it wakes
// when its time has come.
//
// Thread-safety: all methods, from any thread; Advance() not while a mutex is held that a waiter
// gave to WaitUntil().

#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/mutex.h"

namespace millrace {

class Clock {
 public:
  virtual ~Clock() = default;
  virtual absl::Time Now() = 0;
  // Waits on `cv` (with `mu` held) until it is signalled or this clock reaches `deadline`;
  // true when the deadline has been reached. May also return early: wait in a loop.
  virtual bool WaitUntil(CondVar* cv, Mutex* mu, absl::Time deadline) = 0;
  // Blocks the caller. Never for synchronisation between threads.
  virtual void SleepFor(absl::Duration duration) = 0;

  static Clock* Real();
};

class FakeClock : public Clock {
 public:
  explicit FakeClock(absl::Time start = absl::UnixEpoch()) : now_(start) {}
  absl::Time Now() override;
  bool WaitUntil(CondVar* cv, Mutex* mu, absl::Time deadline) override;
  void SleepFor(absl::Duration duration) override;
  // Moves time forward and wakes all threads that wait on this clock.
  void Advance(absl::Duration duration);
  // How many threads wait on this clock now.
  int NumWaiters();
  // Blocks until at least `n` threads wait on this clock: a test calls it before Advance().
  void AwaitWaiters(int n);

 private:
  // One thread inside WaitUntil(); lives on its stack.
  struct Waiter {
    CondVar* cv;
    Mutex* mu;
    int pins = 0;  // Advance() calls that are about to signal it
  };
  Mutex mu_;
  CondVar changed_;  // time moved, a waiter came or was unpinned
  absl::Time now_ ABSL_GUARDED_BY(mu_);
  std::vector<Waiter*> waiters_ ABSL_GUARDED_BY(mu_);
  int num_sleepers_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace millrace

#endif  // MILLRACE_CORE_CLOCK_H_
