// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TESTS_SCALING_MANY_WORKERS_H_
#define MILLRACE_TESTS_SCALING_MANY_WORKERS_H_

// TrainTogether: many workers train one model, in one process and in virtual time.
//
// What workers do to the variables is real: the gradients and updates of this runtime's kernels, in
// the order in which a job has them. Only time is not: a step takes what WorkerSpeeds says, and
// parameter servers and messages take none. So 32 workers need one core, and a seed decides all.
//
//   kAsynchronous  a worker reads the variables when its step begins; its gradient, which is of
//                  these, is applied when the step ends, and it begins the next one. With
//                  LearnerOptions::staleness a late gradient is scaled or dropped
//                  (train/staleness_aware.h)
//   kSynchronous   as train/sync_replicas.h: a round ends when all workers but the backups have
//                  given a gradient, with the update by their mean; those that gave begin the next
//                  round together. One that comes later is dropped, and its worker begins at once
//   kLocal         as train/local_sgd.h with a synchronous outer optimizer: each worker trains
//                  variables and slots of its own; after every `local_steps` steps all wait, and
//                  the variables become the mean of theirs
//
// With one worker all of them are training in one process, bit by bit.
//
// A batch counts as consumed when its step ends, dropped or not; batches of steps that run, not
// yet. The model is evaluated after the first update behind each `evaluate_every` examples.
//
// Thread-safety: calls do not share anything. Failure: InvalidArgument for options out of range;
// what the model's steps say.

#include <cstdint>
#include <optional>
#include <vector>

#include "core/status.h"
#include "core/tensor.h"
#include "tests/scaling/auc.h"
#include "tests/scaling/learner.h"
#include "tests/scaling/problem.h"
#include "tests/scaling/worker_speeds.h"

namespace millrace::scaling {

enum class UpdateMode { kAsynchronous, kSynchronous, kLocal };

struct TogetherOptions {
  UpdateMode mode = UpdateMode::kAsynchronous;
  int64_t workers = 1;
  int64_t backup_workers = 0;  // kSynchronous; one worker is no backup
  int64_t local_steps = 8;     // kLocal
  int64_t batch = 32;          // examples in a step of a worker
  LearnerOptions learner = {};
  WorkerSpeedOptions speeds = {};
  uint64_t seed = 1;              // of examples and times; learner.seed is that of initial values
  int64_t evaluate_every = 1024;  // examples
  // The end: so many examples, or an AUC of at least until_auc in the mean over the last
  // `smooth` * evaluate_every examples.
  int64_t until_examples = 0;
  std::optional<double> until_auc = {};
  int64_t smooth = 5;
};

// The span of the moving mean.
inline double SmoothSpan(const TogetherOptions& options) {
  return static_cast<double>(options.smooth * options.evaluate_every);
}

struct Together {
  std::vector<AucPoint> evaluations;
  int64_t examples = 0;  // consumed
  double time = 0;
  int64_t updates = 0;  // of the variables; kLocal: means that were taken
  int64_t dropped = 0;  // gradients
  std::vector<Tensor> weights;
};

StatusOr<Together> TrainTogether(const Problem& problem, const TogetherOptions& options);

}  // namespace millrace::scaling

#endif  // MILLRACE_TESTS_SCALING_MANY_WORKERS_H_
