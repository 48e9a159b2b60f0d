// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_LINK_PENDING_BYTES_H_
#define MILLRACE_DISTRIBUTED_LINK_PENDING_BYTES_H_

// PendingBytes: how much memory the tensors take that are arriving in parts, on all links of a task
// together (ServerLimits::max_pending_bytes).
//
// Thread-safety: all methods. Lifetime: the links share it.

#include <atomic>
#include <cstdint>

namespace millrace {

class PendingBytes {
 public:
  explicit PendingBytes(int64_t limit) : limit_(limit) {}
  PendingBytes(const PendingBytes&) = delete;
  PendingBytes& operator=(const PendingBytes&) = delete;

  // False when they would be more than the limit. `bytes` >= 0; the caller Returns what it took.
  bool Take(int64_t bytes) {
    int64_t pending = bytes_.load(std::memory_order_relaxed);
    do {
      if (bytes > limit_ - pending) return false;
    } while (!bytes_.compare_exchange_weak(pending, pending + bytes, std::memory_order_relaxed));
    return true;
  }
  void Return(int64_t bytes) { bytes_.fetch_sub(bytes, std::memory_order_relaxed); }

  int64_t left() const { return limit_ - bytes_.load(std::memory_order_relaxed); }

 private:
  const int64_t limit_;
  std::atomic<int64_t> bytes_{0};  // relaxed: a sum for a bound, no protocol
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_LINK_PENDING_BYTES_H_
