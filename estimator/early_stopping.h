// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_ESTIMATOR_EARLY_STOPPING_H_
#define MILLRACE_ESTIMATOR_EARLY_STOPPING_H_

// Early stopping of an Estimator, by the name of a metric:
//
//   TrainAndEvaluate(income, {.input_fn = people, .max_steps = 100'000,
//                             .hooks = {StopIfNoIncrease(income, "auc", 1500)}},
//                    {.input_fn = others});
//
// Each makes a hook that all tasks that train are given. The chief reads what evaluations have
// written to the estimator's `eval` directory, and ends the training of all tasks when the metric
// says so; the reason of the end names the metric. What one process, a master or an evaluator
// measured counts alike: an evaluation that this Estimator (or a copy of it) makes in the training
// process is read before the next step, one of another process after `every` at the latest. A job
// that is started again when the evaluations still say so leaves without a step
// (train/hooks/early_stopping.h).
//
// No evaluations: training goes on. Of several at one step the last one counts. Those that are
// there when training begins, of steps that it has not reached, are another training's (whose
// checkpoints were deleted) and do not count.
//
// Failure: what is wrong with the arguments, InvalidArgument when training begins; evaluations that
// do not have the metric, InvalidArgument when the first is there, with the names that they have.
// Event files that are damaged are read as far as they can be, with one warning for each damage.
// Storage that does not answer stops no training: one warning, and the next look reads again.

#include <cstdint>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "estimator/estimator.h"
#include "train/every.h"
#include "train/session_run_hook.h"

namespace millrace {

struct StopByMetric {
  // Evaluations before this step do not count.
  int64_t min_steps = 0;
  // Where results are; "": those of evaluations without a name. EvalSpec{.name = "x"} writes to
  // <model_dir>/eval_x.
  std::string eval_dir = "";
  // Steps of the chief, or time, between two looks for evaluations of other processes.
  Every every = absl::Seconds(60);
};

// When an evaluation comes `max_steps` or more after the best one, the largest or smallest value.
std::shared_ptr<SessionRunHook> StopIfNoIncrease(const Estimator& estimator,
                                                 const std::string& metric, int64_t max_steps,
                                                 const StopByMetric& options = {});
std::shared_ptr<SessionRunHook> StopIfNoDecrease(const Estimator& estimator,
                                                 const std::string& metric, int64_t max_steps,
                                                 const StopByMetric& options = {});
// When an evaluation is above or below the threshold.
std::shared_ptr<SessionRunHook> StopIfHigher(const Estimator& estimator, const std::string& metric,
                                             double threshold, const StopByMetric& options = {});
std::shared_ptr<SessionRunHook> StopIfLower(const Estimator& estimator, const std::string& metric,
                                            double threshold, const StopByMetric& options = {});

}  // namespace millrace

#endif  // MILLRACE_ESTIMATOR_EARLY_STOPPING_H_
