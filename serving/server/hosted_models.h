// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_SERVER_HOSTED_MODELS_H_
#define MILLRACE_SERVING_SERVER_HOSTED_MODELS_H_

// HostedModels: the models of a server behind its ports: their versions, batching, warm-up, metrics
// and request log. A server with ports (model_server.h) and one without (local_model_server.h) both
// stand on it.
//
//   MR_ASSIGN_OR_RETURN(const auto hosted, HostedModels::Create(options));
//   MR_RETURN_IF_ERROR(hosted->Load(models, false, absl::InfiniteDuration()));
//   hosted->requests()->Predict(...);
//
// Thread-safety: all methods, from any thread; one Load, or SetModels and then AwaitModels, by one
// thread.
// Lifetime: what requests() returns keeps the models; Stop ends the request log alone.
// Failure: Create: as ModelVersions::Create, Batching::Create and RequestLog::Start. Load: as
// ModelVersions::SetModels; "N model(s) did not become available: {...}".

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "core/status.h"
#include "serving/batching/batching.h"
#include "serving/model_requests.h"
#include "serving/model_versions.h"
#include "serving/monitoring/request_log.h"
#include "serving/monitoring/server_metrics.h"
#include "serving/request_observer.h"
#include "serving/served_model.h"

namespace millrace {

struct HostedModelsOptions {
  ServedModelOptions model = {};  // its runner is batching's, where that is set
  std::optional<BatchingOptions> batching = std::nullopt;
  bool enable_warm_up = true;
  int warm_up_iterations = 1;
  // Logged requests of a model that warm up its versions, the last ones; with enable_warm_up. For a
  // tenth of PlanOptions::max_load_time, and a minute, at most.
  int64_t warm_up_from_request_log = 0;
  bool metrics = true;      // counts requests
  bool request_log = true;  // of models whose settings have one
  RequestLogOptions request_log_options = {};
  double access_log_sampling = 0;
  ModelVersions::Options versions = {};  // without loader and warm_up
};

class HostedModels {
 public:
  static StatusOr<std::unique_ptr<HostedModels>> Create(const HostedModelsOptions& options);
  HostedModels(const HostedModels&) = delete;
  HostedModels& operator=(const HostedModels&) = delete;

  // The models from now on, without their labels. Before there are clients, whose lists come later.
  Status SetModels(const std::vector<ModelSettings>& models);
  // Waits until each of these has an available version, or has failed its first try, or the time is
  // over. One that did not become available is an error when it is the only one, or `require_all`;
  // else it is in the log. Then their labels are set: those that cannot be are in the log. The list
  // of a client that came meanwhile stays as it is. `nobody_asks`: no request can come meanwhile,
  // so the loads need not be paced.
  Status AwaitModels(bool require_all, absl::Duration timeout, bool nobody_asks);
  // Both; nobody asks.
  Status Load(const std::vector<ModelSettings>& models, bool require_all, absl::Duration timeout);

  const std::shared_ptr<ModelVersions>& versions() const { return versions_; }
  const std::shared_ptr<const ModelRequests>& requests() const { return requests_; }
  // Null without HostedModelsOptions::metrics.
  const std::shared_ptr<ServerMetrics>& metrics() const { return metrics_; }

  // Writes the request log to its end. Idempotent.
  void Stop();

 private:
  HostedModels() = default;
  // What sees the requests; null: nothing.
  StatusOr<std::shared_ptr<RequestObserver>> Observe(const HostedModelsOptions& options);

  bool polls_by_hand_ = false;         // no thread does
  std::vector<ModelSettings> models_;  // that were set, with their labels
  uint64_t num_lists_ = 0;             // as of ModelVersions, with these
  std::shared_ptr<ServerMetrics> metrics_;
  std::shared_ptr<ModelVersions> versions_;
  std::shared_ptr<RequestLog> request_log_;
  std::shared_ptr<const ModelRequests> requests_;
};

}  // namespace millrace

#endif  // MILLRACE_SERVING_SERVER_HOSTED_MODELS_H_
