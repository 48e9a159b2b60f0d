// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_RUNTIME_ENGINE_NODE_COSTS_H_
#define MILLRACE_RUNTIME_ENGINE_NODE_COSTS_H_

// NodeCosts: how long the kernels of a plan take, measured while steps run.
//
// A node whose cost is above kExpensiveCycles is worth waking another thread for; so are several
// cheap ones whose costs add up to that. Before the first measurement every node counts as
// expensive. Expensive nodes are measured in every run, cheap
// ones once in kSampleEvery, so that a node that changes its ways is noticed.
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
  // Cycles above which another thread is worth waking (4 to 46 us, measured).
  static constexpr uint32_t kExpensiveCycles = 25'000;
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
      : cycles_(std::make_unique<std::atomic<uint32_t>[]>(num_nodes)) {
    for (size_t i = 0; i < num_nodes; ++i) cycles_[i].store(kUnknown, std::memory_order_relaxed);
  }

  // Above kExpensiveCycles for a node that was never measured.
  uint32_t Cycles(uint32_t node) const { return cycles_[node].load(std::memory_order_relaxed); }
  bool IsExpensive(uint32_t node) const { return Cycles(node) > kExpensiveCycles; }

  // The first measurement replaces the guess; after that each counts for an eighth.
  void AddSample(uint32_t node, uint64_t cycles) {
    const uint32_t sample = static_cast<uint32_t>(std::min<uint64_t>(cycles, kUnknown - 1));
    const uint32_t old = cycles_[node].load(std::memory_order_relaxed);
    const uint32_t fresh = old == kUnknown ? sample : old - old / 8 + sample / 8;
    cycles_[node].store(fresh, std::memory_order_relaxed);
  }

 private:
  static constexpr uint32_t kUnknown = 0xffffffffu;

  std::unique_ptr<std::atomic<uint32_t>[]> cycles_;  // relaxed: estimates
};

}  // namespace millrace

#endif  // MILLRACE_RUNTIME_ENGINE_NODE_COSTS_H_
