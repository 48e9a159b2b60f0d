// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_RUNTIME_ENGINE_STEP_CACHE_H_
#define MILLRACE_RUNTIME_ENGINE_STEP_CACHE_H_

// StepCache: the states of an engine's steps that are over, for reuse.
//
// Invariant: a state is in the cache or used by one step, never both. At most kMaxSteps states are
// kept; more steps at once allocate theirs anew. A thread finds the state again that it used last,
// unless another took it meanwhile: threads that run steps at the same time come to write to memory
// of their own.
//
// Thread-safety: all methods, from any thread; no lock is taken.
// Lifetime: owns what is in it. Failure: none.

#include <array>
#include <atomic>
#include <cstddef>
#include <memory>

#include "absl/base/optimization.h"
#include "core/thread_number.h"
#include "runtime/engine/state_block.h"

namespace millrace {

template <typename S>
class StepCache {
 public:
  StepCache() = default;
  ~StepCache() {
    for (Place& place : places_) delete place.step.load(std::memory_order_acquire);
  }
  StepCache(const StepCache&) = delete;
  StepCache& operator=(const StepCache&) = delete;

  // Null when there is none.
  std::unique_ptr<S> Take() {
    const size_t mine = MyPlace();
    S* step = TakeAt(mine);
    for (size_t i = 1; ABSL_PREDICT_FALSE(step == nullptr) && i < kMaxSteps; ++i) {
      step = TakeAt((mine + i) % kMaxSteps);
    }
    return std::unique_ptr<S>(step);
  }
  // Frees a state for which there is no place.
  void Put(std::unique_ptr<S> step) {
    const size_t mine = MyPlace();
    for (size_t i = 0; i < kMaxSteps; ++i) {
      if (ABSL_PREDICT_TRUE(PutAt((mine + i) % kMaxSteps, step.get()))) {
        static_cast<void>(step.release());
        return;
      }
    }
  }

 private:
  static constexpr size_t kMaxSteps = 16;
  // On a cache line of its own. Release when a state is put in, acquire when it is taken out.
  struct alignas(64) Place {
    std::atomic<S*> step{nullptr};
  };

  // A thread begins to look at the place of its number.
  static size_t MyPlace() { return static_cast<size_t>(ThreadNumber()) % kMaxSteps; }
  S* TakeAt(size_t place) {
    std::atomic<S*>& step = places_[place].step;
    if (step.load(std::memory_order_relaxed) == nullptr) return nullptr;
    return step.exchange(nullptr, std::memory_order_acquire);
  }
  bool PutAt(size_t place, S* step) {
    S* expected = nullptr;
    return places_[place].step.load(std::memory_order_relaxed) == nullptr &&
           places_[place].step.compare_exchange_strong(expected, step, std::memory_order_release,
                                                       std::memory_order_relaxed);
  }

  std::array<Place, kMaxSteps> places_;
};

}  // namespace millrace

#endif  // MILLRACE_RUNTIME_ENGINE_STEP_CACHE_H_
