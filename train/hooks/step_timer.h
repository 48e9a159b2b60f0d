// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_HOOKS_STEP_TIMER_H_
#define MILLRACE_TRAIN_HOOKS_STEP_TIMER_H_

// StepTimer: when something that is done each so many steps, or after so much time, is due
// (TensorFlow's SecondOrStepTimer).
//
//   StepTimer timer(100);
//   if (timer.IsDue(step, now)) { ...; timer.Done(step, now); }
//
// The first question is always due (unless it is never), the same step is due once only.
//
// Thread-safety: thread-compatible.

#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/status.h"
#include "train/every.h"

namespace millrace {

class StepTimer {
 public:
  // Never.
  StepTimer() = default;
  explicit StepTimer(const Every& every) : every_(every) {}

  bool never() const { return every_.never(); }
  // Does IsDue look at its `now`? Who need not ask the clock saves a system call.
  bool by_time() const { return every_.time() > absl::ZeroDuration(); }
  bool IsDue(int64_t step, absl::Time now) const;
  // That it was done, or is to count from here.
  void Done(int64_t step, absl::Time now);
  // Steps and time since Done; nullopt at the first time.
  struct Elapsed {
    int64_t steps = 0;
    absl::Duration time;
  };
  std::optional<Elapsed> Since(int64_t step, absl::Time now) const;
  // As if nothing had been done.
  void Reset() { last_step_.reset(); }

 private:
  Every every_;
  std::optional<int64_t> last_step_;
  absl::Time last_time_ = absl::InfinitePast();
};

// InvalidArgument "<what> must be > 0, got ..." unless `every` is some time or some steps.
Status CheckEvery(absl::string_view what, const Every& every);

}  // namespace millrace

#endif  // MILLRACE_TRAIN_HOOKS_STEP_TIMER_H_
