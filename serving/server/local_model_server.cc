// SPDX-License-Identifier: Apache-2.0
#include "serving/server/local_model_server.h"

#include <atomic>
#include <filesystem>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "core/exceptions.h"
#include "core/file_system.h"
#include "core/mutex.h"
#include "proto/serving/classification.pb.h"
#include "proto/serving/inference.pb.h"
#include "proto/serving/predict.pb.h"
#include "proto/serving/regression.pb.h"
#include "saver/model_signature.h"
#include "serving/aliased_tensor.h"
#include "serving/batching/batch_parameters.h"
#include "serving/batching/batching.h"
#include "serving/model_config.h"
#include "serving/model_requests.h"
#include "serving/model_versions.h"
#include "serving/monitoring/current_status.h"
#include "serving/monitoring/server_metrics.h"
#include "serving/monitoring/status_pages.h"
#include "serving/request_observer.h"
#include "serving/served_model.h"
#include "serving/server/hosted_models.h"
#include "serving/step_bounds.h"
#include "serving/version_source.h"
#include "serving/version_state.h"

namespace millrace {
namespace {

constexpr char kWhere[] = "LocalModelServer";

std::string AbsolutePath(const std::string& path) {
  if (path.empty() || IsAbsolutePath(path)) return path;
  return JoinPath(std::filesystem::current_path().string(), path);
}

StatusOr<std::vector<ModelSettings>> SettingsOf(const std::vector<LocalModel>& models) {
  std::vector<ModelSettings> settings;
  for (const LocalModel& model : models) {
    if (model.num_latest < 1) {
      return InvalidArgument(kWhere, ": num_latest of model '", model.name,
                             "' must be at least 1, got ", model.num_latest);
    }
    VersionPolicy policy;
    policy.num_latest = model.num_latest;
    if (!model.versions.empty()) {
      policy.kind = VersionPolicy::Kind::kSpecific;
      policy.specific = model.versions;
    }
    settings.push_back({.name = model.name,
                        .base_path = AbsolutePath(model.base_path),
                        .policy = std::move(policy),
                        .labels = model.labels});
  }
  return settings;
}

StatusOr<std::vector<ModelSettings>> ModelsOf(const LocalModelServerOptions& options) {
  if (options.models.empty() == options.model_config.empty()) {
    return InvalidArgument(kWhere, ": one of models and model_config must be given, got ",
                           options.models.empty() ? "neither" : "both");
  }
  if (options.model_config.empty()) return SettingsOf(options.models);
  return ReadModelConfig(options.model_config);
}

StatusOr<HostedModelsOptions> HostedOf(const LocalModelServerOptions& options) {
  HostedModelsOptions hosted;
  if (options.batching) {
    hosted.batching.emplace();
    if (!options.batching_parameters.empty()) {
      MR_ASSIGN_OR_RETURN(hosted.batching->parameters,
                          ReadBatchParameters(options.batching_parameters));
    }
  } else if (!options.batching_parameters.empty()) {
    return InvalidArgument(kWhere, ": batching_parameters must be with batching, got them without");
  }
  if (options.intra_op_threads < 0 || options.inter_op_threads < 0) {
    return InvalidArgument(kWhere,
                           ": intra_op_threads and inter_op_threads must be at least 0, got ",
                           options.intra_op_threads, " and ", options.inter_op_threads);
  }
  auto& config = hosted.model.load.session.config;
  config.intra_op_parallelism_threads = options.intra_op_threads;
  config.inter_op_parallelism_threads = options.inter_op_threads;
  hosted.enable_warm_up = options.warm_up;
  hosted.warm_up_from_request_log = options.warm_up_from_request_log;
  hosted.versions.poll_period = options.poll_period;
  hosted.versions.source.trust_new_versions = options.trust_new_versions;
  hosted.versions.plan.max_retries = options.max_load_retries;
  hosted.versions.plan.idle_unload = options.idle_unload;
  hosted.versions.plan.memory_limit = options.memory_limit;
  hosted.versions.load_on_demand = options.load_on_demand;
  return hosted;
}

StepBounds BoundsOf(absl::Duration timeout) {
  if (timeout == absl::InfiniteDuration()) return {};
  return {.deadline = absl::Now() + timeout};
}

}  // namespace

struct LocalModelServer::Impl {
  // The error of a call that Stop took its models from.
  Status StoppedOr(Status status) const {
    const bool is_of_stop = absl::IsNotFound(status) || absl::IsUnavailable(status);
    if (is_of_stop && has_stopped.load(std::memory_order_relaxed)) return Stopped();
    return status;
  }
  static Status Stopped() {
    return absl::UnavailableError("LocalModelServer: calls must come before Stop, got one after");
  }
  Status CheckRuns() const {
    return has_stopped.load(std::memory_order_relaxed) ? Stopped() : absl::OkStatus();
  }

