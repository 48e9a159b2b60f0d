// SPDX-License-Identifier: Apache-2.0
#include "serving/run_step.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/cancellation.h"
#include "proto/config.pb.h"
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
  if (bounds.deadline == absl::InfiniteFuture()) return step->RunInto(feeds, results);
  tensorflow::RunOptions options;
  const int64_t left_ms =
      absl::ToInt64Milliseconds(bounds.deadline - absl::Now() + absl::Microseconds(999));
  options.set_timeout_in_ms(std::max(left_ms, int64_t{1}));  // 0 would be none
  MR_ASSIGN_OR_RETURN(std::vector<Tensor> values, step->Run(options, feeds, nullptr));
  if (values.size() != results.size()) {
    return Internal("Predict: a step must return ", results.size(), " tensors, got ",
                    values.size());
  }
  std::move(values.begin(), values.end(), results.begin());
  return absl::OkStatus();
}

}  // namespace millrace
