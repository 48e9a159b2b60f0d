// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_ESTIMATOR_RUN_EVALUATOR_H_
#define MILLRACE_ESTIMATOR_RUN_EVALUATOR_H_

// RunEvaluator: the evaluator's part of TrainAndEvaluate: it watches model_dir and evaluates each
// new checkpoint, at most each throttle_secs, until training is over.
//
//   waits start_delay_secs -> { evaluates the latest checkpoint, waits the rest of throttle_secs }
//     -> the end of the run is believed -> evaluates its checkpoint as the last one -> leaves
//     -> max_steps was evaluated and no end is recorded for end_grace -> leaves
//     -> nothing new for evaluator_idle_timeout_secs -> leaves
//
// It looks for the end once a second, whatever the throttle. An end is believed at once when it
// reaches max_steps or came while this task looked; else when it has stood for end_grace
// (run/end_belief.h). When it has evaluated the last checkpoint it writes `evaluation_done`
// (estimator/evaluation_done.h).
// With tensorflow_ends it leaves when max_steps was evaluated, and else never.
//
// What it waits for is in the log, at most each ten minutes.

#include <optional>

#include "core/status.h"
#include "estimator/estimator.h"
#include "estimator/train_and_evaluate.h"

namespace millrace {

StatusOr<TrainAndEvaluateResult> RunEvaluator(const Estimator& estimator,
                                              std::optional<int64_t> max_steps,
                                              const EvalSpec& spec,
                                              const TrainAndEvaluateOptions& options);

}  // namespace millrace

#endif  // MILLRACE_ESTIMATOR_RUN_EVALUATOR_H_
