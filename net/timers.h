// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_NET_TIMERS_H_
#define MILLRACE_NET_TIMERS_H_

// Timers: the time that calls and steps go by, as an argument: what time it is, waits for answers,
// and timers that call back.
//
//   Timer: not set -> set -> fired      `fire` is called once the time has come
//                         -> cancelled  `fire` is not called, unless it has begun
//   A timer that has fired may be set again, also by `fire`.
//
// Real() is the machine's: one thread for all timers of the process, from the first one on. It
// calls them one after the other, so `fire` must not block. It measures by a clock that nobody
// sets: when the wall clock is moved, timers that are set keep their distance. A simulated
// implementation is in distributed/testing/simulation.h.
//
// Thread-safety: all methods, from any thread. No lock is held while `fire` runs.
// Lifetime: a timer lives on its own while it is set; `fire` as long as the timer. Cancel does not
// wait for a `fire` that has begun.
// Failure: none; only Make and Start need memory.

#include <memory>

#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"
#include "core/clock.h"

namespace millrace {

class Timer {
 public:
  virtual ~Timer() = default;
  // Only while it is not set: before the first time, and once it has fired.
  virtual void Set(absl::Time when) = 0;
  virtual void Cancel() = 0;
};

class Timers {
 public:
  virtual ~Timers() = default;
  // By which `when` and the deadlines of calls are meant, and on which answers are waited for.
  virtual Clock* clock() = 0;
  // Not set.
  virtual std::shared_ptr<Timer> Make(absl::AnyInvocable<void()> fire) = 0;
  // Made and set.
  std::shared_ptr<Timer> Start(absl::Time when, absl::AnyInvocable<void()> fire);

  absl::Time Now() { return clock()->Now(); }

  static Timers* Real();
};

}  // namespace millrace

#endif  // MILLRACE_NET_TIMERS_H_
