// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_LINK_PARTS_WINDOW_H_
#define MILLRACE_DISTRIBUTED_LINK_PARTS_WINDOW_H_

// PartsWindow: how many bytes of large tensors' parts may be on their way at a time.
//
// What the network has taken cannot be overtaken any more. A network that takes megabytes (gRPC's
// windows, TCP's buffers) would so hold up RUN, END and small tensors behind a large one, by
// milliseconds within a host and by half a second on a slow line. The window lets as much be on its
// way as the line needs and little more:
//
//   - behind each kMarkBytes of parts the owner sends a mark, which the peer answers when it has
//     read all before it;
//   - a round is over when a mark of it is answered. When all answers of a round took kMaxQueueing,
//     or a quarter, longer than the fastest one, parts queue: the window shrinks by an eighth, down
//     to kMinBytes. Else, if parts have waited for it, it grows by an eighth; twofold until parts
//     have queued for the first time. One late answer says nothing: the reader was late;
//   - every kMemory the window is halved for two rounds. Then nothing queues, and the answers of
//     the second one say anew how fast the fastest is. A sender that never pauses would otherwise
//     take its own queue for the line.
//
// The idea is LEDBAT's (RFC 6817): the delay of one's own bytes says how much queues.
//
// Thread-compatible: its owner has a lock. Times are of any clock that does not go back; one that
// does makes the window larger or smaller than it should be, no more. Failure: none. A peer may
// answer what it was not asked: that changes nothing.

#include <algorithm>
#include <cstdint>
#include <deque>

#include "absl/time/time.h"

namespace millrace {

class PartsWindow {
 public:
  static constexpr int64_t kMarkBytes = int64_t{512} << 10;
  static constexpr int64_t kMinBytes = int64_t{1} << 20;
  static constexpr int64_t kMaxBytes = int64_t{64} << 20;
  static constexpr absl::Duration kMaxQueueing = absl::Microseconds(500);
  // For how long the fastest answer counts.
  static constexpr absl::Duration kMemory = absl::Seconds(10);

  // Whether a part of `bytes`, less than kMinBytes - kMarkBytes, may leave. If not, it waits from
  // `now` on, until an answer comes.
  bool MayLeave(int64_t bytes, absl::Time now);
  void Left(int64_t bytes);
  // Those that wait will not leave.
  void StopWaiting() { waits_since_ = absl::InfiniteFuture(); }

  // Whether the owner should send a mark behind what has left.
  bool NeedsMark() const { return unmarked_ >= kMarkBytes; }
  // The number of the mark that is sent now: 1, 2, ...
  int64_t Mark(absl::Time now);
  // The peer has read all before mark `number`.
  void Arrived(int64_t number, absl::Time now);

  int64_t window() const { return window_; }
  int64_t under_way() const { return under_way_; }
  // For how long a part has waited without an answer; zero when none waits.
  absl::Duration Waited(absl::Time now) const;

 private:
  struct Marked {
    int64_t bytes = 0;  // of parts before it, behind the mark before
    absl::Time left;
  };

  // What may be on its way now.
  int64_t limit() const { return drains_ > 0 ? std::max(window_ / 2, kMinBytes) : window_; }
  void EndRound(absl::Time now);

  int64_t window_ = kMinBytes;
  int64_t under_way_ = 0;  // without an answer
  int64_t unmarked_ = 0;   // of these, behind the last mark
  std::deque<Marked> marks_;
  int64_t first_mark_ = 1;  // the number of the first one of them
  absl::Time waits_since_ = absl::InfiniteFuture();

  int64_t round_ends_ = 1;                             // with the answer to this mark
  bool was_full_ = false;                              // a part has waited in this round
  absl::Duration least_ = absl::InfiniteDuration();    // of the round's answers
  absl::Duration fastest_ = absl::InfiniteDuration();  // since the window was halved, or ever
  bool has_queued_ = false;
  int drains_ = 0;  // rounds with half the window that are left
  absl::Time drained_ = absl::InfinitePast();
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_LINK_PARTS_WINDOW_H_
