// SPDX-License-Identifier: Apache-2.0
#include "serving/model_config.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "google/protobuf/io/tokenizer.h"
#include "google/protobuf/text_format.h"
#include "proto/serving/model_server_config.pb.h"
#include "serving/version_source.h"

namespace millrace {
namespace {

constexpr char kTensorFlow[] = "tensorflow";
constexpr char kFileCollector[] = "file";

// The first error, with its place.
class FirstError : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int line, int column, const std::string& message) override {
    if (text_.empty()) text_ = absl::StrCat(line + 1, ":", column + 1, ": ", message);
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

Status CheckPlatform(const tensorflow::serving::ModelConfig& config) {
  using tensorflow::serving::ModelType;
  const bool has_type = config.model_type() != ModelType::MODEL_TYPE_UNSPECIFIED;
  if (has_type && !config.model_platform().empty()) {
    return InvalidArgument("Model ", config.name(),
                           ": one of model_type and model_platform must be given, got both");
  }
  const bool is_ours = has_type ? config.model_type() == ModelType::TENSORFLOW
                                : config.model_platform() == kTensorFlow;
  if (is_ours) return absl::OkStatus();
  return InvalidArgument(
      "Model ", config.name(), ": model_platform must be \"", kTensorFlow, "\", got \"",
      has_type ? ModelType_Name(config.model_type()) : config.model_platform(), "\"");
}

VersionPolicy PolicyOf(
    const tensorflow::serving::FileSystemStoragePathSourceConfig::ServableVersionPolicy& policy) {
  VersionPolicy result;
  if (policy.has_all()) {
    result.kind = VersionPolicy::Kind::kAll;
  } else if (policy.has_specific()) {
    result.kind = VersionPolicy::Kind::kSpecific;
    const auto& versions = policy.specific().versions();
    result.specific.assign(versions.begin(), versions.end());
  } else if (policy.latest().num_versions() > 0) {
    result.num_latest = policy.latest().num_versions();
  }
  return result;
}

StatusOr<RequestLogSettings> RequestLogOf(const tensorflow::serving::ModelConfig& model) {
  RequestLogSettings log;
  if (!model.has_logging_config()) return log;
  const auto& collector = model.logging_config().log_collector_config();
  log.sampling_rate = model.logging_config().sampling_config().sampling_rate();
  log.filename_prefix = collector.filename_prefix();
  if (!(log.sampling_rate >= 0 && log.sampling_rate <= 1)) {
    return InvalidArgument("Model ", model.name(),
                           ": sampling_config.sampling_rate must be 0 to 1, got ",
                           log.sampling_rate);
  }
  if (log.sampling_rate == 0) return log;
  if (!collector.type().empty() && collector.type() != kFileCollector) {
    return InvalidArgument("Model ", model.name(), ": log_collector_config.type must be \"",
                           kFileCollector, "\" or nothing, got \"", collector.type(), "\"");
  }
  if (log.filename_prefix.empty()) {
    return InvalidArgument("Model ", model.name(),
                           ": log_collector_config.filename_prefix must be given with a "
                           "sampling_rate above 0, got none");
  }
  return log;
}

}  // namespace

StatusOr<std::vector<ModelSettings>> SettingsOf(
    const tensorflow::serving::ModelServerConfig& config) {
  if (config.has_custom_model_config()) {
    return absl::UnimplementedError(
        "ModelServerConfig: it must have a model_config_list, got custom_model_config");
  }
  std::vector<ModelSettings> models;
  for (const tensorflow::serving::ModelConfig& model : config.model_config_list().config()) {
    MR_RETURN_IF_ERROR(CheckPlatform(model));
    ModelSettings& settings = models.emplace_back();
    settings.name = model.name();
    settings.base_path = model.base_path();
    settings.policy = PolicyOf(model.model_version_policy());
    settings.labels.insert(model.version_labels().begin(), model.version_labels().end());
    MR_ASSIGN_OR_RETURN(settings.request_log, RequestLogOf(model));
  }
  return models;
}

StatusOr<std::vector<ModelSettings>> ReadModelConfig(absl::string_view text) {
  tensorflow::serving::ModelServerConfig config;
  FirstError error;
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&error);
  if (!parser.ParseFromString(std::string(text), &config)) {
    return InvalidArgument("Error parsing text-format ", config.GetTypeName(), ": ", error.text());
  }
  return SettingsOf(config);
}

}  // namespace millrace
