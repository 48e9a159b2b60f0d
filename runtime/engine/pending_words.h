// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_RUNTIME_ENGINE_PENDING_WORDS_H_
#define MILLRACE_RUNTIME_ENGINE_PENDING_WORDS_H_

// PendingWords: what each node of a step still waits for, one word per node (bits: plan.h).
//
// Each function counts one edge that arrives. Those for Merges return the entry (ready_list.h) of a
// node that became ready by it, else kNoEntry; Arrive returns the word. A node becomes ready once:
//   ordinary node  when all edges have arrived; dead if one of them was
//   Merge          when all control edges and a live input have arrived; dead when all of its
//                  inputs are, or the one from an Enter: what comes by NextIteration never comes
// With kSolo the caller is the only thread of the step, and nothing is read-modify-write.
//
// Threads: without kSolo any; what was written before an edge arrives is visible to the thread that
// gets the entry. Reset only before a step begins. Lifetime: `initial` of Reset is the plan's; it
// is copied. Failure: none; the plan guarantees that each edge arrives once.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>

#include "absl/types/span.h"
#include "runtime/engine/ready_list.h"
#include "runtime/plan.h"

namespace millrace {

class PendingWords {
 public:
  explicit PendingWords(size_t num_nodes)
      : words_(std::make_unique<std::atomic<uint32_t>[]>(num_nodes)) {}

  void Reset(absl::Span<const uint32_t> initial) {
    static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));
    if (initial.empty()) return;
    std::memcpy(static_cast<void*>(words_.get()), initial.data(),
                initial.size() * sizeof(uint32_t));
  }

  // An edge of an ordinary node; the word after it. IsReady(word): the node is, and its entry is
  // the node with the word's bits.
  template <bool kSolo>
  uint32_t Arrive(uint32_t node, bool dead) {
    std::atomic<uint32_t>& pending = words_[node];
    uint32_t word;
    if (kSolo) {
      word = pending.load(std::memory_order_relaxed) - 1;
      if (dead) word |= Plan::kDeadBit;
      pending.store(word, std::memory_order_relaxed);
    } else {
      word = pending.load(std::memory_order_acquire);
      if ((word & ~Plan::kDeadBit) == 1) {
        // Everybody else has arrived: nobody changes the word any more.
        word -= 1;
        if (dead) word |= Plan::kDeadBit;
      } else {
        if (dead) pending.fetch_or(Plan::kDeadBit, std::memory_order_relaxed);
        word = pending.fetch_sub(1, std::memory_order_acq_rel) - 1;
      }
    }
    return word;
  }
  static bool IsReady(uint32_t word) { return (word & ~Plan::kDeadBit) == 0; }

  // A control edge of a Merge; it counts, dead or not. `num_inputs`: data inputs of the Merge.
  template <bool kSolo>
  uint32_t ArriveControlAtMerge(uint32_t node, uint32_t num_inputs) {
    const uint32_t word = Change<kSolo>(
        node, [](uint32_t w) { return w - Plan::kMergeOneControl; },
        [](std::atomic<uint32_t>& w) {
          return w.fetch_sub(Plan::kMergeOneControl, std::memory_order_acq_rel);
        });
    if ((word & Plan::kMergeControlMask) != 0) return kNoEntry;
    if ((word & Plan::kMergeNoLive) == 0) return node;
    return DeadInputs(word) >= num_inputs ? (node | kDeadEntry) : kNoEntry;
  }

  // A dead input of a Merge. One that comes after the live one does not start it again.
  template <bool kSolo>
  uint32_t ArriveDeadAtMerge(uint32_t node, uint32_t num_inputs) {
    const uint32_t word = Change<kSolo>(
        node, [](uint32_t w) { return w + Plan::kMergeOneDead; },
        [](std::atomic<uint32_t>& w) {
          return w.fetch_add(Plan::kMergeOneDead, std::memory_order_acq_rel);
        });
    // A dead Enter has made it ready before, or its last control edge will.
    const bool ready = (word & Plan::kMergeControlMask) == 0 && (word & Plan::kMergeNoLive) != 0 &&
                       DeadInputs(word) == num_inputs;
    return ready ? (node | kDeadEntry) : kNoEntry;
  }

  // A dead input from an Enter: from now on no other input counts.
  template <bool kSolo>
  uint32_t ArriveDeadEnterAtMerge(uint32_t node) {
    if (!TakeMerge<kSolo>(node)) return kNoEntry;
    const uint32_t word = Change<kSolo>(
        node, [](uint32_t w) { return w | Plan::kMergeDeadEnter; },
        [](std::atomic<uint32_t>& w) {
          return w.fetch_or(Plan::kMergeDeadEnter, std::memory_order_acq_rel);
        });
    return (word & Plan::kMergeControlMask) == 0 ? (node | kDeadEntry) : kNoEntry;
  }

  // A live input of a Merge comes in two halves: the thread that takes the Merge (the first) puts
  // its value in place, and only then it counts.
  template <bool kSolo>
  bool TakeMerge(uint32_t node) {
    std::atomic<uint32_t>& pending = words_[node];
    const uint32_t before = kSolo ? pending.load(std::memory_order_relaxed)
                                  : pending.fetch_or(Plan::kMergeTaken, std::memory_order_relaxed);
    if ((before & Plan::kMergeTaken) != 0) return false;
    if (kSolo) pending.store(before | Plan::kMergeTaken, std::memory_order_relaxed);
    return true;
  }
  template <bool kSolo>
  uint32_t ArriveLiveAtMerge(uint32_t node) {
    const uint32_t word = Change<kSolo>(
        node, [](uint32_t w) { return w & ~Plan::kMergeNoLive; },
        [](std::atomic<uint32_t>& w) {
          return w.fetch_and(~Plan::kMergeNoLive, std::memory_order_acq_rel);
        });
    return (word & Plan::kMergeControlMask) == 0 ? node : kNoEntry;
  }

 private:
  // One operation on the word; the word after it.
  template <bool kSolo, typename Plain, typename Atomic>
  uint32_t Change(uint32_t node, Plain plain, Atomic atomic) {
    std::atomic<uint32_t>& pending = words_[node];
    if (!kSolo) return plain(atomic(pending));
    const uint32_t word = plain(pending.load(std::memory_order_relaxed));
    pending.store(word, std::memory_order_relaxed);
    return word;
  }
  // More than any Merge has when an Enter is dead.
  static uint32_t DeadInputs(uint32_t word) {
    return (word >> Plan::kMergeDeadShift) & Plan::kMergeDeadMask;
  }

  // Release when an edge arrives, acquire by the one that makes the node ready.
  std::unique_ptr<std::atomic<uint32_t>[]> words_;
};

}  // namespace millrace

#endif  // MILLRACE_RUNTIME_ENGINE_PENDING_WORDS_H_
