// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_TRAIN_H_
#define MILLRACE_TRAIN_TRAIN_H_

// Train: the training loop in one call, in one process or as a task of a cluster.
//
//   Operation op = AdamOptimizer({.learning_rate = 0.01}).Minimize(model, loss);
//   MR_ASSIGN_OR_RETURN(TrainResult result, Train(model, op, {
//       .data = [&] { return Feeds{{x, NextImages()}, {t, NextLabels()}}; },
//       .steps = 1000,
//       .dir = "run",
//       .loss = loss}));
//
// It is a Supervisor with a loop: the chief initialises the variables or goes on from the latest
// checkpoint of `dir`, the others wait for it; each runs `op` with the next feeds until the steps
// are done or the data ends; the chief saves, evaluates, exports. A lost parameter server means a
// new session, from the last checkpoint.
//
// With `op` a step runs what keeps the model whole with it: the updates in the graph's collection
// "update_ops", the moving averages of batch normalisation, unless `op` runs them itself
// (TrainWithUpdates) or .update_ops is off. They run with it in no order: an update of one's own
// that reads a weight says by control dependencies whether before or after the weight's.
//
// When the chief has run all steps, or its data has ended, training is over for all tasks
// (train/supervisor.h), also where others have data left: jobs that end with the data (steps = 0)
// give the chief as much as anybody, and it logs that its end is that of the run. A task that still
// waits, or comes later, has nothing to do and returns OK with no steps of its own; when the run
// ended before `steps`, or they are 0, after .supervisor.end_grace. The data of another task ends
// that task alone.
//
// Steps are those of the graph's global step: of all tasks together, and of earlier runs. A graph
// without one gets it, and an `op` that does not count (Minimize without .global_step) is counted.
//
// SIGTERM and Ctrl-C end the loop after the step that runs: the chief saves a last checkpoint, the
// session is closed, and the result is Cancelled with the exit code 143 or 130 (core/exit_code.h).
// The same program, started again, goes on from there. A step, or data, that takes too long is not
// waited for (train/supervisor.h). A second signal ends the process at once.
//
// A checkpoint that cannot be written (a full disk) ends nothing: it is tried again with pauses.
// When the last one cannot be written, that is the result, and its exit code the one of what is
// worth another try, also after a signal.
//
// Train finalizes the graph: one call per graph. It prints to stdout (unless `.progress` is off):
//
//   step 120/1000  loss 3.21  15.2 steps/s  0:58 left     the chief, train/progress.h
//   Step: 100, loss: 3.4                                  every task, each .report_every
//   Step: 100, loss: 3.4, staleness: 12                   where others train, too (Staleness)
//   Step: 100, <what .eval returned>                      the chief
//   Saved run/model.ckpt-100                              the chief
//
// The chief's losses and steps a second are in event files of `dir`, for TensorBoard.
//
// Thread-safety: one call at a time per graph. `data` and `eval` run on the caller's thread.
// Failure: InvalidArgument for options that cannot work, before a session is made; the error of a
// step, of `data`, of `eval`; the NaN guard's; that of the last checkpoint. Unless the session is
// lost or the loss was not finite, what was trained is saved all the same.

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "core/status.h"
#include "graph/scope.h"
#include "runtime/session.h"
#include "saver/export_model.h"
#include "train/every.h"  // IWYU pragma: export
#include "train/supervisor.h"

namespace millrace {

// What one step is fed with.
using Feeds = std::vector<Feed>;
// nullopt: the data has ended.
using FeedsOrEnd = StatusOr<std::optional<Feeds>>;

struct TrainOptions {
  // The next feeds, or the end: a callable that returns Feeds, std::optional<Feeds> or FeedsOrEnd.
  // OutOfRange is the end, too. Best in the same order each time. None: the graph makes its own
  // input.
  std::function<FeedsOrEnd()> data = {};
  // Global steps at which to end; 0: with the data, that of the chief for all tasks.
  int64_t steps = 0;
  // Where checkpoints go, for all tasks the same; "": none, nothing is gone on from, and other
  // tasks do not hear of the end (SupervisorOptions::logdir).
  std::string dir = "";
  // Of the server: server->target(). "": in this process.
  std::string target = "";
  bool is_chief = true;
  // Off: `op` runs all that a step is to run. For a graph with another model, whose "update_ops"
  // need feeds that this one's data do not have.
  bool update_ops = true;
  // For asynchronous training with parameter servers: the variables of a step come with the end of
  // the one before, and a step is one message each way for each server, not two. What others update
  // between two steps is not seen until the next one (train/read_ahead.h, docs/training_runs.md).
  // Without parameter servers it does nothing; the log says what is read ahead.
  bool read_ahead = false;
  // A scalar: shown, and guarded against NaN.
  Output loss = {};
  // Called on the chief each so often and at the end; what it returns is printed, unless "".
  std::function<StatusOr<std::string>(Session*)> eval = {};
  Every eval_every = {};
  // Checkpoints; the last one always. By time they are written while training goes on.
  Every save_every = absl::Minutes(10);
  // "Step: N, loss: L" of every task.
  Every report_every = {};
  // For TensorBoard, in event files of `dir`, by the chief: "loss" and "global_step/sec", and each
  // checkpoint. Also of the first and of the last step. They reach the file with each checkpoint
  // and within 10 s.
  Every summary_every = 100;
  // A SavedModel of `signature`, written by the chief at the end (saver/export_model.h). When the
  // steps were done before and the model is there, nothing is to be done.
  std::string export_to = "";
  ServingSignature signature = {};
  // New sessions after a lost parameter server before giving up.
  int max_recoveries = 20;
  bool progress = true;
  // Off: signals do what they did before.
  bool handle_signals = true;
  // What is not said above.
  SupervisorOptions supervisor = {};
};

struct TrainResult {
  int64_t global_step = 0;  // as this task saw it last
  int64_t own_steps = 0;    // that this task ran
  // Of the last own step; without one (the steps were done before), of the last step whose loss
  // the event files of `dir` have; NaN: nobody knows it.
  double loss = std::numeric_limits<double>::quiet_NaN();
  Staleness staleness;          // of the own steps
  std::string checkpoint = "";  // the last one; "" for none
  // Why training has ended, for people; also in the log: "reached step 1000 of 1000", "the data
  // ended after step 240", "step 1000 of 1000 was reached before".
  std::string reason = "";
};

// `at` is the model's graph, `op` what a step runs (what Minimize returned).
StatusOr<TrainResult> Train(ScopeAt at, const Operation& op, const TrainOptions& options);

}  // namespace millrace

#endif  // MILLRACE_TRAIN_TRAIN_H_
