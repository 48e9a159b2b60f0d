// SPDX-License-Identifier: Apache-2.0
#include "train/hooks/step_timer.h"

namespace millrace {

bool StepTimer::IsDue(int64_t step, absl::Time now) const {
  if (never()) return false;
  if (!last_step_) return true;
  if (step == *last_step_) return false;
  return by_time() ? now >= last_time_ + every_.time() : step >= *last_step_ + every_.steps();
}

void StepTimer::Done(int64_t step, absl::Time now) {
  last_step_ = step;
  last_time_ = now;
}

std::optional<StepTimer::Elapsed> StepTimer::Since(int64_t step, absl::Time now) const {
  if (!last_step_) return std::nullopt;
  return Elapsed{.steps = step - *last_step_, .time = now - last_time_};
}

Status CheckEvery(absl::string_view what, const Every& every) {
  if (every.valid() && !every.never()) return absl::OkStatus();
  return InvalidArgument(what, " must be > 0, got ",
                         every.time() != absl::ZeroDuration()
                             ? absl::FormatDuration(every.time())
                             : absl::StrCat(every.steps(), " steps"));
}

}  // namespace millrace
