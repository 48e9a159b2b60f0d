// SPDX-License-Identifier: Apache-2.0
#include "serving/server/model_server.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/cancellation.h"
#include "core/logging.h"
#include "core/mutex.h"
#include "net/call_limits.h"
#include "serving/batching/batch_parameters.h"
#include "serving/monitoring/access_log.h"
#include "serving/monitoring/monitoring_pages.h"
#include "serving/protocols/v2_grpc.h"
#include "serving/protocols/v2_rest.h"
#include "serving/request_observer.h"
#include "serving/servable.h"
#include "serving/server/grpc_front.h"
#include "serving/step_bounds.h"
#include "serving/warm_up.h"

namespace millrace {
namespace {

// Both may be null.
ModelVersions::Loader LoaderOf(const ServedModelOptions& chosen,
                               std::shared_ptr<const Batching> batching,
                               std::shared_ptr<ServerMetrics> metrics) {
  return [chosen, batching = std::move(batching), metrics = std::move(metrics)](
             const VersionToLoad& version,
             CancellationManager* cancellation) -> StatusOr<std::shared_ptr<Servable>> {
    const absl::Time began = absl::Now();
    ServedModelOptions options = chosen;
    if (batching != nullptr) {
      const std::string label =
          absl::StrCat("model '", version.model, "' version ", version.version);
      MR_ASSIGN_OR_RETURN(options.runner, batching->RunnerOf(label, version.directory));
    }
    MR_ASSIGN_OR_RETURN(
        std::unique_ptr<ServedModel> model,
        ServedModel::Load(version.model, version.version, version.directory, options));
    if (metrics != nullptr) model->set_note(metrics->NoteOf(*model, absl::Now() - began));
    // Between its parts: a load of a SavedModel cannot be stopped.
    if (cancellation->IsCancelled()) return absl::CancelledError("the load was told to end");
    return std::shared_ptr<Servable>(std::move(model));
  };
}

ModelVersions::WarmUp WarmUpOf(int iterations, std::shared_ptr<ServerMetrics> metrics) {
  return
      [iterations, metrics = std::move(metrics)](const VersionToLoad& version, Servable* servable,
                                                 CancellationManager* cancellation) -> Status {
        const WarmUpOptions options = {.iterations = iterations,
                                       .bounds = {.cancellation = cancellation}};
        const absl::Time began = absl::Now();
        const StatusOr<int64_t> run =
            WarmUp(*static_cast<const ServedModel*>(servable), version.directory, options);
        // A version without such a file was not warmed up.
        if (metrics != nullptr && (!run.ok() || *run > 0)) {
          metrics->WarmedUp(version, run.status(), absl::Now() - began, run.value_or(0));
        }
        MR_ASSIGN_OR_RETURN(const int64_t records, run);
        if (records > 0) {
          LogInfo("Model ", version.model, " version ", version.version, ": ran ", records,
                  " warm-up requests");
        }
        return absl::OkStatus();
      };
}

}  // namespace

// Ends the waits of a start when that is cancelled.
class ModelServer::StartEnd {
 public:
  StartEnd(CancellationManager* cancellation, ModelServer* server) : cancellation_(cancellation) {
    if (cancellation_ == nullptr) return;
    is_registered_ = cancellation_->Register(&token_, [server] { server->EndWaits(); });
    if (!is_registered_) server->EndWaits();
  }
  ~StartEnd() {
    if (is_registered_) cancellation_->Deregister(token_);
  }
  StartEnd(const StartEnd&) = delete;
  StartEnd& operator=(const StartEnd&) = delete;
  bool has_come() const { return cancellation_ != nullptr && cancellation_->IsCancelled(); }

