// SPDX-License-Identifier: Apache-2.0
#include "estimator/evaluating_listener.h"

#include <utility>

#include "core/logging.h"
#include "core/status.h"
#include "estimator/estimator.h"
#include "estimator/estimator_parts.h"
#include "estimator/train_and_evaluate.h"
#include "runtime/session.h"

namespace millrace {

EvaluatingListener::EvaluatingListener(const Estimator& estimator, const EvalSpec& spec,
                                       std::optional<int64_t> max_steps, const Start& start,
                                       bool ends_are_final)
    : start_(start),
      ends_are_final_(ends_are_final),
      throttle_(absl::Seconds(spec.throttle_secs)),
      clock_(estimator.parts().clock),
      round_(estimator, spec, max_steps) {}

StatusOr<bool> EvaluatingListener::AfterSave(Session*, int64_t global_step, const std::string&) {
  if (global_step <= start_.step || request_.signal() != 0) return false;
  const absl::Time now = clock_->Now();
  if (began_ && now - *began_ < throttle_) {
    if (!std::exchange(has_said_throttled_, true)) {
      LogInfo("Estimator: the checkpoint of step ", global_step,
              " is not evaluated: the last evaluation began less than throttle_secs ago");
    }
    return false;
  }
  began_ = now;
  has_said_throttled_ = false;
  MR_RETURN_IF_ERROR(round_.EvaluateLatest(/*is_last=*/false).status());
  evaluated_step_ = global_step;
  return false;
}

Status EvaluatingListener::End(Session*, int64_t global_step) {
  if (request_.signal() != 0) return absl::OkStatus();
  if (global_step == start_.step && start_.was_end) {
    LogInfo("Estimator: nothing was trained after step ", global_step,
            ", with which the job before had ended: nothing is evaluated again");
    return absl::OkStatus();
  }
  MR_ASSIGN_OR_RETURN(const EvaluationRound::Outcome outcome,
                      round_.EvaluateLatest(/*is_last=*/ends_are_final_));
  if (outcome == EvaluationRound::Outcome::kEvaluated || evaluated_step_ == global_step) {
    return absl::OkStatus();
  }
  return Internal("Estimator: there must be a new checkpoint after the training, got none");
}

}  // namespace millrace
