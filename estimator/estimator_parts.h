// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_ESTIMATOR_ESTIMATOR_PARTS_H_
#define MILLRACE_ESTIMATOR_ESTIMATOR_PARTS_H_

// EstimatorParts: what an Estimator is made of. Each of its calls is a function of them, in a file
// of its own; users call them through estimator/estimator.h.
//
// Plain data, immutable once made but for what it counts and has said.

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/clock.h"
#include "core/file_system.h"
#include "core/status.h"
#include "estimator/estimator.h"
#include "estimator/model_tensors.h"
#include "estimator/said_once.h"

namespace millrace {

struct EstimatorParts {
  Status status;  // not OK: there is no model, and nothing else is of use
  // The line that made the Estimator: what it adds to a model's graph names it.
  std::source_location where;
  ModelFn model_fn;
  std::string model_dir;
  RunConfig config;
  Params params;
  std::optional<WarmStart> warm_start;
  Clock* clock = Clock::Real();
  FileSystem* file_system = FileSystem::Default();
  // How many evaluations this Estimator and its copies have made in this process. Early stopping
  // looks again when it has changed. Relaxed: what was measured is read from files.
  std::shared_ptr<std::atomic<int64_t>> evaluations = std::make_shared<std::atomic<int64_t>>(0);
  // What its exports have said of signatures.
  std::shared_ptr<SaidOnce> said = std::make_shared<SaidOnce>();
};

// What TrainAndEvaluate adds to one task's training.
struct TrainTaskOptions {
  // In place of config.master(): of the server that this task has started.
  std::optional<std::string> target = {};
  // A chief whose data has ended waits for the data of others (train/monitored_session.h), and so
  // long for those that have not come yet. Off: each ends by itself, and the chief's end is the
  // run's.
  bool await_trainers = false;
  absl::Duration trainers_grace = absl::Seconds(20);
  absl::Duration end_grace = absl::Seconds(20);
  // A chief whose last step was reached before, and whose run has no recorded end (it died between
  // the two), opens a session all the same and records it.
  bool records_end = false;
};

StatusOr<TrainOutcome> TrainModel(const EstimatorParts& parts, const InputFn& input_fn,
                                  const TrainCall& call, const TrainTaskOptions& task = {});
StatusOr<EvalResult> EvaluateModel(const EstimatorParts& parts, const InputFn& input_fn,
                                   const EvaluateCall& call);
StatusOr<std::unique_ptr<PredictionStream>> PredictWithModel(const EstimatorParts& parts,
                                                             const InputFn& input_fn,
                                                             const PredictCall& call);
// Those of the keys; all for none. InvalidArgument when there is none of them.
StatusOr<Predictions::Map> PredictionsToGive(const Predictions& predictions,
                                             const std::vector<std::string>& keys);
StatusOr<std::string> ExportWithReceivers(const EstimatorParts& parts,
                                          const std::string& export_dir_base,
                                          const ExportReceivers& receivers, const ExportCall& call);
// Whether an export for serving can have a graph and signatures: builds them, and nothing else.
Status CheckExport(const EstimatorParts& parts, const ServingInputReceiverFn& receiver_fn);

// Exports of one directory are subdirectories whose names are exactly ten digits: the second of the
// export, or more. Other tools' directories have other names: nullopt.
std::optional<int64_t> ExportNumber(absl::string_view name);

// Where the results of evaluations of that name are written.
std::string EvalDirectory(const std::string& model_dir, const std::string& name);

// Is an evaluation of `step`, which was there when a training began at the global step `began_at`
// (-1: the model was new), another training's? That one's checkpoints were deleted, and not its
// evaluations.
inline bool IsOfAnotherTraining(int64_t step, int64_t began_at) { return step > began_at; }

// The checkpoint that a call means: `asked`, else the latest of model_dir; "" when there is none.
// NotFound for one that was asked for and is not there.
StatusOr<std::string> CheckpointToUse(const EstimatorParts& parts, const std::string& asked);
// The value of "global_step" in it; nullopt: it has none.
StatusOr<std::optional<int64_t>> GlobalStepIn(FileSystem* fs, const std::string& checkpoint);

}  // namespace millrace

#endif  // MILLRACE_ESTIMATOR_ESTIMATOR_PARTS_H_
