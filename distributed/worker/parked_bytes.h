// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_WORKER_PARKED_BYTES_H_
#define MILLRACE_DISTRIBUTED_WORKER_PARKED_BYTES_H_

// ParkedBytes: how much a worker keeps of what other tasks have pushed for steps that have not
// begun there, all steps together.
//
// Within the limit it is kept as it comes. Of what is beyond it as much again is kept while its
// links hold back its credit (Link::HoldCredit), so that honest senders stop; the rest is a
// stranger's, and is refused.
//
// Thread-safety: all methods. Lifetime: the steps share it.

#include <atomic>
#include <cstdint>

namespace millrace {

class ParkedBytes {
 public:
  explicit ParkedBytes(int64_t limit) : limit_(limit) {}

  // False when they would be more than the limit, unless nothing else is parked: a large message
  // has room, too. The caller Returns what it took, once.
  bool Take(int64_t bytes) {
    return TakeIf(
        bytes, [this, bytes](int64_t parked) { return parked == 0 || bytes <= limit_ - parked; });
  }
  // Beyond the limit, for who holds the credit back; false beyond twice the limit. As Take.
  bool TakeHeld(int64_t bytes) {
    return TakeIf(bytes,
                  [this, bytes](int64_t parked) { return bytes <= limit_ - (parked - limit_); });
  }
  void Return(int64_t bytes) { bytes_.fetch_sub(bytes, std::memory_order_relaxed); }

  int64_t limit() const { return limit_; }
  int64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

 private:
  template <typename HasRoom>
  bool TakeIf(int64_t bytes, HasRoom has_room) {
    int64_t parked = bytes_.load(std::memory_order_relaxed);
    do {
      if (!has_room(parked)) return false;
    } while (!bytes_.compare_exchange_weak(parked, parked + bytes, std::memory_order_relaxed));
    return true;
  }

  const int64_t limit_;
  std::atomic<int64_t> bytes_{0};  // relaxed: a sum for a bound, no protocol
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_WORKER_PARKED_BYTES_H_