  StatusOr<ModelRequests::Pinned> Pin(const std::string& model, const ModelVersionChoice& which,
                                      const StepBounds& bounds) const {
    MR_RETURN_IF_ERROR(CheckRuns());
    if (which.version.has_value() && !which.label.empty()) {
      return InvalidArgument(kWhere, ": version and label must not both be given, got ",
                             *which.version, " and '", which.label, "'");
    }
    std::optional<std::string> label;
    if (!which.label.empty()) label = which.label;
    StatusOr<ModelRequests::Pinned> pinned =
        hosted->requests()->Pin(model, which.version, label, bounds);
    if (!pinned.ok()) return StoppedOr(pinned.status());
    return pinned;
  }

  // By message.
  template <typename Request, typename Response>
  Status Ask(Status (ModelRequests::*ask)(const Request&, const StepBounds&, Response*,
                                          const RequestOrigin&) const,
             const Request& request, Response* response, absl::Duration timeout) const {
    response->Clear();
    return NoExceptions(kWhere, [&]() -> Status {
      MR_RETURN_IF_ERROR(CheckRuns());
      return StoppedOr(
          ((*hosted->requests()).*ask)(request, BoundsOf(timeout), response, RequestOrigin()));
    });
  }

  std::unique_ptr<HostedModels> hosted;
  // Relaxed: it orders nothing; a call at the time of Stop may see either.
  std::atomic<bool> has_stopped{false};
  Mutex stop_mu;
};

LocalModelServer::LocalModelServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

LocalModelServer::~LocalModelServer() { Stop(); }

StatusOr<std::unique_ptr<LocalModelServer>> LocalModelServer::Start(
    const LocalModelServerOptions& options) {
  return NoExceptions(kWhere, [&]() -> StatusOr<std::unique_ptr<LocalModelServer>> {
    MR_ASSIGN_OR_RETURN(const std::vector<ModelSettings> models, ModelsOf(options));
    MR_ASSIGN_OR_RETURN(const HostedModelsOptions hosted, HostedOf(options));
    auto impl = std::make_unique<Impl>();
    MR_ASSIGN_OR_RETURN(impl->hosted, HostedModels::Create(hosted));
    MR_RETURN_IF_ERROR(
        impl->hosted->Load(models, options.require_all_models, options.start_timeout));
    return std::unique_ptr<LocalModelServer>(new LocalModelServer(std::move(impl)));
  });
}

StatusOr<ModelPrediction> LocalModelServer::Predict(const std::string& model,
                                                    const std::map<std::string, Tensor>& inputs,
                                                    const ModelPredictOptions& options) const {
  return NoExceptions(kWhere, [&]() -> StatusOr<ModelPrediction> {
    const StepBounds bounds = BoundsOf(options.timeout.value_or(absl::InfiniteDuration()));
    std::vector<AliasedTensor> named;
    std::optional<ModelRequests::Pinned> pinned;  // until the observer has seen the end
    ObservedRequest observed(impl_->hosted->requests()->observer(), RequestApi::kPredict, {});
    RequestRecord* const record = observed.record();
    record->model = model;
    record->signature = options.signature;
    StatusOr<ModelRequests::Pinned> found = impl_->Pin(model, options.which, bounds);
    if (!found.ok()) return observed.End(found.status());
    pinned.emplace(*std::move(found));
    const ServedModel& served = **pinned;
    observed.Found(served);
    named.reserve(inputs.size());
    for (const auto& [alias, tensor] : inputs) named.push_back({alias, tensor});
    record->inputs = named;
    observed.BeginRun();
    StatusOr<std::vector<AliasedTensor>> outputs = served.PredictTensors(
        options.signature, named, options.outputs, bounds, PredictCaller::kGrpc);
    observed.EndRun();
    if (!outputs.ok()) return observed.End(outputs.status());
    record->outputs = *outputs;
    MR_RETURN_IF_ERROR(observed.End(absl::OkStatus()));
    ModelPrediction prediction;
    prediction.version = served.version();
    prediction.signature = options.signature.empty() ? kDefaultServingSignature : options.signature;
    for (AliasedTensor& output : *outputs) {
      prediction.outputs.emplace_hint(prediction.outputs.end(), std::move(output.alias),
                                      std::move(output.tensor));
    }
    return prediction;
  });
}

Status LocalModelServer::Predict(const tensorflow::serving::PredictRequest& request,
                                 tensorflow::serving::PredictResponse* response,
                                 absl::Duration timeout) const {
  return impl_->Ask(&ModelRequests::Predict, request, response, timeout);
}

Status LocalModelServer::Classify(const tensorflow::serving::ClassificationRequest& request,
                                  tensorflow::serving::ClassificationResponse* response,
                                  absl::Duration timeout) const {
  return impl_->Ask(&ModelRequests::Classify, request, response, timeout);
}

Status LocalModelServer::Regress(const tensorflow::serving::RegressionRequest& request,
                                 tensorflow::serving::RegressionResponse* response,
                                 absl::Duration timeout) const {
  return impl_->Ask(&ModelRequests::Regress, request, response, timeout);
}

Status LocalModelServer::MultiInference(const tensorflow::serving::MultiInferenceRequest& request,
                                        tensorflow::serving::MultiInferenceResponse* response,
                                        absl::Duration timeout) const {
  return impl_->Ask(&ModelRequests::MultiInference, request, response, timeout);
}

StatusOr<std::vector<ServedVersionStatus>> LocalModelServer::GetModelStatus(
    const std::string& model, std::optional<int64_t> version) const {
  return NoExceptions(kWhere, [&]() -> StatusOr<std::vector<ServedVersionStatus>> {
    MR_RETURN_IF_ERROR(impl_->CheckRuns());
    MR_ASSIGN_OR_RETURN(const std::vector<VersionStatus> versions,
                        impl_->hosted->versions()->GetStatus(model, version));
    std::vector<ServedVersionStatus> statuses;
    for (const VersionStatus& one : versions) {
      statuses.push_back({.version = one.version,
                          .state = static_cast<ServedVersionState>(ServingStateNumber(one.state)),
                          .error = one.status});
    }
    return statuses;
  });
}

StatusOr<ServedModelMetadata> LocalModelServer::GetMetadata(const std::string& model,
                                                            const ModelVersionChoice& which) const {
  return NoExceptions(kWhere, [&]() -> StatusOr<ServedModelMetadata> {
    MR_ASSIGN_OR_RETURN(const ModelRequests::Pinned pinned, impl_->Pin(model, which, {}));
    return ServedModelMetadata{.version = pinned->version(), .signatures = pinned->signatures()};
  });
}

Status LocalModelServer::Reload(const std::vector<LocalModel>& models, absl::Duration timeout) {
  return NoExceptions(kWhere, [&]() -> Status {
    MR_RETURN_IF_ERROR(impl_->CheckRuns());
    MR_ASSIGN_OR_RETURN(std::vector<ModelSettings> settings, SettingsOf(models));
    return impl_->StoppedOr(
        impl_->hosted->versions()->Reload(std::move(settings), absl::Now() + timeout));
  });
}

void LocalModelServer::Poll() { impl_->hosted->versions()->Poll(); }

std::string LocalModelServer::StatusText() const {
  const HostedModels& hosted = *impl_->hosted;
  return StatusJson(CurrentStatus(*hosted.versions(), *hosted.metrics()));
}

std::string LocalModelServer::MetricsText() const { return impl_->hosted->metrics()->Page(); }

void LocalModelServer::Stop() {
  MutexLock one_at_a_time(&impl_->stop_mu);
  if (impl_->has_stopped.exchange(true, std::memory_order_relaxed)) return;
  ModelVersions* const versions = impl_->hosted->versions().get();
  versions->EndAll();
  impl_->hosted->Stop();
}

}  // namespace millrace
