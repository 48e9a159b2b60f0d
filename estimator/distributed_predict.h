// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_ESTIMATOR_DISTRIBUTED_PREDICT_H_
#define MILLRACE_ESTIMATOR_DISTRIBUTED_PREDICT_H_

// PredictOnCluster: predictions of much data by all tasks of a cluster: the same call everywhere,
// TF_CONFIG says which part is this process's. Servers are its business.
//
//   MR_ASSIGN_OR_RETURN(const ClusterPrediction done,
//                       PredictOnCluster(estimator, rows, {.output_dir = "predicted",
//                                                          .forward_features = {"id"}}));
//
//   task        what it does
//   (none)      predicts everything
//   ps          holds variables until everything is predicted
//   chief       restores the checkpoint into the ps, once; predicts; does what others leave
//               undone; writes the manifest. So does a master
//   worker i    predicts
//   evaluator   nothing
//
// The input is cut into parts, which are dealt out among the tasks that predict: task k of n has
// part k, n + k, .... A part is every num_parts-th element of the Dataset, batches as a rule, or
// every num_parts-th file. Every row is in the files of `<output_dir>/manifest.json`
// (estimator/prediction_files.h) once: what was killed is predicted again, as a whole part, by the
// task when it is started again, or by the chief when the task has shown no sign of life for
// worker_grace_secs; the chief chooses one of several attempts. So the input must give the same
// elements in the same order in all tasks: shuffles do, generators may not.
//
// When a manifest is there everybody leaves with OK, those that are started again, too. To predict
// anew, give another directory or remove it.
//
// A task that waits for another names it every 10 s: workers for the chief, and all for the
// parameter servers, for RunConfig::session_creation_timeout_secs at most: DeadlineExceeded. The
// chief waits for no worker longer than its grace, and a parameter server until the end, as in
// training (docs/training_runs.md).
//
// Without parameter servers each task restores the checkpoint for itself.
//
// Failure: InvalidArgument for what can never work; FailedPrecondition for a directory of other
// predictions, and a cluster without a checkpoint; of the functions, of steps, of files.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/status.h"
#include "distributed/server.h"
#include "estimator/estimator.h"
#include "estimator/prediction_files.h"  // IWYU pragma: export
#include "estimator/prediction_shard.h"  // IWYU pragma: export

namespace millrace {

// Input whose parts are files, as jobs of Hadoop and Spark write them.
struct InputFiles {
  std::vector<std::string> patterns = {};  // "clicks/part-r-*"; the chief looks
  // A Dataset of these files. Called with all, and with those of a part.
  std::function<StatusOr<Input>(const std::vector<std::string>& files)> input_fn = {};
};

struct ClusterPredictOptions {
  std::string output_dir = "";  // required; one directory for all tasks
  PredictionFormat format = PredictionFormat::kJsonLines;
  // More than there are tasks: less is predicted again when one dies. 0: one for each.
  int64_t num_parts = 0;
  // Of the predictions; none: all.
  std::vector<std::string> predict_keys = {};
  // Features that are written with them, to know rows by.
  std::vector<std::string> forward_features = {};
  std::string checkpoint_path = "";  // "": the latest one when the chief begins
  Hooks hooks = {};
  double worker_grace_secs = 20;
  // How long an end that was there before a task is not believed (docs/training_runs.md).
  double end_grace_secs = 20;
  ServerOptions server = {};
};

struct ClusterPrediction {
  int64_t own_rows = 0;  // that this task predicted now
  // Of everything: of the chief, and where it was there before.
  std::optional<PredictionManifest> manifest = {};
};

StatusOr<ClusterPrediction> PredictOnCluster(const Estimator& estimator, const InputFn& input_fn,
                                             const ClusterPredictOptions& options);
StatusOr<ClusterPrediction> PredictOnCluster(const Estimator& estimator, const InputFiles& files,
                                             const ClusterPredictOptions& options);

}  // namespace millrace

#endif  // MILLRACE_ESTIMATOR_DISTRIBUTED_PREDICT_H_
