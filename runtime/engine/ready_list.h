// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_RUNTIME_ENGINE_READY_LIST_H_
#define MILLRACE_RUNTIME_ENGINE_READY_LIST_H_

// Ready lists: the nodes of a step whose inputs have arrived and that have not run yet.
//
// Every working thread has a Lane, which only it touches: a stack of nodes that are never worth
// another thread's time, a stack of measured ones that are cheap, and one expensive node. A step
// has one SharedStack, from which threads that have nothing left help themselves. An entry is a
// node's index, with kDeadEntry set when the node is dead. All stacks of a step are threaded
// through one array of links, so that being ready allocates nothing.
//
// Invariant: a node is in one stack at a time (it becomes ready once in a step).
//
// Threads: a Lane belongs to one; SharedStack is lock-free, for any thread that works on the step.
// Lifetime: links outlive the stacks and are reused by the next step as they are.
// Failure: none.

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

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

// Entries that hang together by their links, from the newest to the oldest.
struct ReadyChain {
  uint32_t first = kNoEntry;
  uint32_t last = kNoEntry;
};

// What one working thread has to do.
struct Lane {
  uint32_t head = kNoEntry;       // stack of nodes that are not measured, through the links
  uint32_t measured = kNoEntry;   // stack of cheap measured nodes ...
  uint64_t measured_cycles = 0;   // ... and about what they cost together
  uint32_t expensive = kNoEntry;  // the last expensive node that became ready
  uint64_t nodes_run = 0;         // dead ones too
  // Everything goes onto the first stack, and its cost is added up here: the thread will hand it
  // over instead of running it.
  bool collects = false;
  uint64_t collected_cycles = 0;

  void Push(ReadyLinks& links, uint32_t entry) {
    links.SetBelow(entry, head);
    head = entry;
  }
  // Pushes the node, with kDeadEntry if that bit of `word` is set, when it is ready. For the only
  // thread of a step and a node that is in no stack: its link is written either way. Without a
  // branch, because whether an edge makes its node ready is hard to predict.
  void PushIf(bool ready, ReadyLinks& links, uint32_t node, uint32_t word) {
    const uint32_t below = head;
    links.SetBelow(node, below);
    const uint32_t mask = 0u - static_cast<uint32_t>(ready);
    head = below ^ ((below ^ (node | word)) & mask);
  }
  // Not when empty. When `guess` is right, the processor goes on with it on its prediction that it
  // is, instead of waiting for edge, pending word and stack to say which entry it is.
  uint32_t Pop(const ReadyLinks& links, uint32_t guess = kNoEntry) {
    const uint32_t entry = Prefer(guess, head);
    head = links.Below(entry);
    return entry;
  }
  void PushMeasured(ReadyLinks& links, uint32_t entry, uint64_t cycles) {
    links.SetBelow(entry, measured);
    measured = entry;
    measured_cycles += cycles;
  }
  // Not when empty. `cycles_of(entry)` may differ from what was pushed: costs are estimates.
  template <typename CyclesOf>
  uint32_t PopMeasured(const ReadyLinks& links, CyclesOf cycles_of) {
    const uint32_t entry = measured;
    measured = links.Below(entry);
    measured_cycles -= std::min<uint64_t>(measured_cycles, cycles_of(entry));
    return entry;
  }
  // Leaves of the measured stack the newest nodes that cost `keep_cycles` together and takes the
  // others off; none when they are all newest.
  template <typename CyclesOf>
  ReadyChain TakeOldMeasured(ReadyLinks& links, uint64_t keep_cycles, CyclesOf cycles_of) {
    uint64_t kept = 0;
    uint32_t newest_kept = kNoEntry;
    uint32_t entry = measured;
    while (entry != kNoEntry && kept < keep_cycles) {
      kept += cycles_of(entry);
      newest_kept = entry;
      entry = links.Below(entry);
    }
    measured_cycles = kept;
    if (entry == kNoEntry || newest_kept == kNoEntry) return {};
    links.SetBelow(newest_kept, kNoEntry);
    ReadyChain chain = {entry, entry};
    while (links.Below(chain.last) != kNoEntry) chain.last = links.Below(chain.last);
    return chain;
  }

 private:
  // `entry`, by way of `guess` if that is the same.
  static uint32_t Prefer(uint32_t guess, uint32_t entry) {
    if (entry != guess) return entry;
    asm("" : "+r"(guess));  // or the compiler sees that it may return `entry` in any case
    return guess;
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

  void Push(ReadyLinks& links, uint32_t entry) { Push(links, ReadyChain{entry, entry}); }
  void Push(ReadyLinks& links, const ReadyChain& chain) {
    uint64_t top = top_.load(std::memory_order_relaxed);
    uint64_t fresh;
    do {
      links.SetBelow(chain.last, static_cast<uint32_t>(top));
      fresh = (((top >> 32) + 1) << 32) | chain.first;
    } while (!top_.compare_exchange_weak(top, fresh, std::memory_order_seq_cst,
                                         std::memory_order_relaxed));
  }

  // Takes entries from the top until they cost `cycles` together by `cycles_of(entry)`; at least
  // one, none when empty. The last one's link leads on.
  template <typename CyclesOf>
  ReadyChain Pop(const ReadyLinks& links, uint64_t cycles, CyclesOf cycles_of) {
    uint64_t top = top_.load(std::memory_order_acquire);
    for (;;) {
      ReadyChain chain;
      uint32_t next = static_cast<uint32_t>(top);
      // Others may change what lies below the top: then the exchange fails. A link is always some
      // node's, and the steps are counted.
      uint64_t sum = 0;
      for (int i = 0; i < kMostAtOnce && next != kNoEntry && sum < cycles; ++i) {
        if (chain.first == kNoEntry) chain.first = next;
        chain.last = next;
        sum += cycles_of(next);
        next = links.Below(next);
      }
      if (chain.first == kNoEntry) return chain;
      const uint64_t fresh = (((top >> 32) + 1) << 32) | next;
      if (top_.compare_exchange_weak(top, fresh, std::memory_order_acq_rel,
                                     std::memory_order_acquire)) {
        return chain;
      }
    }
  }
  // One entry; kNoEntry when empty.
  uint32_t Pop(const ReadyLinks& links) {
    return Pop(links, 1, [](uint32_t) { return uint64_t{1}; }).first;
  }

 private:
  // Keeps the time between load and exchange short.
  static constexpr int kMostAtOnce = 64;

  // Release by who pushes, acquire by who pops; seq_cst where FlatStep::RequestLoop needs an order
  // with its count of loops.
  std::atomic<uint64_t> top_{kNoEntry};
};

}  // namespace millrace

#endif  // MILLRACE_RUNTIME_ENGINE_READY_LIST_H_
