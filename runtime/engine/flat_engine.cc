// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/flat_engine.h"

#include <atomic>
#include <cstddef>
#include <memory>

#include "absl/base/optimization.h"
#include "runtime/engine/flat_step.h"
#include "runtime/engine/step.h"

namespace millrace {

FlatEngine::~FlatEngine() {
  for (Place& place : pool_) delete place.step.load(std::memory_order_acquire);
}

inline FlatStep* FlatEngine::Take(size_t place) {
  std::atomic<FlatStep*>& step = pool_[place].step;
  if (step.load(std::memory_order_relaxed) == nullptr) return nullptr;
  return step.exchange(nullptr, std::memory_order_acquire);
}

inline bool FlatEngine::Put(size_t place, FlatStep* step) {
  FlatStep* expected = nullptr;
  return pool_[place].step.load(std::memory_order_relaxed) == nullptr &&
         pool_[place].step.compare_exchange_strong(expected, step, std::memory_order_release,
                                                   std::memory_order_relaxed);
}

Step* FlatEngine::Begin(const StepStart& start) {
  const size_t mine = MyPlace();
  FlatStep* step = Take(mine);
  for (size_t i = 1; ABSL_PREDICT_FALSE(step == nullptr) && i < kPooledSteps; ++i) {
    step = Take((mine + i) % kPooledSteps);
  }
  std::unique_ptr<FlatStep> owned(step != nullptr ? step : new FlatStep(this));
  owned->Begin(start);
  return owned.release();
}

void FlatEngine::Release(FlatStep* step) {
  const size_t mine = MyPlace();
  if (ABSL_PREDICT_TRUE(Put(mine, step))) return;
  for (size_t i = 1; i < kPooledSteps; ++i) {
    if (Put((mine + i) % kPooledSteps, step)) return;
  }
  delete step;
}

}  // namespace millrace
