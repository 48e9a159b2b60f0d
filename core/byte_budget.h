// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_CORE_BYTE_BUDGET_H_
#define MILLRACE_CORE_BYTE_BUDGET_H_

// ByteBudget: how much memory several owners may take together: the tensors that arrive in parts on
// all links of a task (ServerLimits::max_pending_bytes), its pools.
//
// Thread-safety: all methods. Lifetime: the owners share it.

#include <atomic>
#include <cstdint>

namespace millrace {

// Adds `bytes` to a sum that several threads add to, when `has_room` says so of what it was before
// that; false when it does not. `has_room` may be asked again. Relaxed: of a sum for a bound, no
// protocol.
template <typename HasRoom>
bool AddBytesIf(std::atomic<int64_t>* sum, int64_t bytes, HasRoom has_room) {
  int64_t before = sum->load(std::memory_order_relaxed);
  do {
    if (!has_room(before)) return false;
  } while (!sum->compare_exchange_weak(before, before + bytes, std::memory_order_relaxed));
  return true;
}

class ByteBudget {
 public:
  explicit ByteBudget(int64_t limit) : limit_(limit) {}
  ByteBudget(const ByteBudget&) = delete;
  ByteBudget& operator=(const ByteBudget&) = delete;

  // False when they would be more than the limit. `bytes` >= 0; the caller Returns what it took.
  bool Take(int64_t bytes) {
    const bool has_room = AddBytesIf(
        &bytes_, bytes, [this, bytes](int64_t taken) { return bytes <= limit_ - taken; });
    if (!has_room) NoteRefusal();
    return has_room;
  }
  void Return(int64_t bytes) { bytes_.fetch_sub(bytes, std::memory_order_relaxed); }

  // Somebody did not get what it wanted: those that have what they do not use may give it back.
  void NoteRefusal() { refusals_.fetch_add(1, std::memory_order_relaxed); }
  // Only grows.
  int64_t refusals() const { return refusals_.load(std::memory_order_relaxed); }

  int64_t left() const { return limit_ - bytes_.load(std::memory_order_relaxed); }

 private:
  const int64_t limit_;
  std::atomic<int64_t> bytes_{0};     // relaxed: a sum for a bound, no protocol
  std::atomic<int64_t> refusals_{0};  // relaxed: a hint
};

}  // namespace millrace

#endif  // MILLRACE_CORE_BYTE_BUDGET_H_
