// SPDX-License-Identifier: Apache-2.0
#include "distributed/link/credit.h"

#include <algorithm>

#include "core/dcheck.h"
#include "distributed/link/frame.h"

namespace millrace {

Status SendCredit::Open(int64_t window_bytes) {
  MR_DCHECK(window_ == 0, "a link has one HELLO of its peer, which opens the window");
  if (window_bytes < kMinWindowBytes) {
    return InvalidArgument("Link: the window must be at least ", kMinWindowBytes, " bytes, got ",
                           window_bytes);
  }
  window_ = left_ = window_bytes;
  return absl::OkStatus();
}

bool SendCredit::Take(int64_t bytes, absl::Time now) {
  MR_DCHECK(bytes > 0 && bytes <= std::max(window_, kMinWindowBytes),
            "no frame is larger than the window");
  if (bytes > left_) {
    if (waits_since_ == absl::InfiniteFuture()) waits_since_ = now;
    return false;
  }
  left_ -= bytes;
  waits_since_ = absl::InfiniteFuture();
  return true;
}

int64_t SendCredit::TakePooled(int64_t frame_bytes, int64_t pooled_bytes, absl::Time now) {
  int64_t bytes = CreditOf(frame_bytes, pooled_bytes, window_);
  if (left_ >= kMaxFrameBytes) bytes = std::min(bytes, left_);
  return Take(bytes, now) ? bytes : 0;
}

Status SendCredit::Return(int64_t bytes) {
  // No sum of the two: it may overflow.
  if (bytes < 0 || bytes > window_ - left_) {
    return InvalidArgument("Link: credit that is returned must have been taken, ", window_ - left_,
                           " bytes, got ", bytes);
  }
  left_ += bytes;
  return absl::OkStatus();
}

absl::Duration SendCredit::Waited(absl::Time now) const {
  return waits_since_ == absl::InfiniteFuture() ? absl::ZeroDuration() : now - waits_since_;
}

Status ReceiveCredit::Received(int64_t bytes) {
  MR_DCHECK(bytes >= 0, "the reader counts the bytes of a frame");
  if (bytes > window_ - unreturned_) {
    return InvalidArgument("Link: a frame must be within the window, ", window_ - unreturned_,
                           " of ", window_, " bytes are left, got ", bytes);
  }
  unreturned_ += bytes;
  return absl::OkStatus();
}

Status ReceiveCredit::ReceivedPooled(int64_t credit, int64_t frame_bytes, int64_t pooled_bytes) {
  const int64_t most = CreditOf(frame_bytes, pooled_bytes, window_);
  if (credit < frame_bytes || credit > most) {
    return InvalidArgument("Link: a frame with tensors in a pool, or kept ones, must take ",
                           frame_bytes, " to ", most, " bytes of the window, got ", credit);
  }
  return Received(credit);
}

int64_t ReceiveCredit::TakeOwed() {
  const int64_t owed = this->owed();
  unreturned_ -= owed;
  return owed;
}

}  // namespace millrace
