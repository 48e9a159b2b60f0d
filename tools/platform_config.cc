// SPDX-License-Identifier: Apache-2.0
#include "tools/platform_config.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "core/logging.h"
#include "google/protobuf/text_format.h"
#include "proto/config.pb.h"
#include "proto/serving/platform_config.pb.h"
#include "proto/serving/saved_model_bundle_source_adapter.pb.h"
#include "proto/serving/session_bundle_config.pb.h"
#include "saver/saved_model.h"
#include "serving/batching/batch_parameters.h"
#include "serving/batching/batching.h"

namespace millrace {
namespace {

namespace serving = tensorflow::serving;

constexpr char kPlatform[] = "tensorflow";

template <typename Message>
Status ParseText(absl::string_view text, Message* message) {
  if (google::protobuf::TextFormat::ParseFromString(std::string(text), message)) {
    return absl::OkStatus();
  }
  return InvalidArgument("it must be a ", message->GetTypeName(), " as text, got something else");
}

StatusOr<BatchingOptions> BatchingOf(const serving::SessionBundleConfig& config) {
  BatchingOptions batching;
  batching.per_model = config.enable_per_model_batching_params();
  std::string text;
  google::protobuf::TextFormat::PrintToString(config.batching_parameters(), &text);
  MR_ASSIGN_OR_RETURN(batching.parameters, ReadBatchParameters(text));
  return batching;
}

// What would change the work or the memory there, and does nothing here.
void WarnOfIgnored(const serving::SessionBundleConfig& config) {
  const std::pair<const char*, bool> fields[] = {
      {"session_run_load_threadpool_index", config.has_session_run_load_threadpool_index()},
      {"experimental_transient_ram_bytes_during_load",
       config.experimental_transient_ram_bytes_during_load() != 0},
      {"num_model_warmup_threads", config.model_warmup_options().has_num_model_warmup_threads()},
      {"enable_all_batch_sizes_warmup",
       config.model_warmup_options().enable_all_batch_sizes_warmup()},
      {"enable_session_metadata", config.enable_session_metadata()},
      {"remove_unused_fields_from_bundle_metagraph",
       config.remove_unused_fields_from_bundle_metagraph()},
      {"prefer_tflite_model", config.prefer_tflite_model()},
      {"resource_estimation_uses_validation_result",
       config.resource_estimation_uses_validation_result()},
      {"num_tflite_interpreters", config.num_tflite_interpreters() != 0},
      {"num_tflite_interpreters_per_pool", config.num_tflite_interpreters_per_pool() != 0},
      {"num_tflite_pools", config.num_tflite_pools() != 0},
      {"wrap_session_with_no_threading_params", config.wrap_session_with_no_threading_params()},
      {"enable_saved_model_config", config.enable_saved_model_config()},
  };
  std::vector<std::string> given;
  for (const auto& [name, is_given] : fields) {
    if (is_given) given.push_back(name);
  }
  if (given.empty()) return;
  LogWarning("These fields of the platform configuration do nothing here: ",
             absl::StrJoin(given, ", "));
}

}  // namespace

StatusOr<SessionConfig> ReadSessionConfig(absl::string_view text) {
  tensorflow::ConfigProto config;
  MR_RETURN_IF_ERROR(ParseText(text, &config));
  return SessionConfigOf(std::move(config));
}

Status ReadPlatformConfig(absl::string_view text, ModelServerOptions* options) {
  serving::PlatformConfigMap map;
  MR_RETURN_IF_ERROR(ParseText(text, &map));
  for (const auto& [platform, config] : map.platform_configs()) {
    if (platform == kPlatform) continue;
    return InvalidArgument("platform_configs must be of the platform \"", kPlatform, "\", got \"",
                           platform, "\"");
  }
  const auto found = map.platform_configs().find(kPlatform);
  if (found == map.platform_configs().end()) {
    return InvalidArgument("platform_configs must have the platform \"", kPlatform, "\", got none");
  }
  serving::SavedModelBundleSourceAdapterConfig adapter;
  if (!found->second.source_adapter_config().UnpackTo(&adapter)) {
    return InvalidArgument("source_adapter_config must be a ", adapter.GetTypeName(), ", got '",
                           found->second.source_adapter_config().type_url(), "'");
  }
  const serving::SessionBundleConfig& config = adapter.legacy_config();
  if (!config.session_target().empty()) {
    return Unimplemented("session_target must be empty, got '", config.session_target(), "'");
  }
  if (!config.experimental_fixed_input_tensors().empty()) {
    return Unimplemented("experimental_fixed_input_tensors must be empty, got ",
                         config.experimental_fixed_input_tensors_size());
  }
  WarnOfIgnored(config);
  options->model.load.session.config = SessionConfigOf(config.session_config());
  options->model.load.tags.assign(config.saved_model_tags().begin(),
                                  config.saved_model_tags().end());
  if (options->model.load.tags.empty()) options->model.load.tags = {kSavedModelTagServe};
  options->enable_warm_up = config.enable_model_warmup();
  const auto& warm_up = config.model_warmup_options();
  options->warm_up_iterations = std::max(warm_up.num_request_iterations().value(), 1);
  options->batching.reset();
  if (config.has_batching_parameters()) {
    MR_ASSIGN_OR_RETURN(options->batching, BatchingOf(config));
  }
  return absl::OkStatus();
}

}  // namespace millrace
