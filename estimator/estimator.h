// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_ESTIMATOR_ESTIMATOR_H_
#define MILLRACE_ESTIMATOR_ESTIMATOR_H_

// Estimator: a model (ModelFn) that trains, evaluates, predicts and is exported, with its
// checkpoints in one directory. Sessions, servers and savers are its business.
//
//   MR_ASSIGN_OR_RETURN(Estimator line, Estimator::Make(Line, {.model_dir = "run"}));
//   MR_RETURN_IF_ERROR(line.Train(train_input, {.max_steps = 1000}).status());
//   MR_ASSIGN_OR_RETURN(EvalResult result, line.Evaluate(eval_input, {.steps = 10}));
//   MR_ASSIGN_OR_RETURN(auto predictions, line.Predict(predict_input));
//   for (Prediction row;;) {
//     MR_ASSIGN_OR_RETURN(const bool more, predictions->Next(&row));
//     if (!more) break;
//   }
//   MR_RETURN_IF_ERROR(line.ExportSavedModel("export", receiver).status());
//
// Each call builds a graph of its own, in this order: seed, devices (training alone), global step,
// input on this task's CPU, model function, hooks; then it is finalized and a session is made.
//
// In a cluster (TF_CONFIG) Train is one task's part and needs this task's server;
// TrainAndEvaluate (estimator/train_and_evaluate.h) does all that belongs to a task.
// Evaluate, Predict and exports run in this process and use no other.
//
// Thread-safety: all methods, from any thread; the functions of the user are called by one call at
// a time, if the calls are. An immutable value; copies share it.
// Failure: InvalidArgument for what can never work, before a session is made; FailedPrecondition
// for what this task may not do; of the user's functions; of steps; of files.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/clock.h"
#include "core/file_system.h"
#include "core/status.h"
#include "core/tensor.h"
#include "estimator/input_fn.h"       // IWYU pragma: export
#include "estimator/model_fn.h"       // IWYU pragma: export
#include "estimator/params.h"         // IWYU pragma: export
#include "estimator/run_config.h"     // IWYU pragma: export
#include "estimator/serving_input.h"  // IWYU pragma: export
#include "estimator/warm_start.h"     // IWYU pragma: export
#include "train/hooks/checkpoint_saver.h"

namespace millrace {

struct EstimatorParts;

struct EstimatorOptions {
  // Of this and config.model_dir one is given, or both the same; else a temporary directory is
  // made, with a warning.
  std::string model_dir = "";
  // Not given: RunConfig::Make(), so TF_CONFIG.
  std::optional<RunConfig> config = {};
  Params params = {};
  // What training begins from when model_dir has no checkpoint.
  std::optional<WarmStart> warm_start_from = {};
  Clock* clock = Clock::Real();
  FileSystem* file_system = FileSystem::Default();
};

using SavingListeners = std::vector<std::shared_ptr<CheckpointSaverListener>>;

struct TrainCall {
  // Steps from here on, or the global step to end at; at most one of them, > 0. Neither: to the
  // end of the data.
  std::optional<int64_t> steps = {};
  std::optional<int64_t> max_steps = {};
  Hooks hooks = {};                       // of every task that trains
  SavingListeners saving_listeners = {};  // of the chief alone
};

struct TrainOutcome {
  // Whether a session was made: not when max_steps was reached before, or the run had ended.
  bool trained = false;
  int64_t own_steps = 0;
  // Of the last own step.
  std::optional<double> loss = {};
  // Why training has ended, for people; also in the log: "reached step 1000 of 1000", "the data has
  // ended", "early stopping: ...", "the run has ended: ...".
  std::string reason = "";
};

struct EvaluateCall {
  std::optional<int64_t> steps = {};  // batches, > 0; none: to the end of the data
  Hooks hooks = {};
  std::string checkpoint_path = "";  // "": the latest one
  std::string name = "";             // results are written to <model_dir>/eval_<name>
};

struct EvalResult {
  // By name, "loss" (the mean over batches) and "global_step" with them.
  std::map<std::string, Tensor> metrics;
  int64_t global_step = 0;
  std::string checkpoint = "";  // "": values as initialised

