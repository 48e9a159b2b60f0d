// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_WORKER_PARKED_BYTES_H_
#define MILLRACE_DISTRIBUTED_WORKER_PARKED_BYTES_H_

// ParkedBytes: how much a worker keeps of what other tasks have pushed for steps that have not
// begun there, all steps together.
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
    int64_t parked = bytes_.load(std::memory_order_relaxed);
    do {
      if (parked > 0 && bytes > limit_ - parked) return false;
    } while (!bytes_.compare_exchange_weak(parked, parked + bytes, std::memory_order_relaxed));
    return true;
  }
  void Return(int64_t bytes) { bytes_.fetch_sub(bytes, std::memory_order_relaxed); }

  int64_t limit() const { return limit_; }
  int64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

 private:
  const int64_t limit_;
  std::atomic<int64_t> bytes_{0};  // relaxed: a sum for a bound, no protocol
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_WORKER_PARKED_BYTES_H_
