// SPDX-License-Identifier: Apache-2.0
//
// Estimator::Predict: predictions as a stream of rows.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/logging.h"
#include "core/shape.h"
#include "core/status.h"
#include "core/tensor.h"
#include "estimator/estimator.h"
#include "estimator/estimator_parts.h"
#include "estimator/input_fn.h"
#include "estimator/model_fn.h"
#include "estimator/model_graph.h"
#include "estimator/model_tensors.h"
#include "runtime/session.h"
#include "train/monitored_session.h"
#include "train/session_creator.h"

namespace millrace {
namespace {

class Stream : public PredictionStream {
 public:
  Stream(ModelGraph graph, Hooks hooks, std::vector<std::string> names, bool by_rows)
      : graph_(std::move(graph)),
        hooks_(std::move(hooks)),
        names_(std::move(names)),
        by_rows_(by_rows),
        values_(names_.size()) {}

  Status Open(SessionCreatorOptions creator, const std::vector<FetchName>& fetches) {
    MonitoredSessionOptions options;
    options.hooks = PointersOf(hooks_);
    options.max_recoveries = 0;
    // The code that pulls decides what a signal means.
    options.handle_signals = false;
    options.clock = creator.clock;
    MR_ASSIGN_OR_RETURN(session_, MonitoredSession::Open(graph_.root,
                                                         std::make_unique<ChiefSessionCreator>(
                                                             graph_.root, std::move(creator)),
                                                         std::move(options)));
    MR_ASSIGN_OR_RETURN(step_, session_->Prepare({}, fetches));
    return absl::OkStatus();
  }

  StatusOr<bool> Next(Prediction* prediction) override {
    if (ended_) return ended_with_.ok() ? StatusOr<bool>(false) : ended_with_;
    while (row_ == num_rows_) {
      if (session_->ShouldStop()) return End(absl::OkStatus());
      const Status status = step_.RunInto({}, absl::MakeSpan(values_));
      if (!status.ok()) return End(status);
      const Status counted = CountRows();
      if (!counted.ok()) return End(counted);
    }
    prediction->tensors.clear();
    for (size_t i = 0; i < names_.size(); ++i) {
      prediction->tensors[names_[i]] = by_rows_ ? RowOf(values_[i]) : values_[i];
    }
    ++row_;
    return true;
  }

 private:
  // Closes the session: hooks are called End where the input has ended.
  StatusOr<bool> End(const Status& status) {
    ended_ = true;
    ended_with_ = session_->Close(status);
    session_.reset();
    values_.clear();
    if (!ended_with_.ok()) return ended_with_;
    return false;
  }

  Status CountRows() {
    row_ = 0;
    num_rows_ = 1;
    if (!by_rows_) return absl::OkStatus();
    num_rows_ = -1;
    for (size_t i = 0; i < names_.size(); ++i) {
      if (values_[i].rank() == 0) {
        return InvalidArgument(
            "Estimator: Predict: predictions must have a row per example, got "
            "the scalar '",
            names_[i], "'; yield_single_examples = false gives it as it is");
      }
      const int64_t rows = values_[i].dim(0);
      if (num_rows_ >= 0 && rows != num_rows_) {
        return InvalidArgument("Estimator: Predict: all predictions must have as many rows, got ",
                               num_rows_, " of '", names_[0], "' and ", rows, " of '", names_[i],
                               "'");
      }
      num_rows_ = rows;
    }
    return absl::OkStatus();
  }

  // The row without its first dimension. It shares the batch's memory.
  Tensor RowOf(const Tensor& batch) const {
    const Tensor row = batch.Rows(row_, row_ + 1);
    std::vector<int64_t> dims(row.shape().dims().begin() + 1, row.shape().dims().end());
    const StatusOr<Shape> shape = Shape::Make(dims);
    const StatusOr<Tensor> reshaped = shape.ok() ? row.Reshaped(*shape) : shape.status();
    return reshaped.ok() ? *reshaped : row;
  }

  const ModelGraph graph_;
  const Hooks hooks_;
  const std::vector<std::string> names_;
  const bool by_rows_;
  std::vector<Tensor> values_;  // of the last step
  int64_t row_ = 0, num_rows_ = 0;
  bool ended_ = false;
  Status ended_with_;
  MonitoredStep step_;
  std::unique_ptr<MonitoredSession> session_;  // goes first
};

}  // namespace

StatusOr<Predictions::Map> PredictionsToGive(const Predictions& predictions,
                                             const std::vector<std::string>& keys) {
  if (keys.empty()) return predictions.map();
  if (predictions.is_single()) {
    return InvalidArgument(
        "Estimator: Predict: predict_keys must come with predictions that have names, got '",
        absl::StrJoin(keys, "', '"), "' for one tensor without a name");
  }
  Predictions::Map chosen;
  for (const std::string& key : keys) {
    if (predictions.has(key)) chosen[key] = predictions.map().at(key);
  }
  if (!chosen.empty()) return chosen;
  return InvalidArgument("Estimator: Predict: predict_keys must be among the predictions, ",
                         absl::StrJoin(predictions.map(), ", ",
                                       [](std::string* out, const auto& p) { *out += p.first; }),
                         ", got '", absl::StrJoin(keys, "', '"), "'");
}

StatusOr<std::unique_ptr<PredictionStream>> PredictWithModel(const EstimatorParts& parts,
                                                             const InputFn& input_fn,
                                                             const PredictCall& call) {
  MR_RETURN_IF_ERROR(CheckHooks("Estimator: Predict", call.hooks));
  MR_ASSIGN_OR_RETURN(const std::string checkpoint, CheckpointToUse(parts, call.checkpoint_path));
  if (checkpoint.empty()) {
    LogInfo("Estimator: Predict: '", parts.model_dir,
            "' has no checkpoint; the model has its initial values");
  }
  MR_ASSIGN_OR_RETURN(ModelGraph graph, BuildModelGraph(parts, Mode::kPredict, input_fn));
  if (!graph.has_reader) {
    LogWarning("Estimator: Predict: the input comes from no Dataset and no queue: it has no end");
  }
  MR_ASSIGN_OR_RETURN(const Predictions::Map chosen,
                      PredictionsToGive(graph.spec.predictions, call.predict_keys));
  std::vector<std::string> names;
  std::vector<FetchName> fetches;
  for (const auto& [name, output] : chosen) {
    names.push_back(name);
    fetches.emplace_back(output);
  }
  SessionCreatorOptions creator;
  creator.scaffold = graph.spec.scaffold;
  creator.checkpoint_path = checkpoint;
  creator.session.config = parts.config.session_config();
  creator.session.config.device_filters.clear();
  creator.clock = parts.clock;
  creator.file_system = parts.file_system;
  Hooks hooks = graph.AllHooks({&call.hooks, &graph.spec.prediction_hooks});
  auto stream = std::make_unique<Stream>(std::move(graph), std::move(hooks), std::move(names),
                                         call.yield_single_examples);
  MR_RETURN_IF_ERROR(stream->Open(std::move(creator), fetches));
  return stream;
}

}  // namespace millrace
