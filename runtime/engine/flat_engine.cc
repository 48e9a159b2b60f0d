// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/flat_engine.h"

#include <memory>
#include <utility>

#include "runtime/engine/flat_step.h"
#include "runtime/engine/step.h"

namespace millrace {

FlatEngine::FlatEngine(std::shared_ptr<const Plan> plan)
    : plan_(std::move(plan)), costs_(plan_->nodes().size()) {}

FlatEngine::~FlatEngine() = default;

Step* FlatEngine::Begin(const StepStart& start) {
  std::unique_ptr<FlatStep> step = cache_.Take();
  if (step == nullptr) step = std::make_unique<FlatStep>(this);
  step->Begin(start);
  return step.release();
}

void FlatEngine::Release(FlatStep* step) { cache_.Put(std::unique_ptr<FlatStep>(step)); }

}  // namespace millrace
