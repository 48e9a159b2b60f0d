// SPDX-License-Identifier: Apache-2.0
#include "train/save_retry.h"

#include <algorithm>

#include "run/training_run.h"

namespace millrace {
namespace {

// A disk on which somebody has made room is written to within a minute.
constexpr absl::Duration kMaxPause = absl::Minutes(1);
constexpr absl::Duration kLeastPause = absl::Milliseconds(1);

}  // namespace

bool MayTryAgain(const Status& status) {
  return !IsFenced(status) && !RunEndOf(status).has_value() && !absl::IsInvalidArgument(status) &&
         !absl::IsUnimplemented(status);
}

SaveRetry::SaveRetry(absl::Duration first) : first_(std::max(first, kLeastPause)), pause_(first_) {}

absl::Duration SaveRetry::NextPause() {
  const absl::Duration pause = pause_;
  pause_ = std::min(2 * pause, std::max(kMaxPause, first_));
  return pause;
}

}  // namespace millrace