 private:
  CancellationManager* const cancellation_;
  CancellationManager::Token token_ = 0;
  bool is_registered_ = false;
};

StatusOr<std::unique_ptr<ModelServer>> ModelServer::Start(ModelServerOptions options) {
  std::unique_ptr<ModelServer> server(new ModelServer);
  ModelVersions::Options versions = options.versions;
  if (options.monitoring.metrics) server->metrics_ = std::make_shared<ServerMetrics>();
  std::shared_ptr<const Batching> batching;
  if (options.batching) {
    BatchingOptions observed = *options.batching;
    if (server->metrics_ != nullptr) {
      observed.observer = server->metrics_->BatchingOf(
          observed.parameters.value_or(BatchParameters()).thread_pool_name);
    }
    MR_ASSIGN_OR_RETURN(batching, Batching::Create(observed));
  }
  versions.loader = LoaderOf(options.model, batching, server->metrics_);
  if (options.enable_warm_up) {
    versions.warm_up = WarmUpOf(options.warm_up_iterations, server->metrics_);
  }
  versions.on_change = [readiness = server->readiness_] { readiness->NoteChange(); };
  MR_ASSIGN_OR_RETURN(server->versions_, ModelVersions::Create(std::move(versions)));
  MR_ASSIGN_OR_RETURN(const std::shared_ptr<RequestObserver> observer,
                      server->Observe(options.monitoring));
  server->requests_ =
      std::make_shared<const ModelRequests>(server->versions_, absl::Minutes(10), observer);
  if (options.listen_early) MR_RETURN_IF_ERROR(server->Listen(options));

  const StartEnd end(options.start_cancellation, server.get());
  if (end.has_come()) return server;
  const absl::Time deadline = absl::Now() + options.start_timeout;
  std::vector<ModelSettings> models = options.models;
  for (ModelSettings& model : models) model.labels.clear();
  MR_RETURN_IF_ERROR(server->versions_->SetModels(models));
  const auto failed = server->versions_->WaitUntilTried(deadline);
  if (end.has_come()) return server;
  for (const auto& [name, why] : failed) {
    LogWarning("Model ", name, " is not available: ", why.ToString());
  }
  if (!failed.empty() && (options.require_all_models || options.models.size() == 1)) {
    return ModelsNotAvailable(failed);
  }
  // Each model's: those of one that is not available harm no other.
  for (size_t i = 0; i < models.size(); ++i) {
    if (options.models[i].labels.empty()) continue;
    std::vector<ModelSettings> labelled = models;
    labelled[i].labels = options.models[i].labels;
    const Status set = server->versions_->Reload(labelled, deadline);
    if (set.ok()) {
      models = std::move(labelled);
    } else {
      LogWarning("Model ", models[i].name, " has no labels: ", set.message());
    }
  }
  if (end.has_come()) return server;
  if (!options.listen_early) MR_RETURN_IF_ERROR(server->Listen(options));
  server->readiness_->SetReady();
  return server;
}

StatusOr<std::shared_ptr<RequestObserver>> ModelServer::Observe(
    const ModelServerMonitoring& monitoring) {
  if (metrics_ != nullptr) metrics_->Watch(versions_);
  if (monitoring.request_log) {
    MR_ASSIGN_OR_RETURN(
        request_log_,
        RequestLog::Start(versions_, metrics_ == nullptr ? nullptr : metrics_->request_log_count(),
                          monitoring.request_log_options));
  }
  std::shared_ptr<RequestObserver> access_log;
  if (monitoring.access_log_sampling > 0) {
    access_log = std::make_shared<AccessLog>(monitoring.access_log_sampling);
  }
  return AllObservers({metrics_, request_log_, access_log});
}

std::function<bool(HttpRequest*)> ModelServer::PagesOf(const ModelServerMonitoring& monitoring,
                                                       bool with_status) const {
  if (metrics_ == nullptr) return nullptr;
  if (!with_status && monitoring.metrics_path.empty()) return nullptr;
  return [pages = std::make_shared<const MonitoringPages>(
              versions_, metrics_, monitoring.metrics_path, with_status)](HttpRequest* request) {
    return pages->Serve(request);
  };
}

Status ModelServer::Listen(const ModelServerOptions& options) {
  if (options.credentials != nullptr) {
    MR_RETURN_IF_ERROR(options.credentials->CheckServer());
    if (!options.credentials->token.empty() && !options.rest_addresses.empty()) {
      return InvalidArgument(
          "ModelServer: REST must be without a token, which it does not ask for");
    }
  }
  if (!options.grpc_address.empty()) {
    RpcServer::Options rpc;
    rpc.address = options.grpc_address;
    rpc.more_addresses = options.more_grpc_addresses;
    rpc.channel_arguments = options.grpc_channel_arguments;
    rpc.handlers = GrpcFront(requests_);
    if (options.enable_session_run) {
      rpc.handlers.merge(SessionFront(requests_, options.model.max_splat_bytes));
    }
    rpc.keep = requests_;
    MR_RETURN_IF_ERROR(AddProtocols(options, &rpc));
    rpc.max_heavy_calls = options.max_running_requests;
    rpc.credentials = options.credentials;
    rpc.limits.max_splat_bytes = options.model.max_splat_bytes;
    rpc.limits.max_calls = int64_t{options.max_running_requests} + options.max_waiting_requests;
    rpc.limits.max_calls_of_connection = rpc.limits.max_calls;
    rpc.limits.max_other_calls = CallLimits().max_calls;  // however few requests may run
    MR_ASSIGN_OR_RETURN(rpc_, RpcServer::Start(std::move(rpc)));
    if (metrics_ != nullptr) {
      metrics_->AddWaiting([front = std::weak_ptr<const RpcServer>(rpc_)]() -> int64_t {
        const std::shared_ptr<const RpcServer> server = front.lock();
        return server == nullptr ? 0 : server->num_waiting_calls();
      });
    }
    LogInfo("Serves gRPC on port ", rpc_->port());
  }
  if (!options.rest_addresses.empty()) {
    HttpServerOptions http = options.http;
    http.addresses = options.rest_addresses;
    // What these may inflate to takes a loop a millisecond; others are the lanes'.
    constexpr int64_t kTinyGzip = 1'024;
    http.max_gzip_bytes_on_loop = kTinyGzip;
    if (options.credentials != nullptr && options.credentials->is_tls()) {
      http.tls_key = options.credentials->key;
      http.tls_certificate = options.credentials->certificate;
      if (options.credentials->require_client_certificate) http.client_ca = options.credentials->ca;
    }
    RestFrontOptions rest = options.rest;
    if (rest.pages == nullptr) {
      rest.pages = PagesOf(options.monitoring, options.monitoring.status_pages);
    }
    RestLanes::Options lanes = options.lanes;
    // Where models rest a request waits for its model where it asks: never on a loop, and beside
    // those that have theirs.
    if (options.versions.load_on_demand ||
        options.versions.plan.idle_unload < absl::InfiniteDuration()) {
      lanes.hand_over_all = true;
      if (lanes.num_threads == 0) lanes.num_threads = RestLanes::DefaultThreads();
      lanes.num_threads += static_cast<int>(options.versions.most_waiting);
    }
    lanes_ = std::make_unique<RestLanes>(lanes);
    rest.lanes = lanes_.get();
    if (metrics_ != nullptr) {
      metrics_->AddWaiting([waiting = lanes_->waiting()]() -> int64_t {
        return waiting->load(std::memory_order_relaxed);
      });
    }
    HttpHandler handler = RestFront(requests_, std::move(rest));
    handler = V2RestFront(requests_, readiness_,
                          {.timeout = options.rest.timeout,
                           .cors = options.rest.cors,
                           .limits = options.rest.limits,
                           .lanes = lanes_.get()},
                          std::move(handler));
    MR_ASSIGN_OR_RETURN(http_, HttpServer::Start(std::move(http), std::move(handler)));
    LogInfo("Serves REST on port ", http_->port());
  }
  if (!options.monitoring.address.empty()) {
    const auto serve = PagesOf(options.monitoring, true);
    if (serve == nullptr) {
      return InvalidArgument("ModelServer: monitoring.address must be with metrics, got none");
    }
    HttpServerOptions http;
    http.addresses = {options.monitoring.address};
    http.num_threads = 1;
    MR_ASSIGN_OR_RETURN(
        pages_, HttpServer::Start(std::move(http), [serve](std::unique_ptr<HttpRequest> request) {
          if (!serve(request.get())) request->Answer(404, {}, "");
        }));
    LogInfo("Serves its status on port ", pages_->port());
  }
  return absl::OkStatus();
}

Status ModelServer::AddProtocols(const ModelServerOptions& options, RpcServer::Options* rpc) {
  std::vector<std::string> services = {"tensorflow.serving.PredictionService",
                                       "tensorflow.serving.ModelService",
                                       "inference.GRPCInferenceService"};
  rpc->handlers.merge(InferenceHandlers(requests_, readiness_));
  if (options.enable_health) {
    std::vector<std::string> names = services;
    // As TensorFlow Serving calls them.
    names.insert(names.end(), {"PredictionService", "ModelService"});
    MR_ASSIGN_OR_RETURN(health_, HealthService::Create({.versions = versions_,
                                                        .readiness = readiness_,
                                                        .services = std::move(names)}));
    rpc->handlers.merge(health_->Handlers());
    services.push_back("grpc.health.v1.Health");
  }
  MR_ASSIGN_OR_RETURN(reflection_, ReflectionService::Create(std::move(services)));
  rpc->duplex_handlers = reflection_->DuplexHandlers();
  return absl::OkStatus();
}

void ModelServer::EndWaits() {
  readiness_->SetStopping();
  if (versions_ != nullptr) versions_->EndWaits();  // null: its start failed early
}

ModelServer::~ModelServer() { Stop(absl::ZeroDuration()); }

void ModelServer::Stop(absl::Duration drain) {
  MutexLock one_at_a_time(&stop_mu_);
  EndWaits();
  if (health_ != nullptr) health_->Stop();
  if (reflection_ != nullptr) reflection_->Stop();
  // Both refuse from now on, and have the same time.
  const absl::Time until = absl::Now() + drain;
  std::optional<std::thread> rest;
  if (http_ != nullptr && rpc_ != nullptr) {
    try {
      rest.emplace([this, drain] { http_->Stop(drain); });
    } catch (const std::system_error&) {
      // No thread: one after the other, below.
    }
  }
  if (rpc_ != nullptr) rpc_->Shutdown(until);
  if (rest.has_value()) rest->join();
  if (http_ != nullptr) http_->Stop(std::max(until - absl::Now(), absl::ZeroDuration()));
  lanes_.reset();  // waits for what its threads still run, whose clients have been answered
  if (request_log_ != nullptr) request_log_->Stop();
  if (pages_ != nullptr) pages_->Stop(absl::ZeroDuration());
}

}  // namespace millrace
