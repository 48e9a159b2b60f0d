// SPDX-License-Identifier: Apache-2.0
#include "serving/run_step.h"

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/cancellation.h"
#include "runtime/session.h"

namespace millrace {

Status CheckBounds(const StepBounds& bounds) {
  if (bounds.cancellation != nullptr && bounds.cancellation->IsCancelled()) {
    return absl::CancelledError("Request was cancelled before its step began");
  }
  if (bounds.deadline != absl::InfiniteFuture() && bounds.deadline <= absl::Now()) {
    return absl::DeadlineExceededError("Request's deadline passed before its step began");
  }
  return absl::OkStatus();
}

Status RunStep(PreparedStep* step, const StepBounds& bounds, absl::Span<const Tensor> feeds,
               absl::Span<Tensor> results) {
  MR_RETURN_IF_ERROR(CheckBounds(bounds));
  return step->RunInto({.deadline = bounds.deadline, .cancellation = bounds.cancellation}, feeds,
                       results);
}

}  // namespace millrace
