// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_ESTIMATOR_TRAIN_AND_EVALUATE_H_
#define MILLRACE_ESTIMATOR_TRAIN_AND_EVALUATE_H_

// TrainAndEvaluate: the whole life of a job, in one process or as one task of a cluster: the same
// call everywhere, TF_CONFIG says which part is this process's.
//
//   int main(...) {
//     ...
//     return TrainAndEvaluate(estimator,
//                             {.input_fn = train_input, .max_steps = 10000},
//                             {.input_fn = eval_input, .steps = 100, .exporters = {final}})
//         .status();
//
//   task        what it does
//   (none)      trains; evaluates and exports after checkpoints, at most each throttle_secs
//   ps          serves variables until the run has ended
//   chief       trains, writes checkpoints, says when training is over
//   worker i    trains, begins 5 (i + 1) s later, 60 s at most; leaves at once when the run has
//               ended by then
//   master      a chief that evaluates as one process does
//   evaluator   evaluates and exports each new checkpoint; no server, in no cluster
//
// The end. The chief says that training is over (docs/training_runs.md): at max_steps, when a hook
// stops it, or when the data of every trainer has ended (train/monitored_session.h: one that died
// is not waited for when its lease is over). Its last checkpoint is the one that counts: the
// evaluator evaluates it as the last one, with is_the_final_export, writes `evaluation_done` in
// model_dir and leaves; ps and workers leave with 0. A task that is started again afterwards finds
// that out and leaves with 0, also after an early stop: it trains no step, evaluates and exports
// nothing again. A chief with more steps to do takes the record back.
//
// A line of the log sums the job up at its end: its time, why it ended, the best evaluation, and
// what is exported. A chief, which cannot know whether there is an evaluator, says what it leaves
// to that task, and warns at the end when no evaluation was made.
//
// docs/estimator.md has what happens when each task dies.
//
// Failure: InvalidArgument for specs and TF_CONFIG that cannot work, at once; exporters too, whose
// serving graph the chief and the tasks that evaluate build first, so that a receiver without a
// feature of the model ends the job before its first step. That of Train, Evaluate and exporters.
// An evaluation whose checkpoint was deleted meanwhile takes the newer one.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "core/status.h"
#include "distributed/server.h"
#include "estimator/estimator.h"
#include "estimator/exporter.h"
#include "estimator/input_fn.h"

namespace millrace {

struct TrainSpec {
  InputFn input_fn;                       // required
  std::optional<int64_t> max_steps = {};  // > 0; none: to the end of the data
  Hooks hooks = {};                       // of all tasks that train
  SavingListeners saving_listeners = {};  // of the chief
};

struct EvalSpec {
  InputFn input_fn;                    // required
  std::optional<int64_t> steps = 100;  // batches, > 0; none: to the end of the data
  std::string name = "";
  Hooks hooks = {};
  std::vector<std::shared_ptr<Exporter>> exporters = {};
  double start_delay_secs = 120;  // of the evaluator, >= 0
  double throttle_secs = 600;     // between two evaluations, >= 0
};

// What TensorFlow has no word for.
struct TrainAndEvaluateOptions {
  // One process: TensorFlow 1.4's loop, which trains for throttle_secs, evaluates, and begins the
  // training data anew.
  bool legacy_local_loop = false;
  // One process: evaluates the latest checkpoint also when max_steps was reached before.
  bool evaluate_when_trained_before = false;
  // The end is nobody's but each task's own, as in TensorFlow: a ps serves until it is killed, an
  // evaluator waits for max_steps, a chief does not wait for the data of others.
  bool tensorflow_ends = false;
  // How long the chief stays until the last checkpoint has been evaluated.
  double wait_for_evaluator_secs = 0;
  // The evaluator leaves, with OK, when there was no new checkpoint for so long; 0: never.
  double evaluator_idle_timeout_secs = 0;
  // A chief whose data has ended waits for that of the others; for trainers that have not come yet
  // so long, from its own begin on. More than workers take to begin.
  double trainers_grace_secs = 90;
  // An end of training that may be that of an older job is believed after so long
  // (run/end_belief.h).
  double end_grace_secs = 20;
  // Of the server that a task in a cluster starts.
  ServerOptions server = {};
};

struct TrainAndEvaluateResult {
  // Of the last evaluation in this process.
  std::optional<EvalResult> evaluation = {};
  // Of all evaluations in this process the one with the smallest loss, the first of several.
  std::optional<EvalResult> best_evaluation = {};
  int64_t num_evaluations = 0;
  // Paths of what it exported, as far as they are there: exporters delete old exports.
  std::vector<std::string> exports = {};
  // Why the training, or the watch of an evaluator, has ended, for people: as TrainOutcome says it,
  // "reached step 1000 of 1000". "" for a ps.
  std::string reason = "";
};

// How long a worker waits before it begins: 5 s for each worker up to it, at most
// experimental_max_worker_delay_secs, or 60. Steps of early workers spread out so.
double WorkerDelaySecs(const RunConfig& config);

StatusOr<TrainAndEvaluateResult> TrainAndEvaluate(const Estimator& estimator,
                                                  const TrainSpec& train_spec,
                                                  const EvalSpec& eval_spec,
                                                  const TrainAndEvaluateOptions& options = {});

}  // namespace millrace

#endif  // MILLRACE_ESTIMATOR_TRAIN_AND_EVALUATE_H_
