// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_WORKER_PARKED_BYTES_H_
#define MILLRACE_DISTRIBUTED_WORKER_PARKED_BYTES_H_

// ParkedBytes: how much a worker keeps of what other tasks have pushed for steps that have not
// begun there, and for iterations of loops that have not asked for it, all steps together.
//
// Within the limit it is kept as it comes. What is beyond it is kept while its link holds back its
// credit (Link::HoldCredit), so that its sender stops. Before that a sender may send a window of
// small tensors, next to them a large one, whose credit is returned as its bytes come, and then
// another window. So there is room for three windows of each open link, of which a message takes
// one at most. What is beyond that is refused.
//
// Thread-safety: all methods. Lifetime: the steps share it.

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "core/byte_budget.h"
#include "distributed/link/credit.h"

namespace millrace {

class ParkedBytes {
 public:
  static constexpr int64_t kWindowsOfLink = 3;

  explicit ParkedBytes(int64_t limit, int64_t window = kDefaultWindowBytes)
      : limit_(limit), window_(window) {}

  // False when they would be more than the limit, unless nothing else is parked: a large message
  // has room, too. The caller Returns what it took, once.
  bool Take(int64_t bytes) {
    return AddBytesIf(&bytes_, bytes, [this, bytes](int64_t parked) {
      return parked == 0 || bytes <= limit_ - parked;
    });
  }
  // Beyond the limit, for who holds the credit back. What it takes of the windows; 0 when there is
  // no room. The caller Returns both.
  int64_t TakeHeld(int64_t bytes) {
    const int64_t share = std::min(bytes, window_);
    const bool has_room = AddBytesIf(
        &held_, share, [share, room = held_room()](int64_t held) { return share <= room - held; });
    if (!has_room) return 0;
    bytes_.fetch_add(bytes, std::memory_order_relaxed);
    return share;
  }
  // True: there is room within the limit for what TakeHeld took, so its credit need not be held any
  // more, and the caller Returns the bytes alone.
  bool LetGo(int64_t bytes, int64_t share) {
    return AddBytesIf(&held_, -share, [this, bytes, share](int64_t held) {
      const int64_t parked = this->bytes();
      return parked == bytes || parked - held + share <= limit_;
    });
  }
  void Return(int64_t bytes, int64_t held = 0) {
    bytes_.fetch_sub(bytes, std::memory_order_relaxed);
    held_.fetch_sub(held, std::memory_order_relaxed);
  }
  // How many links are open.
  void set_links(int64_t links) { links_.store(links, std::memory_order_relaxed); }

  int64_t limit() const { return limit_; }
  // Beyond the limit, for what holds credit back.
  int64_t held_room() const {
    const int64_t links = std::max(links_.load(std::memory_order_relaxed), int64_t{1});
    return kWindowsOfLink * window_ * links;
  }
  // Also those that are held.
  int64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

 private:
  const int64_t limit_, window_;
  // relaxed: sums for a bound, no protocol
  std::atomic<int64_t> bytes_{0}, held_{0}, links_{0};
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_WORKER_PARKED_BYTES_H_
