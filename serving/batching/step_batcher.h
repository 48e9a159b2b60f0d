// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_BATCHING_STEP_BATCHER_H_
#define MILLRACE_SERVING_BATCHING_STEP_BATCHER_H_

// StepBatcher: runs the steps of all versions of a server, those of several requests in one step.
// There are two: LeaderBatcher, without a timer, and TimedBatcher, as TensorFlow Serving's.
//
// Both have one queue per step, so per version, inputs and outputs. Requests with inputs that do
// not fit together never share a batch. A request runs alone, at once, where it can join nothing:
// it has no rows, or inputs of resources or variants, or its step was seen to have outputs that are
// not per row.
//
// Thread-safety, lifetime: as StepRunner (serving/step_runner.h).
// Failure: InvalidArgument for inputs without rows or with different numbers of them, of a
// TimedBatcher (a LeaderBatcher runs them alone); what
// EndedInQueue says (serving/batching/run_batch.h); else as the step.

#include <cstdint>
#include <string>

#include "absl/types/span.h"
#include "core/status.h"
#include "core/tensor.h"
#include "serving/batching/batch_parameters.h"
#include "serving/step_bounds.h"

namespace millrace {

class PreparedStep;  // runtime/session.h

// A version whose steps are run.
struct BatchClient {
  std::string label;  // for the log
  BatchParameters parameters = {};
};

class StepBatcher {
 public:
  virtual ~StepBatcher() = default;
  virtual Status Run(const BatchClient& client, PreparedStep* step, const StepBounds& bounds,
                     absl::Span<const Tensor> feeds, absl::Span<Tensor> results) = 0;
  virtual void Forget(PreparedStep* step) = 0;
  // Steps that have a queue. For tests.
  virtual int num_queues() const = 0;
};

}  // namespace millrace

#endif  // MILLRACE_SERVING_BATCHING_STEP_BATCHER_H_
