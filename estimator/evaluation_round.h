// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_ESTIMATOR_EVALUATION_ROUND_H_
#define MILLRACE_ESTIMATOR_EVALUATION_ROUND_H_

// EvaluationRound: evaluates checkpoints for an EvalSpec, each once, and asks its exporters. It is
// made when a job begins: the checkpoints that are there then say how far its training has come.
//
//   EvaluationRound round(estimator, eval_spec, max_steps);
//   MR_ASSIGN_OR_RETURN(auto outcome, round.EvaluateLatest(is_last));
//
// A checkpoint that is deleted while it is evaluated is given up for the newer one; there is none
// only when nobody writes any more, and then that is the error.
//
// Thread-safety: thread-compatible. Lifetime: what it is given outlives it.
// Failure: of Evaluate and of exporters.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/status.h"
#include "estimator/estimator.h"
#include "estimator/train_and_evaluate.h"

namespace millrace {

class EvaluationRound {
 public:
  // What a round came to.
  enum class Outcome {
    kEvaluated,
    kMissingCheckpoint,  // there is none yet
    kNoNewCheckpoint,    // the latest one was evaluated before
  };

  EvaluationRound(const Estimator& estimator, const EvalSpec& spec,
                  std::optional<int64_t> max_steps);

  // `is_last`: no later one is to come, whatever its step.
  StatusOr<Outcome> EvaluateLatest(bool is_last);
  // This one, although it was evaluated before: nothing is evaluated twice, exporters are asked
  // whether it is the final one. Latest when "" or gone.
  StatusOr<Outcome> EvaluateLast(const std::string& checkpoint);

  const TrainAndEvaluateResult& result() const { return result_; }
  // The step of the last evaluation; -1 before.
  int64_t evaluated_step() const {
    return result_.evaluation ? result_.evaluation->global_step : -1;
  }
  bool reached_max_steps() const { return max_steps_ && evaluated_step() >= *max_steps_; }

 private:
  Status Evaluate(std::string checkpoint, bool is_last);
  Status Export(bool is_final);

  const Estimator& estimator_;
  const EvalSpec& spec_;
  const std::optional<int64_t> max_steps_;
  std::string evaluated_;        // the checkpoint; "": none
  bool exported_final_ = false;  // of it
  // For the exporters' first call; nullopt: it was, or a checkpoint without a global step was
  // there.
  std::optional<int64_t> began_at_;
  TrainAndEvaluateResult result_;
};

}  // namespace millrace

#endif  // MILLRACE_ESTIMATOR_EVALUATION_ROUND_H_
