// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_RUNTIME_ENGINE_NODE_COSTS_H_
#define MILLRACE_RUNTIME_ENGINE_NODE_COSTS_H_

// NodeCosts: how long the kernels of a plan take, measured while steps run.
//
// A node whose cost is above kExpensiveCycles is worth waking another thread for; so are several
// cheap ones whose costs add up to that. Before the first measurement every node counts as
// expensive. Expensive nodes are measured in every run, cheap ones once in kSampleEvery, so that a
// node that changes its ways is noticed.
//
// A thread that loses its core inside of a kernel measures a thousand times the kernel's cost; on a
// machine that runs several tasks that happens every few steps. So the estimate rises only with
// what two measurements in a row say, slowly, and falls fast.
//
// Thread-safety: all methods, from any thread. It is an estimate: samples that come at the same
// time may overwrite each other.
// Lifetime: that of the engine; costs are kept from step to step.
// Failure: none.

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace millrace {

class NodeCosts {
 public:
  // Cycles above which another thread is worth waking. That takes 4 to 46 us, and the thread looks
  // for more work for some 50 us, up to a hundred times, before it sleeps; where several tasks
  // share cores, each look is a context switch.
  static constexpr uint32_t kExpensiveCycles = 100'000;
  // Kept by a lane, and taken from the shared stack at once: what is about worth a wake-up.
  static constexpr uint64_t kBatchCycles = kExpensiveCycles;
  // A node below that is never moved by itself: fetching its inputs from another core costs as
  // much.
  static constexpr uint64_t kMovableCycles = 2'000;
  // A power of two.
  static constexpr uint32_t kSampleEvery = 16;
  // Of the runs of cheap nodes, by a count of them.
  static bool IsSampled(uint32_t tick) { return (tick & (kSampleEvery - 1)) == 0; }

  explicit NodeCosts(size_t num_nodes)
      : words_(std::make_unique<std::atomic<uint64_t>[]>(num_nodes)) {
    for (size_t i = 0; i < num_nodes; ++i) words_[i].store(kUnknown, std::memory_order_relaxed);
  }

  // Above kExpensiveCycles for a node that was never measured.
  uint32_t Cycles(uint32_t node) const {
    return CostOf(words_[node].load(std::memory_order_relaxed));
  }
  bool IsExpensive(uint32_t node) const { return Cycles(node) > kExpensiveCycles; }

  // The first measurement replaces the guess. After that the lower one of this and the one before
  // counts: for an eighth when it is above the estimate, for a half when it is below.
  void AddSample(uint32_t node, uint64_t cycles) {
    const uint32_t sample = static_cast<uint32_t>(std::min<uint64_t>(cycles, kUnknown - 1));
    const uint64_t word = words_[node].load(std::memory_order_relaxed);
    const uint32_t old = CostOf(word);
    uint32_t fresh = sample;
    if (old != kUnknown) {
      const uint32_t lower = std::min(sample, static_cast<uint32_t>(word >> 32));
      fresh = lower < old ? old - (old - lower + 1) / 2 : old + (lower - old) / 8;
    }
    words_[node].store(uint64_t{sample} << 32 | fresh, std::memory_order_relaxed);
  }

 private:
  static constexpr uint32_t kUnknown = 0xffffffffu;

  static uint32_t CostOf(uint64_t word) { return static_cast<uint32_t>(word); }

  // By node: the last measurement above, the estimate below. Relaxed: estimates.
  std::unique_ptr<std::atomic<uint64_t>[]> words_;
};

}  // namespace millrace

#endif  // MILLRACE_RUNTIME_ENGINE_NODE_COSTS_H_