  // A metric of one number; NaN when there is none of that name.
  double operator[](absl::string_view name) const;
  // The same, for names that may be wrong: NotFound names those that there are.
  StatusOr<double> at(absl::string_view name) const;
  // "accuracy = 0.98, global_step = 100, loss = 0.1".
  std::string ToString() const;
};

struct PredictCall {
  // Of the predictions; none: all.
  std::vector<std::string> predict_keys = {};
  Hooks hooks = {};
  std::string checkpoint_path = "";  // "": the latest one
  // Rows, one after the other; off: batches as the graph gives them.
  bool yield_single_examples = true;
};

// A row (or a batch) of predictions.
struct Prediction {
  std::map<std::string, Tensor> tensors;  // one without a name: "output"
  // NotFound names those that there are.
  StatusOr<Tensor> Get(absl::string_view name) const;
  // The only one; without a value when there are several.
  const Tensor& single() const;
};

// Predictions that are pulled. What it holds (a session, hooks) is freed with it, also before the
// end. Any number of streams live at once and interleave.
//
// Thread-safety: thread-compatible. Failure: ends the stream, and is returned again by later calls.
class PredictionStream {
 public:
  virtual ~PredictionStream() = default;
  // False: the end.
  virtual StatusOr<bool> Next(Prediction* prediction) = 0;
};

struct ExportCall {
  // Copied into assets.extra/: the name there -> the file.
  std::map<std::string, std::string> assets_extra = {};
  bool as_text = false;              // saved_model.pbtxt
  std::string checkpoint_path = "";  // "": the latest one
  bool strip_default_attrs = true;
};

// What callers feed, for each graph that an export is to have; at least one. Those of graphs that
// train or evaluate give labels, too (estimator/serving_input.h).
struct ExportReceivers {
  ServingInputReceiverFn train = {};
  ServingInputReceiverFn eval = {};
  ServingInputReceiverFn predict = {};
};

class Estimator {
 public:
  // What the Estimator adds to the model's graph (the step counter, the Saver, ...) was built at
  // `where`; what the functions of the program build, at their own lines.
  static StatusOr<Estimator> Make(ModelFn model_fn, const EstimatorOptions& options = {},
                                  std::source_location where = std::source_location::current());
  // For functions that make Estimators (estimator/canned/): an error, of theirs or of Make, is kept
  // with the line that called them, and returned by every call.
  static Estimator MakeAt(std::source_location where, ModelFn model_fn,
                          const EstimatorOptions& options = {});
  static Estimator ErrorAt(std::source_location where, const Status& status);

  const Status& status() const;

  const std::string& model_dir() const;
  const RunConfig& config() const;  // with the model_dir
  const Params& params() const;
  const ModelFn& model_fn() const;

  // Trains to the last step, the end of the data, or until a hook stops it. The chief writes
  // checkpoints; others wait for it. A loss that is not finite ends it.
  StatusOr<TrainOutcome> Train(const InputFn& input_fn, const TrainCall& call = {}) const;

  // Restores a checkpoint, runs the metrics' updates over the input and returns their values, which
  // are also written as summaries: those that cannot be (a full disk) are a warning, and end no
  // training. Without a checkpoint the values are those of the initialisers, and the log says so.
  StatusOr<EvalResult> Evaluate(const InputFn& input_fn, const EvaluateCall& call = {}) const;

  StatusOr<std::unique_ptr<PredictionStream>> Predict(const InputFn& input_fn,
                                                      const PredictCall& call = {}) const;

  // Writes `<export_dir_base>/<seconds since the epoch>`, a SavedModel with tag "serve", and
  // returns its path. Where that second does not come after the newest export there, its number is
  // one more than that one's: the largest is the newest. It is there whole or not at all. Without a
  // checkpoint the warm start's variables are exported, else FailedPrecondition.
  StatusOr<std::string> ExportSavedModel(const std::string& export_dir_base,
                                         const ServingInputReceiverFn& receiver_fn,
                                         const ExportCall& call = {}) const;

  // The same with a graph for each receiver that is given, for programs that train, or measure, a
  // model of which they have no more than the files. Tags are "train", "eval", "serve"; the first
  // two graphs have one signature, of the name of their tag:
  //
  //   what the receivers have  ->  loss, predictions/<name> (a single one: predictions),
  //                                metrics/<name>/value, metrics/<name>/update_op
  //
  // The train_op is in the collection "saved_model_train_op". The variables that are saved are
  // those of the first graph in that order: slots come along when one trains.
  StatusOr<std::string> ExportAllSavedModels(const std::string& export_dir_base,
                                             const ExportReceivers& receivers,
                                             const ExportCall& call = {}) const;

  // "" when there is none.
  std::string latest_checkpoint() const;
  // Of the latest checkpoint; NotFound without one.
  StatusOr<std::vector<std::string>> GetVariableNames() const;
  StatusOr<Tensor> GetVariableValue(const std::string& name) const;

  // The same model in another directory, or run otherwise.
  StatusOr<Estimator> With(const RunConfig& config) const;

  // What it is made of (estimator/estimator_parts.h), for TrainAndEvaluate.
  const EstimatorParts& parts() const { return *parts_; }

 private:
  explicit Estimator(std::shared_ptr<const EstimatorParts> parts);
  std::shared_ptr<const EstimatorParts> parts_;
};

}  // namespace millrace

#endif  // MILLRACE_ESTIMATOR_ESTIMATOR_H_
