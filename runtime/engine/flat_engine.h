// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_RUNTIME_ENGINE_FLAT_ENGINE_H_
#define MILLRACE_RUNTIME_ENGINE_FLAT_ENGINE_H_

// FlatEngine: what all steps of a plan without frames share besides the plan itself: measured costs
// of nodes, counters, and the states of steps that are over, for reuse.
//
// Invariant: a state is in the pool or used by one step, never both; in the pool it is empty (no
// value, no error). At most kPooledSteps states are kept; more steps at once allocate theirs anew.
// A thread finds the state again that it used last, unless another took it meanwhile: threads that
// run steps at the same time come to write to memory of their own.
//
// Thread-safety: all methods, from any thread; no lock is taken.
// Lifetime: outlives its steps, but not those that were abandoned.
// Failure: none; no memory for a state is std::bad_alloc.

#include <array>
#include <atomic>
#include <cstddef>
#include <memory>
#include <utility>

#include "core/thread_number.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/node_costs.h"
#include "runtime/engine/step.h"
#include "runtime/plan.h"

namespace millrace {

class FlatStep;

class FlatEngine final : public Engine {
 public:
  // The plan has no frames.
  explicit FlatEngine(std::shared_ptr<const Plan> plan)
      : plan_(std::move(plan)), costs_(plan_->nodes().size()) {}
  ~FlatEngine() override;

  const Plan& plan() const override { return *plan_; }
  const std::shared_ptr<const Plan>& shared_plan() const { return plan_; }
  NodeCosts& costs() { return costs_; }

  Step* Begin(const StepStart& start) override;
  // By a step that has ended.
  void Release(FlatStep* step);

 private:
  static constexpr size_t kPooledSteps = 16;
  // A place for a state, on a cache line of its own. Release by who puts a state in, acquire by who
  // takes it out.
  struct alignas(64) Place {
    std::atomic<FlatStep*> step{nullptr};
  };

  const std::shared_ptr<const Plan> plan_;
  NodeCosts costs_;
  static size_t MyPlace() { return static_cast<size_t>(ThreadNumber()) % kPooledSteps; }
  FlatStep* Take(size_t place);
  bool Put(size_t place, FlatStep* step);

  // A thread begins to look at the place of its number.
  std::array<Place, kPooledSteps> pool_;
};

}  // namespace millrace

#endif  // MILLRACE_RUNTIME_ENGINE_FLAT_ENGINE_H_
