// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/flat_engine.h"

#include <atomic>
#include <cstddef>
#include <memory>

#include "core/thread_number.h"
#include "runtime/engine/flat_step.h"
#include "runtime/engine/step.h"

namespace millrace {

FlatEngine::~FlatEngine() {
  for (Place& place : pool_) delete place.step.load(std::memory_order_acquire);
}

Step* FlatEngine::Begin(const StepStart& start) {
  const auto mine = static_cast<size_t>(ThreadNumber());
  FlatStep* step = nullptr;
  for (size_t i = 0; i < kPooledSteps && step == nullptr; ++i) {
    std::atomic<FlatStep*>& place = pool_[(mine + i) % kPooledSteps].step;
    if (place.load(std::memory_order_relaxed) == nullptr) continue;
    step = place.exchange(nullptr, std::memory_order_acquire);
  }
  std::unique_ptr<FlatStep> owned(step != nullptr ? step : new FlatStep(this));
  owned->Begin(start);
  return owned.release();
}

void FlatEngine::Release(FlatStep* step) {
  const auto mine = static_cast<size_t>(ThreadNumber());
  for (size_t i = 0; i < kPooledSteps; ++i) {
    std::atomic<FlatStep*>& place = pool_[(mine + i) % kPooledSteps].step;
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
