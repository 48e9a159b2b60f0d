// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/frame_engine.h"

#include <memory>
#include <utility>

#include "runtime/engine/frame_step.h"
#include "runtime/engine/step.h"
#include "runtime/engine/straight_loop.h"

namespace millrace {

FrameEngine::FrameEngine(std::shared_ptr<const Plan> plan)
    : plan_(std::move(plan)),
      costs_(plan_->nodes().size()),
      exits_(plan_->frames().size()),
      straight_(plan_->frames().size()) {
  for (size_t i = 0; i < exits_.size(); ++i) {
    const Plan::Frame& frame = plan_->frames()[i];
    for (const Plan::Node& node : plan_->nodes().subspan(frame.first_node, frame.num_nodes)) {
      if ((node.flags & Plan::kExit) != 0) exits_[i].push_back(&node);
    }
    if (i > 0) straight_[i] = StraightLoop::Of(*plan_, frame);
  }
}

FrameEngine::~FrameEngine() = default;

Step* FrameEngine::Begin(const StepStart& start) {
  std::unique_ptr<FrameStep> step = cache_.Take();
  if (step == nullptr) step = std::make_unique<FrameStep>(this);
  step->Begin(start);
  return step.release();
}

void FrameEngine::Release(FrameStep* step) { cache_.Put(std::unique_ptr<FrameStep>(step)); }

}  // namespace millrace
