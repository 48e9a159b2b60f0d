// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_RUNTIME_ENGINE_FRAME_ENGINE_H_
#define MILLRACE_RUNTIME_ENGINE_FRAME_ENGINE_H_

// FrameEngine: what all steps of a plan with frames (while loops) share besides the plan itself:
// measured costs of nodes, which nodes leave a loop, which loops are straight, counters, and the
// states of steps that are over, for reuse (step_cache.h): a state keeps the iterations that it has
// needed at once.
//
// Thread-safety: all methods, from any thread; no lock is taken.
// Lifetime: outlives its steps, but not those that were abandoned.
// Failure: none; no memory for a state is std::bad_alloc.

#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/node_costs.h"
#include "runtime/engine/step.h"
#include "runtime/engine/step_cache.h"
#include "runtime/engine/straight_loop.h"
#include "runtime/plan.h"

namespace millrace {

class FrameStep;

class FrameEngine final : public Engine {
 public:
  explicit FrameEngine(std::shared_ptr<const Plan> plan);
  ~FrameEngine() override;

  const Plan& plan() const override { return *plan_; }
  const std::shared_ptr<const Plan>& shared_plan() const { return plan_; }
  NodeCosts& costs() { return costs_; }
  // Null for a loop that is not straight, and for what is outside of loops.
  const StraightLoop* straight(const Plan::Frame& frame) const {
    return straight_[static_cast<size_t>(&frame - plan_->frames().data())].get();
  }
  // The Exits of a frame, by their place (Plan::Node::flow).
  absl::Span<const Plan::Node* const> exits(const Plan::Frame& frame) const {
    return exits_[static_cast<size_t>(&frame - plan_->frames().data())];
  }

  Step* Begin(const StepStart& start) override;
  // By a step that has ended.
  void Release(FrameStep* step);

 private:
  const std::shared_ptr<const Plan> plan_;
  NodeCosts costs_;
  std::vector<std::vector<const Plan::Node*>> exits_;          // by frame
  std::vector<std::unique_ptr<const StraightLoop>> straight_;  // by frame
  StepCache<FrameStep> cache_;
};

}  // namespace millrace

#endif  // MILLRACE_RUNTIME_ENGINE_FRAME_ENGINE_H_
