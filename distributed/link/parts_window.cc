// SPDX-License-Identifier: Apache-2.0
#include "distributed/link/parts_window.h"

#include <algorithm>

namespace millrace {

bool PartsWindow::MayLeave(int64_t bytes, absl::Time now) {
  if (under_way_ + bytes <= window_) {
    waits_since_ = absl::InfiniteFuture();
    return true;
  }
  // An answer will come: what has no mark yet is less than what kMinBytes leaves room for.
  was_full_ = true;
  waits_since_ = std::min(waits_since_, now);
  return false;
}

void PartsWindow::Left(int64_t bytes) {
  under_way_ += bytes;
  unmarked_ += bytes;
}

int64_t PartsWindow::Mark(absl::Time now) {
  marks_.push_back({unmarked_, now});
  unmarked_ = 0;
  return first_mark_ + static_cast<int64_t>(marks_.size()) - 1;
}

absl::Duration PartsWindow::Fastest(absl::Duration took, absl::Time now) {
  if (now - period_began_ >= kMemory) {
    fastest_before_ = fastest_;
    fastest_ = absl::InfiniteDuration();
    period_began_ = now;
  }
  fastest_ = std::min(fastest_, took);
  return std::min(fastest_, fastest_before_);
}

void PartsWindow::Arrived(int64_t number, absl::Time now) {
  for (; first_mark_ <= number && !marks_.empty(); ++first_mark_) {
    const Marked mark = marks_.front();
    marks_.pop_front();
    under_way_ -= mark.bytes;
    if (first_mark_ < number) continue;  // its own answer is late, or was lost with a wrong one
    const absl::Duration took = now - mark.left;
    const absl::Duration fastest = Fastest(took, now);
    if (took - fastest > std::max(kMaxQueueing, fastest / 4)) {
      window_ = std::max(window_ - mark.bytes / 8, kMinBytes);
      has_queued_ = true;
    } else if (was_full_) {
      window_ = std::min(window_ + (has_queued_ ? mark.bytes / 8 : mark.bytes), kMaxBytes);
    }
    was_full_ = false;
    if (waits_since_ != absl::InfiniteFuture()) waits_since_ = now;
  }
}

absl::Duration PartsWindow::Waited(absl::Time now) const {
  return waits_since_ == absl::InfiniteFuture() ? absl::ZeroDuration() : now - waits_since_;
}

}  // namespace millrace
