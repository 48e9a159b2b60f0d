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
#include "core/logging.h"
#include "core/mutex.h"
#include "net/call_limits.h"
#include "serving/monitoring/monitoring_pages.h"
#include "serving/protocols/v2_grpc.h"
#include "serving/protocols/v2_rest.h"
#include "serving/server/grpc_front.h"
#include "serving/server/hosted_models.h"
#include "serving/server/rest_protobuf.h"
#include "serving/server/rest_token.h"

namespace millrace {

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
  HostedModelsOptions hosted = {
      .model = options.model,
      .batching = options.batching,
      .enable_warm_up = options.enable_warm_up,
      .warm_up_iterations = options.warm_up_iterations,
      .warm_up_from_request_log = options.warm_up_from_request_log,
      .metrics = options.monitoring.metrics,
      .request_log = options.monitoring.request_log,
      .request_log_options = options.monitoring.request_log_options,
      .access_log_sampling = options.monitoring.access_log_sampling,
      .versions = options.versions,
  };
  hosted.versions.on_change = [readiness = server->readiness_] { readiness->NoteChange(); };
  MR_ASSIGN_OR_RETURN(server->hosted_, HostedModels::Create(hosted));
  server->metrics_ = server->hosted_->metrics();
  server->versions_ = server->hosted_->versions();
  server->requests_ = server->hosted_->requests();
  // Before a client can send another list.
  MR_RETURN_IF_ERROR(server->hosted_->SetModels(options.models));
  if (options.listen_early) MR_RETURN_IF_ERROR(server->Listen(options));

  const StartEnd end(options.start_cancellation, server.get());
  if (end.has_come()) return server;
  const Status loaded =
      server->hosted_->AwaitModels(options.require_all_models, options.start_timeout,
                                   /*nobody_asks=*/!options.listen_early);
  if (end.has_come()) return server;
  MR_RETURN_IF_ERROR(loaded);
  if (!options.listen_early) MR_RETURN_IF_ERROR(server->Listen(options));
  server->readiness_->SetReady();
  return server;
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
  if (options.credentials != nullptr) MR_RETURN_IF_ERROR(options.credentials->CheckServer());
  const std::string token = options.credentials == nullptr ? "" : options.credentials->token;
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
    HttpHandler handler = RestFront(requests_, rest);
    handler = ProtobufRestFront(requests_, rest, std::move(handler));
    handler = V2RestFront(requests_, readiness_,
                          {.timeout = options.rest.timeout,
                           .cors = options.rest.cors,
                           .limits = options.rest.limits,
                           .lanes = lanes_.get()},
                          std::move(handler));
    handler = AskForToken(token, std::move(handler));
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
    HttpHandler handler = [serve](std::unique_ptr<HttpRequest> request) {
      if (!serve(request.get())) request->Answer(404, {}, "");
    };
    MR_ASSIGN_OR_RETURN(pages_,
                        HttpServer::Start(std::move(http), AskForToken(token, std::move(handler))));
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
    MR_ASSIGN_OR_RETURN(health_, ModelHealth::Create({.versions = versions_,
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
  if (hosted_ != nullptr) hosted_->Stop();
  if (pages_ != nullptr) pages_->Stop(absl::ZeroDuration());
}

}  // namespace millrace
