// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_STEP_RUNNER_H_
#define MILLRACE_SERVING_STEP_RUNNER_H_

// StepRunner: the way from a request to its step. A model without one runs each request's step at
// once, alone (serving/run_step.h); one that batches runs the rows of several requests in one step
// (serving/batching/).
//
// Thread-safety: all methods, from any thread; many Runs at once.
// Lifetime: a step lives until its Runs have returned, and its Forget has returned before it is
// destroyed: what a runner keeps of a step never outlives it.
// Failure: as the step. Results are empty after an error.

#include "absl/types/span.h"
#include "core/status.h"
#include "core/tensor.h"

namespace millrace {

class PreparedStep;  // runtime/session.h
struct StepBounds;   // serving/step_bounds.h

class StepRunner {
 public:
  virtual ~StepRunner() = default;
  // `feeds` in the order of the step's signature, `results` a place for each of its fetches. Both
  // are not touched after the return.
  virtual Status Run(PreparedStep* step, const StepBounds& bounds, absl::Span<const Tensor> feeds,
                     absl::Span<Tensor> results) = 0;
  // The step goes away. A step that never ran is fine, too.
  virtual void Forget(PreparedStep* step) = 0;
};

}  // namespace millrace

#endif  // MILLRACE_SERVING_STEP_RUNNER_H_
