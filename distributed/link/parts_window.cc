// SPDX-License-Identifier: Apache-2.0
#include "distributed/link/parts_window.h"

#include <algorithm>

namespace millrace {

bool PartsWindow::MayLeave(int64_t bytes, absl::Time now) {
  if (under_way_ + bytes <= limit()) {
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

void PartsWindow::Arrived(int64_t number, absl::Time now) {
  for (; first_mark_ <= number && !marks_.empty(); ++first_mark_) {
    const Marked mark = marks_.front();
    marks_.pop_front();
    under_way_ -= mark.bytes;
    if (waits_since_ != absl::InfiniteFuture()) waits_since_ = now;
    if (first_mark_ < number) continue;  // its own answer is late, or was lost with a wrong one
    least_ = std::min(least_, now - mark.left);
    fastest_ = std::min(fastest_, least_);
    if (number >= round_ends_) EndRound(now);
  }
}

void PartsWindow::EndRound(absl::Time now) {
  if (drained_ == absl::InfinitePast()) drained_ = now;
  if (drains_ > 0) {
    if (--drains_ == 0) fastest_ = least_;
  } else {
    if (least_ - fastest_ > std::max(kMaxQueueing, fastest_ / 4)) {
      window_ = std::max(window_ - window_ / 8, kMinBytes);
      has_queued_ = true;
    } else if (was_full_) {
      window_ = std::min(window_ + (has_queued_ ? window_ / 8 : window_), kMaxBytes);
    }
    if (now - drained_ >= kMemory) {
      drains_ = 2;
      drained_ = now;
    }
  }
  // The next round's first mark leaves after this.
  round_ends_ = first_mark_ + static_cast<int64_t>(marks_.size()) + 1;
  was_full_ = false;
  least_ = absl::InfiniteDuration();
}

absl::Duration PartsWindow::Waited(absl::Time now) const {
  return waits_since_ == absl::InfiniteFuture() ? absl::ZeroDuration() : now - waits_since_;
}

}  // namespace millrace
