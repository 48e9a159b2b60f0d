// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_CORE_NOTIFICATION_H_
#define MILLRACE_CORE_NOTIFICATION_H_

// Notification: one thread says, once, that something has happened; others wait for it.
// BlockingCounter: waits until a number of events has happened.
//
// Both are safe to destroy as soon as Wait() has returned.

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/mutex.h"

namespace millrace {

class Notification {
 public:
  // Called at most once.
  void Notify() {
    MutexLock lock(&mu_);
    notified_ = true;
    cv_.SignalAll();
  }
  bool HasBeenNotified() const {
    MutexLock lock(&mu_);
    return notified_;
  }
  void Wait() const {
    MutexLock lock(&mu_);
    while (!notified_) cv_.Wait(&mu_);
  }
  // False when the time was over first.
  bool WaitFor(absl::Duration timeout) const {
    const absl::Time deadline = absl::Now() + timeout;
    MutexLock lock(&mu_);
    while (!notified_) {
      const absl::Duration left = deadline - absl::Now();
      if (left <= absl::ZeroDuration()) return false;
      cv_.WaitWithTimeout(&mu_, left);
    }
    return true;
  }

 private:
  mutable Mutex mu_;
  mutable CondVar cv_;
  bool notified_ ABSL_GUARDED_BY(mu_) = false;
};

class BlockingCounter {
 public:
  explicit BlockingCounter(int count) : count_(count) {}
  void Decrement() {
    MutexLock lock(&mu_);
    if (--count_ <= 0) cv_.SignalAll();
  }
  void Wait() {
    MutexLock lock(&mu_);
    while (count_ > 0) cv_.Wait(&mu_);
  }

 private:
  Mutex mu_;
  CondVar cv_;
  int count_ ABSL_GUARDED_BY(mu_);
};

}  // namespace millrace

#endif  // MILLRACE_CORE_NOTIFICATION_H_
