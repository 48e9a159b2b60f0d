// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_RUNTIME_ENGINE_ENGINE_H_
#define MILLRACE_RUNTIME_ENGINE_ENGINE_H_

// Engine: runs the steps of one plan; what they share besides the plan.
//
// FlatEngine runs plans without frames. The executor chooses by the plan.
//
// Thread-safety: all methods, from any thread.
// Lifetime: outlives its steps, but not those that were abandoned (step.h).
// Failure: no memory for a step's state is std::bad_alloc, and nothing has begun then.

#include <atomic>
#include <cstdint>

#include "runtime/engine/step.h"
#include "runtime/plan.h"

namespace millrace {

class Engine {
 public:
  virtual ~Engine() = default;
  virtual const Plan& plan() const = 0;
  virtual Step* Begin(const StepStart& start) = 0;

  std::atomic<int64_t> wakeups{0};         // relaxed: counts only
  std::atomic<int64_t> blocking_waits{0};  // relaxed: counts only
};

}  // namespace millrace

#endif  // MILLRACE_RUNTIME_ENGINE_ENGINE_H_
