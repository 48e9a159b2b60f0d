// SPDX-License-Identifier: Apache-2.0
#include "runtime/flat_engine.h"

#include "runtime/flat_step.h"

namespace millrace {

FlatEngine::~FlatEngine() {
  for (std::atomic<FlatStep*>& place : pool_) delete place.load(std::memory_order_acquire);
}

FlatStep* FlatEngine::Acquire() {
  for (std::atomic<FlatStep*>& place : pool_) {
    if (place.load(std::memory_order_relaxed) == nullptr) continue;
    if (FlatStep* step = place.exchange(nullptr, std::memory_order_acquire)) return step;
  }
  return new FlatStep(this);
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
