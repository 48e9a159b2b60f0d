// SPDX-License-Identifier: Apache-2.0
#include "estimator/estimator.h"

#include <cstdlib>
#include <limits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/did_you_mean.h"
#include "core/logging.h"
#include "core/random_bits.h"
#include "estimator/estimator_parts.h"
#include "saver/checkpoint_name.h"
#include "saver/saver.h"
#include "saver/tensor_bundle.h"
#include "train/hooks/logging_tensor.h"

namespace millrace {
namespace {

// One number of a metric; nullopt for what is none.
std::optional<double> NumberOf(const Tensor& value) {
  if (!value.has_value() || value.num_elements() != 1) return std::nullopt;
  switch (value.dtype()) {
    case DT_FLOAT:
      return static_cast<double>(value.scalar<float>());
    case DT_DOUBLE:
      return value.scalar<double>();
    case DT_INT32:
      return static_cast<double>(value.scalar<int32_t>());
    case DT_INT64:
      return static_cast<double>(value.scalar<int64_t>());
    default:
      return std::nullopt;
  }
}

StatusOr<std::string> ChooseModelDir(const EstimatorOptions& options, const RunConfig& config) {
  const std::string& given = options.model_dir;
  const std::string& configured = config.model_dir();
  if (!given.empty() && !configured.empty() && given != configured) {
    return InvalidArgument("Estimator: model_dir must be that of the RunConfig, '", configured,
                           "', when both are given, got '", given, "'");
  }
  if (!given.empty()) return given;
  if (!configured.empty()) return configured;
  const char* const tmp = std::getenv("TMPDIR");
  const std::string made = JoinPath(tmp == nullptr || *tmp == '\0' ? "/tmp" : tmp,
                                    absl::StrCat("millrace-model-", RandomHexName()));
  MR_RETURN_IF_ERROR(options.file_system->RecursivelyCreateDirectory(made));
  LogWarning("Estimator: without a model_dir checkpoints go to the temporary directory '", made,
             "', which no other task has");
  return made;
}

StatusOr<std::unique_ptr<BundleReader>> OpenLatest(const EstimatorParts& parts) {
  MR_ASSIGN_OR_RETURN(const std::string checkpoint, CheckpointToUse(parts, ""));
  if (checkpoint.empty()) {
    return absl::NotFoundError(absl::StrCat("Estimator: model_dir '", parts.model_dir,
                                            "' must have a checkpoint, got none"));
  }
  return BundleReader::Open(parts.file_system, checkpoint);
}

}  // namespace

// --- Results -------------------------------------------------------------------------------------

double EvalResult::operator[](absl::string_view name) const {
  const auto found = metrics.find(std::string(name));
  const std::optional<double> number =
      found == metrics.end() ? std::nullopt : NumberOf(found->second);
  return number.value_or(std::numeric_limits<double>::quiet_NaN());
}

StatusOr<double> EvalResult::at(absl::string_view name) const {
  const auto found = metrics.find(std::string(name));
  const std::optional<double> number =
      found == metrics.end() ? std::nullopt : NumberOf(found->second);
  if (number.has_value()) return *number;
  DidYouMean best(name);
  std::vector<std::string> known;  // those of one number
  for (const auto& [key, value] : metrics) {
    if (!NumberOf(value).has_value()) continue;
    known.push_back(key);
    best.Consider(key);
  }
  return absl::NotFoundError(absl::StrCat("EvalResult: a metric of one number must be one of ",
                                          known.empty() ? "none" : absl::StrJoin(known, ", "),
                                          ", got '", name, "'", best.Hint()));
}

std::string EvalResult::ToString() const {
  return absl::StrJoin(metrics, ", ", [](std::string* out, const auto& metric) {
    absl::StrAppend(out, metric.first, " = ", TextOf(metric.second));
  });
}

StatusOr<Tensor> Prediction::Get(absl::string_view name) const {
  const auto found = tensors.find(std::string(name));
  if (found != tensors.end()) return found->second;
  return absl::NotFoundError(absl::StrCat(
      "Prediction: the name must be one of the predictions, ",
      absl::StrJoin(tensors, ", ", [](std::string* out, const auto& t) { *out += t.first; }),
      ", got '", name, "'"));
}

const Tensor& Prediction::single() const {
  static const Tensor* const none = new Tensor();
  return tensors.size() == 1 ? tensors.begin()->second : *none;
}

// --- Checkpoints ---------------------------------------------------------------------------------

StatusOr<std::string> CheckpointToUse(const EstimatorParts& parts, const std::string& asked) {
  if (asked.empty()) {
    return LatestCheckpoint(parts.file_system, parts.model_dir).value_or(std::string());
  }
  const StatusOr<std::string> named = CheckpointNamed(parts.file_system, asked);
  if (named.ok() && CheckpointExists(parts.file_system, *named)) return *named;
  return absl::NotFoundError(
      absl::StrCat("Estimator: checkpoint_path must be a checkpoint, got '", asked, "'"));
}

StatusOr<std::optional<int64_t>> GlobalStepIn(FileSystem* fs, const std::string& checkpoint) {
  MR_ASSIGN_OR_RETURN(const auto reader, BundleReader::Open(fs, checkpoint));
  if (!reader->Contains("global_step")) return std::optional<int64_t>();
  MR_ASSIGN_OR_RETURN(const Tensor step, reader->Read("global_step"));
  const std::optional<double> number = NumberOf(step);
  if (!number) {
    return absl::DataLossError(
        absl::StrCat("Checkpoint '", checkpoint, "': global_step must be one number"));
  }
  return step.dtype() == DT_INT64 ? std::optional<int64_t>(step.scalar<int64_t>())
                                  : static_cast<int64_t>(*number);
}

// --- Estimator -----------------------------------------------------------------------------------

Estimator::Estimator(std::shared_ptr<const EstimatorParts> parts) : parts_(std::move(parts)) {}

StatusOr<Estimator> Estimator::Make(ModelFn model_fn, const EstimatorOptions& options,
                                    std::source_location where) {
  if (!model_fn.valid()) {
    return InvalidArgument("Estimator: model_fn must be a function, got none");
  }
  auto parts = std::make_shared<EstimatorParts>();
  parts->where = where;
  parts->model_fn = std::move(model_fn);
  if (options.config) {
    parts->config = *options.config;
  } else {
    MR_ASSIGN_OR_RETURN(parts->config, RunConfig::Make());
  }
  MR_ASSIGN_OR_RETURN(parts->model_dir, ChooseModelDir(options, parts->config));
  if (parts->config.model_dir() != parts->model_dir) {
    MR_ASSIGN_OR_RETURN(parts->config, parts->config.Replace({.model_dir = parts->model_dir}));
  }
  parts->params = options.params;
  parts->warm_start = options.warm_start_from;
  parts->clock = options.clock;
  parts->file_system = options.file_system;
  return Estimator(std::move(parts));
}

Estimator Estimator::MakeAt(std::source_location where, ModelFn model_fn,
                            const EstimatorOptions& options) {
  StatusOr<Estimator> made = Make(std::move(model_fn), options, where);
  return made.ok() ? *std::move(made) : ErrorAt(where, made.status());
}

Estimator Estimator::ErrorAt(std::source_location where, const Status& status) {
  auto parts = std::make_shared<EstimatorParts>();
  // Columns and heads have their own line.
  parts->status =
      absl::StrContains(status.message(), "; built at ")
          ? status
          : Suffixed(status, absl::StrCat("; built at ", where.file_name(), ":", where.line()));
  return Estimator(std::move(parts));
}

StatusOr<Estimator> Estimator::With(const RunConfig& config) const {
  MR_RETURN_IF_ERROR(status());
  auto parts = std::make_shared<EstimatorParts>(*parts_);
  parts->config = config;
  if (config.model_dir().empty()) {
    MR_ASSIGN_OR_RETURN(parts->config, config.Replace({.model_dir = parts_->model_dir}));
  }
  parts->model_dir = parts->config.model_dir();
  return Estimator(std::move(parts));
}

const Status& Estimator::status() const { return parts_->status; }
const std::string& Estimator::model_dir() const { return parts_->model_dir; }
const RunConfig& Estimator::config() const { return parts_->config; }
const Params& Estimator::params() const { return parts_->params; }
const ModelFn& Estimator::model_fn() const { return parts_->model_fn; }

StatusOr<TrainOutcome> Estimator::Train(const InputFn& input_fn, const TrainCall& call) const {
  MR_RETURN_IF_ERROR(status());
  return TrainModel(*parts_, input_fn, call);
}
StatusOr<EvalResult> Estimator::Evaluate(const InputFn& input_fn, const EvaluateCall& call) const {
  MR_RETURN_IF_ERROR(status());
  return EvaluateModel(*parts_, input_fn, call);
}
StatusOr<std::unique_ptr<PredictionStream>> Estimator::Predict(const InputFn& input_fn,
                                                               const PredictCall& call) const {
  MR_RETURN_IF_ERROR(status());
  return PredictWithModel(*parts_, input_fn, call);
}
StatusOr<std::string> Estimator::ExportSavedModel(const std::string& export_dir_base,
                                                  const ServingInputReceiverFn& receiver_fn,
                                                  const ExportCall& call) const {
  return ExportAllSavedModels(export_dir_base, {.predict = receiver_fn}, call);
}
StatusOr<std::string> Estimator::ExportAllSavedModels(const std::string& export_dir_base,
                                                      const ExportReceivers& receivers,
                                                      const ExportCall& call) const {
  MR_RETURN_IF_ERROR(status());
  return ExportWithReceivers(*parts_, export_dir_base, receivers, call);
}

std::string Estimator::latest_checkpoint() const {
  if (!status().ok()) return "";
  return LatestCheckpoint(parts_->file_system, parts_->model_dir).value_or(std::string());
}

StatusOr<std::vector<std::string>> Estimator::GetVariableNames() const {
  MR_RETURN_IF_ERROR(status());
  MR_ASSIGN_OR_RETURN(const auto reader, OpenLatest(*parts_));
  std::vector<std::string> names;
  for (const BundleReader::Entry& entry : reader->entries()) names.push_back(entry.name);
  return names;
}

StatusOr<Tensor> Estimator::GetVariableValue(const std::string& name) const {
  MR_RETURN_IF_ERROR(status());
  MR_ASSIGN_OR_RETURN(const auto reader, OpenLatest(*parts_));
  return reader->Read(name);
}

}  // namespace millrace
