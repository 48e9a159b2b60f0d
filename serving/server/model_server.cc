// SPDX-License-Identifier: Apache-2.0
#include "serving/server/model_server.h"

#include <cstdint>
#include <utility>

#include "absl/time/clock.h"
#include "core/cancellation.h"
#include "core/logging.h"
#include "serving/servable.h"
#include "serving/server/grpc_front.h"
#include "serving/step_bounds.h"
#include "serving/warm_up.h"

namespace millrace {
namespace {

ModelVersions::Loader LoaderOf(const ServedModelOptions& options) {
  return [options](const VersionToLoad& version,
                   CancellationManager* cancellation) -> StatusOr<std::shared_ptr<Servable>> {
    MR_ASSIGN_OR_RETURN(
        std::unique_ptr<ServedModel> model,
        ServedModel::Load(version.model, version.version, version.directory, options));
    // Between its parts: a load of a SavedModel cannot be stopped.
    if (cancellation->IsCancelled()) return absl::CancelledError("the load was told to end");
    return std::shared_ptr<Servable>(std::move(model));
  };
}

ModelVersions::WarmUp WarmUpOf(int iterations) {
  return [iterations](const VersionToLoad& version, Servable* servable,
                      CancellationManager* cancellation) -> Status {
    const WarmUpOptions options = {.iterations = iterations,
                                   .bounds = {.cancellation = cancellation}};
    MR_ASSIGN_OR_RETURN(const int64_t records, WarmUp(*static_cast<const ServedModel*>(servable),
                                                      version.directory, options));
    if (records > 0) {
      LogInfo("Model ", version.model, " version ", version.version, ": ran ", records,
              " warm-up requests");
    }
    return absl::OkStatus();
  };
}

}  // namespace

StatusOr<std::unique_ptr<ModelServer>> ModelServer::Start(ModelServerOptions options) {
  std::unique_ptr<ModelServer> server(new ModelServer);
  ModelVersions::Options versions = options.versions;
  versions.loader = LoaderOf(options.model);
  if (options.enable_warm_up) versions.warm_up = WarmUpOf(options.warm_up_iterations);
  MR_ASSIGN_OR_RETURN(server->versions_, ModelVersions::Create(std::move(versions)));
  server->requests_ = std::make_shared<const ModelRequests>(server->versions_);
  if (options.listen_early) MR_RETURN_IF_ERROR(server->Listen(options));

  const absl::Time deadline = absl::Now() + options.start_timeout;
  std::vector<ModelSettings> models = options.models;
  for (ModelSettings& model : models) model.labels.clear();
  MR_RETURN_IF_ERROR(server->versions_->SetModels(models));
  const auto failed = server->versions_->WaitUntilTried(deadline);
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
  if (!options.listen_early) MR_RETURN_IF_ERROR(server->Listen(options));
  return server;
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
    rpc.handlers = GrpcFront(requests_);
    rpc.keep = requests_;
    rpc.max_heavy_calls = options.max_running_requests;
    rpc.credentials = options.credentials;
    rpc.limits.max_splat_bytes = options.model.max_splat_bytes;
    MR_ASSIGN_OR_RETURN(rpc_, RpcServer::Start(std::move(rpc)));
    LogInfo("Serves gRPC on port ", rpc_->port());
  }
  if (!options.rest_addresses.empty()) {
    HttpServerOptions http = options.http;
    http.addresses = options.rest_addresses;
    if (options.credentials != nullptr && options.credentials->is_tls()) {
      http.tls_key = options.credentials->key;
      http.tls_certificate = options.credentials->certificate;
      if (options.credentials->require_client_certificate) http.client_ca = options.credentials->ca;
    }
    MR_ASSIGN_OR_RETURN(http_,
                        HttpServer::Start(std::move(http), RestFront(requests_, options.rest)));
    LogInfo("Serves REST on port ", http_->port());
  }
  return absl::OkStatus();
}

ModelServer::~ModelServer() { Stop(absl::ZeroDuration()); }

void ModelServer::Stop(absl::Duration drain) {
  if (http_ != nullptr) http_->Stop(drain);
  if (rpc_ != nullptr) rpc_->Shutdown(absl::Now() + drain);
}

}  // namespace millrace
