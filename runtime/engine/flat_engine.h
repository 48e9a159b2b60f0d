// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_RUNTIME_ENGINE_FLAT_ENGINE_H_
#define MILLRACE_RUNTIME_ENGINE_FLAT_ENGINE_H_

// FlatEngine: what all steps of a plan without frames share besides the plan itself: measured costs
// of nodes, counters, and the states of steps that are over, for reuse (step_cache.h).
//
// Thread-safety: all methods, from any thread; no lock is taken.
// Lifetime: outlives its steps, but not those that were abandoned.
// Failure: none; no memory for a state is std::bad_alloc.

#include <memory>

#include "runtime/engine/engine.h"
#include "runtime/engine/node_costs.h"
#include "runtime/engine/step.h"
#include "runtime/engine/step_cache.h"
#include "runtime/plan.h"

namespace millrace {

class FlatStep;

class FlatEngine final : public Engine {
 public:
  // The plan has no frames.
  explicit FlatEngine(std::shared_ptr<const Plan> plan);
  ~FlatEngine() override;

  const Plan& plan() const override { return *plan_; }
  const std::shared_ptr<const Plan>& shared_plan() const { return plan_; }
  NodeCosts& costs() { return costs_; }

  Step* Begin(const StepStart& start) override;
  // By a step that has ended.
  void Release(FlatStep* step);

 private:
  const std::shared_ptr<const Plan> plan_;
  NodeCosts costs_;
  StepCache<FlatStep> cache_;
};

}  // namespace millrace

#endif  // MILLRACE_RUNTIME_ENGINE_FLAT_ENGINE_H_
