// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_ESTIMATOR_EVALUATING_LISTENER_H_
#define MILLRACE_ESTIMATOR_EVALUATING_LISTENER_H_

// EvaluatingListener: evaluates and exports after checkpoints, in the process that writes them: one
// process alone, or a master. Training waits meanwhile.
//
//   the checkpoint with which a session begins    not evaluated
//   a later one                                   when throttle_secs have passed since the begin
//                                                 of the last evaluation
//   at the end                                    the last one, unless it was, as the last one,
//                                                 here or by a job that ended with it
//
// After a signal nothing is evaluated: the job is to go on.
//
// Thread-safety: as a hook. Lifetime: what it is given outlives it.

#include <optional>

#include "core/clock.h"
#include "core/termination.h"
#include "estimator/estimator.h"
#include "estimator/evaluation_round.h"
#include "estimator/train_and_evaluate.h"
#include "runtime/session.h"
#include "train/hooks/checkpoint_saver.h"

namespace millrace {

class EvaluatingListener : public CheckpointSaverListener {
 public:
  // What training begins with.
  struct Start {
    int64_t step = 0;
    bool was_end = false;  // a job before this one has ended there
  };
  // `ends_are_final`: whether the end of a loop is that of the job also where max_steps was not
  // reached.
  EvaluatingListener(const Estimator& estimator, const EvalSpec& spec,
                     std::optional<int64_t> max_steps, const Start& start, bool ends_are_final);
  StatusOr<bool> AfterSave(Session* session, int64_t global_step,
                           const std::string& checkpoint) override;
  Status End(Session* session, int64_t global_step) override;

  const TrainAndEvaluateResult& result() const { return round_.result(); }

 private:
  const Start start_;
  const bool ends_are_final_;
  const absl::Duration throttle_;
  Clock* const clock_;
  const TerminationRequest request_;
  EvaluationRound round_;
  std::optional<absl::Time> began_;  // the last evaluation
  bool has_said_throttled_ = false;  // since then
  int64_t evaluated_step_ = -1;
};

}  // namespace millrace

#endif  // MILLRACE_ESTIMATOR_EVALUATING_LISTENER_H_
