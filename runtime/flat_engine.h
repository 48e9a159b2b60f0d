// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_RUNTIME_FLAT_ENGINE_H_
#define MILLRACE_RUNTIME_FLAT_ENGINE_H_

// FlatEngine: what all steps of a plan without frames share besides the plan itself: measured costs
// of nodes, counters, and the states of steps that are over, for reuse.
//
// Invariant: a state is in the pool or used by one step, never both; in the pool it is empty (no
// value, no error). At most kPooledSteps states are kept; more steps at once allocate theirs anew.
//
// Thread-safety: all methods, from any thread; no lock is taken.
// Lifetime: outlives its steps.
// Failure: none; no memory for a state is std::bad_alloc.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "runtime/node_costs.h"
#include "runtime/plan.h"

namespace millrace {

class FlatStep;

class FlatEngine {
 public:
  explicit FlatEngine(std::shared_ptr<const Plan> plan)
      : plan_(std::move(plan)), costs_(plan_->nodes().size()) {}
  ~FlatEngine();

  const Plan& plan() const { return *plan_; }
  NodeCosts& costs() { return costs_; }

  // A state for a step: FlatStep::Begin makes it one, its end gives it back.
  FlatStep* Acquire();
  void Release(FlatStep* step);

  std::atomic<int64_t> wakeups{0};         // relaxed: counts only
  std::atomic<int64_t> blocking_waits{0};  // relaxed: counts only

 private:
  static constexpr size_t kPooledSteps = 16;

  const std::shared_ptr<const Plan> plan_;
  NodeCosts costs_;
  // Release by who puts a state in, acquire by who takes it out.
  std::array<std::atomic<FlatStep*>, kPooledSteps> pool_ = {};
};

}  // namespace millrace

#endif  // MILLRACE_RUNTIME_FLAT_ENGINE_H_
