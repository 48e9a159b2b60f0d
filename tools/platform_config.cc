// SPDX-License-Identifier: Apache-2.0
#include "tools/platform_config.h"

#include <algorithm>
#include <string>
#include <utility>

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
