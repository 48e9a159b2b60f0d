// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_LINK_CREDIT_H_
#define MILLRACE_DISTRIBUTED_LINK_CREDIT_H_

// Credit: how many bytes of tensors may be on their way in one direction of a link.
//
// The receiver grants a window when the link opens. The sender takes credit for each frame of
// tensors before the frame leaves; the receiver returns it once the bytes are in memory, not once
// they are used, so a slow step does not stop a link. Only what an end keeps beyond its bounds
// holds credit back until it is gone. What is left for the sender is always
//
//   window - taken and not yet returned, between 0 and the window,
//
// whatever the peer says: a return of what was never taken is refused, and so is a frame that had
// no credit. Frames without tensors (HELLO, RUN, END, RECEIVED, ...) need none, so returns always
// get through.
//
// The receiver may let returns wait until a message goes that way, but never a quarter of the
// window, without what is held back. With a window of kMinWindowBytes that cannot stop the sender
// for good: a frame waits only when more than three quarters are taken, and when all of that has
// come it is due. Only who holds back nearly all of it stops the sender, until it lets go.
//
// Tensors in a pool count as their bytes, next to those of their frame, as far as there is credit
// for them: once there is enough for any frame, one with such tensors leaves and takes what is left
// (TakePooled). So it waits no longer than others do, also while much is held back; the pool bounds
// its memory. The frame says what it has taken. So do tensors that the receiver has kept: a step
// that has not begun there keeps them, as it would others.
//
// Thread-compatible: their owner has a lock. Failure: InvalidArgument, after which the link ends.

#include <algorithm>
#include <cstdint>

#include "absl/time/time.h"
#include "core/status.h"

namespace millrace {

// Room for a few of the largest frames (frame.h).
inline constexpr int64_t kMinWindowBytes = int64_t{2} << 20;
inline constexpr int64_t kDefaultWindowBytes = int64_t{64} << 20;

// What a frame takes at most: its own bytes, and `pooled_bytes` of tensors in a pool, or kept, in
// all no more than three quarters of the window. Neither is negative.
inline int64_t CreditOf(int64_t frame_bytes, int64_t pooled_bytes, int64_t window_bytes) {
  if (pooled_bytes == 0) return frame_bytes;
  const int64_t most = std::max(window_bytes - window_bytes / 4, frame_bytes);
  return pooled_bytes > most - frame_bytes ? most : frame_bytes + pooled_bytes;
}

// The sender's side.
class SendCredit {
 public:
  // Nothing may leave before Open.
  SendCredit() = default;
  // Once. InvalidArgument for a window below kMinWindowBytes.
  Status Open(int64_t window_bytes);

  // For a frame that takes so much (> 0, at most the window). False: there is not enough, and the
  // frame waits from `now` on.
  bool Take(int64_t bytes, absl::Time now);
  // For a frame with tensors in a pool: what it takes, from `frame_bytes` to CreditOf. 0: there is
  // not enough for the largest frame, or less that would do for this one, and it waits.
  int64_t TakePooled(int64_t frame_bytes, int64_t pooled_bytes, absl::Time now);
  // What the receiver returns. InvalidArgument when it is negative or more than is taken: nothing
  // is returned then.
  Status Return(int64_t bytes);

  int64_t window() const { return window_; }
  int64_t left() const { return left_; }
  // For how long the sender has waited without taking anything; zero when no frame waits. Returns
  // that are too small for the frame are no progress. The owner decides when it is too long.
  absl::Duration Waited(absl::Time now) const;
  // The frame that waits will not leave.
  void StopWaiting() { waits_since_ = absl::InfiniteFuture(); }

 private:
  int64_t window_ = 0, left_ = 0;
  absl::Time waits_since_ = absl::InfiniteFuture();  // the infinite future: no frame waits
};

// The receiver's side.
class ReceiveCredit {
 public:
  explicit ReceiveCredit(int64_t window_bytes) : window_(window_bytes) {}

  // A frame of so many bytes is in memory. InvalidArgument when the sender had no credit for it.
  Status Received(int64_t bytes);
  // One with tensors in a pool, which says that it took `credit`. InvalidArgument also when that is
  // not between its own bytes and CreditOf.
  Status ReceivedPooled(int64_t credit, int64_t frame_bytes, int64_t pooled_bytes);
  // So much must be returned that it should not wait for a message to go with.
  bool IsDue() const { return owed() >= std::max((window_ - held_) / 4, int64_t{1}); }
  int64_t owed() const { return std::max(unreturned_ - held_, int64_t{0}); }
  // All that is owed; the caller returns it to the sender.
  int64_t TakeOwed();
  // So much less is owed, also of what comes later, until it is let go. At least 0.
  void Hold(int64_t bytes) { held_ += bytes; }
  void LetGo(int64_t bytes) { held_ -= bytes; }

 private:
  const int64_t window_;
  int64_t unreturned_ = 0;  // received, and not returned yet
  int64_t held_ = 0;
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_LINK_CREDIT_H_
