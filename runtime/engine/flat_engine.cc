// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/flat_engine.h"

#include "runtime/engine/flat_step.h"
#include "runtime/engine/step.h"

namespace millrace {

FlatEngine::~FlatEngine() {
  for (std::atomic<FlatStep*>& place : pool_) delete place.load(std::memory_order_acquire);
}

Step* FlatEngine::Begin(const StepStart& start) {
  FlatStep* step = nullptr;
  for (std::atomic<FlatStep*>& place : pool_) {
    if (place.load(std::memory_order_relaxed) == nullptr) continue;
    step = place.exchange(nullptr, std::memory_order_acquire);
    if (step != nullptr) break;
  }
  std::unique_ptr<FlatStep> owned(step != nullptr ? step : new FlatStep(this));
  owned->Begin(start);
  return owned.release();
}

void FlatEngine::Release(FlatStep* step) {
  for (std::atomic<FlatStep*>& place : pool_) {
    FlatStep* expected = nullptr;
    if (place.load(std::memory_order_relaxed) == nullptr &&
        place.compare_exchange_strong(expected, step, std::memory_order_release,
                                      std::memory_order_relaxed)) {
      return;
    }
  }
  delete step;
}

}  // namespace millrace
