// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_RUNTIME_READY_LIST_H_
#define MILLRACE_RUNTIME_READY_LIST_H_

// Ready lists: the nodes of a step whose inputs have arrived and that have not run yet.
//
// Every working thread has a Lane, a stack that only it touches, with one expensive node kept
// apart; a step has one SharedStack, from which threads that have nothing left help themselves.
// An entry is a node's index, with kDeadEntry set when the node is dead. All stacks of a step are
// threaded through one array of links, so that being ready allocates nothing.
//
// Invariant: a node is in one stack at a time (it becomes ready once in a step).
//
// Threads: a Lane belongs to one; SharedStack is lock-free, for any thread that works on the step.
// Lifetime: links outlive the stacks and are reused by the next step as they are.
// Failure: none.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "runtime/kernel.h"

namespace millrace {

constexpr uint32_t kNoEntry = 0xffffffffu;
constexpr uint32_t kDeadEntry = 1u << 31;

inline uint32_t NodeOfEntry(uint32_t entry) { return entry & ~kDeadEntry; }

// The entry below an entry, by node.
class ReadyLinks {
 public:
  explicit ReadyLinks(size_t num_nodes)
      : below_(std::make_unique<std::atomic<uint32_t>[]>(num_nodes)) {}
  uint32_t Below(uint32_t entry) const {
    return below_[NodeOfEntry(entry)].load(std::memory_order_relaxed);
  }
  void SetBelow(uint32_t entry, uint32_t below) {
    below_[NodeOfEntry(entry)].store(below, std::memory_order_relaxed);
  }

 private:
  // Relaxed: ordered by the top of the stack that the entry is in.
  std::unique_ptr<std::atomic<uint32_t>[]> below_;
};

// What one working thread has to do.
struct Lane {
  uint32_t head = kNoEntry;       // stack, through the step's links
  uint32_t expensive = kNoEntry;  // the last expensive node that became ready
  uint32_t tick = 0;              // counts nodes, for sampling
  uint64_t nodes_run = 0;         // dead ones too
  EdgeValue* outputs = nullptr;   // max_outputs empty ones
  // Everything goes onto the stack: the thread will hand it over instead of running it.
  bool collects = false;
  bool collected_expensive = false;

  void Push(ReadyLinks& links, uint32_t entry) {
    links.SetBelow(entry, head);
    head = entry;
  }
  // Not when empty.
  uint32_t Pop(const ReadyLinks& links) {
    const uint32_t entry = head;
    head = links.Below(entry);
    return entry;
  }
};

// The count in the upper half of the top changes with every change, so a top that was taken and
// put back meanwhile is noticed.
class SharedStack {
 public:
  void Clear() { top_.store(kNoEntry, std::memory_order_relaxed); }

  bool IsEmpty() const {
    return static_cast<uint32_t>(top_.load(std::memory_order_seq_cst)) == kNoEntry;
  }

  void Push(ReadyLinks& links, uint32_t entry) {
    uint64_t top = top_.load(std::memory_order_relaxed);
    uint64_t fresh;
    do {
      links.SetBelow(entry, static_cast<uint32_t>(top));
      fresh = (((top >> 32) + 1) << 32) | entry;
    } while (!top_.compare_exchange_weak(top, fresh, std::memory_order_seq_cst,
                                         std::memory_order_relaxed));
  }

  // kNoEntry when empty.
  uint32_t Pop(const ReadyLinks& links) {
    uint64_t top = top_.load(std::memory_order_acquire);
    for (;;) {
      const uint32_t entry = static_cast<uint32_t>(top);
      if (entry == kNoEntry) return kNoEntry;
      const uint64_t fresh = (((top >> 32) + 1) << 32) | links.Below(entry);
      if (top_.compare_exchange_weak(top, fresh, std::memory_order_acq_rel,
                                     std::memory_order_acquire)) {
        return entry;
      }
    }
  }

 private:
  // Release by who pushes, acquire by who pops; seq_cst where FlatStep::RequestLoop needs an order
  // with its count of loops.
  std::atomic<uint64_t> top_{kNoEntry};
};

}  // namespace millrace

#endif  // MILLRACE_RUNTIME_READY_LIST_H_
