// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_RUN_STEP_H_
#define MILLRACE_SERVING_RUN_STEP_H_

// RunStep: one step within the bounds of a request. All that a request runs ends here, batched or
// not.
//
// Thread-safety: any thread.
// Failure: Cancelled and DeadlineExceeded as the bounds say, else as the step. Results are empty
// after an error of the step.

#include "absl/types/span.h"
#include "core/status.h"
#include "core/tensor.h"
#include "serving/step_bounds.h"

namespace millrace {

class PreparedStep;  // runtime/session.h

// Whether a step may still begin.
Status CheckBounds(const StepBounds& bounds);

Status RunStep(PreparedStep* step, const StepBounds& bounds, absl::Span<const Tensor> feeds,
               absl::Span<Tensor> results);

}  // namespace millrace

#endif  // MILLRACE_SERVING_RUN_STEP_H_
