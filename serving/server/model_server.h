// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_SERVER_MODEL_SERVER_H_
#define MILLRACE_SERVING_SERVER_MODEL_SERVER_H_

// ModelServer: models from directories, served over gRPC and REST as TensorFlow Serving does, or
// within the process, without a port.
//
//   ModelServerOptions options;
//   options.models = {{.name = "census", .base_path = "/models/census"}};
//   options.grpc_address = "0.0.0.0:8500";
//   options.rest_addresses = {"0.0.0.0:8501"};
//   MR_ASSIGN_OR_RETURN(const auto server, ModelServer::Start(options));
//   ...
//   server->Stop(absl::Seconds(30));
//
// Start looks for the models and waits until each has an available version, or has failed its first
// try; then the ports open (a probe that connects is a probe of readiness). One model that did not
// become available ends Start with an error, and so does each of several with
// `require_all_models`; else the others serve, and the status tells why one does not.
//
// Probes see it (serving/protocols) not ready before Start has finished, and from SetNotReady or
// Stop on.
//
// Thread-safety: all methods, from any thread.
// Lifetime: Stop, or the destructor, refuses new requests and lets those that run end.
// Failure: as ModelVersions::SetModels, RpcServer::Start and HttpServer::Start; "N model(s) did not
// become available: {...}".

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "core/cancellation.h"
#include "core/mutex.h"
#include "core/status.h"
#include "net/http/http_server.h"
#include "net/rpc_server.h"
#include "net/security.h"
#include "serving/batching/batching.h"
#include "serving/model_requests.h"
#include "serving/model_versions.h"
#include "serving/monitoring/request_log.h"
#include "serving/monitoring/server_metrics.h"
#include "serving/protocols/health.h"
#include "serving/protocols/readiness.h"
#include "serving/protocols/reflection.h"
#include "serving/rest/rest_lanes.h"
#include "serving/served_model.h"
#include "serving/server/hosted_models.h"
#include "serving/server/rest_front.h"

namespace millrace {

// To see inside: see serving/monitoring/README.md.
struct ModelServerMonitoring {
  bool metrics = true;       // counts requests
  std::string metrics_path;  // of their page on the REST port; "": none
  bool status_pages = true;  // /millrace/... on the REST port
  // A port for the pages alone, whose thread runs no requests; as HttpServerOptions, "": none.
  std::string address = "";
  bool request_log = true;  // of models whose settings have one
  RequestLogOptions request_log_options = {};
  double access_log_sampling = 0;  // lines in the log, of each request with this probability
};

struct ModelServerOptions {
  std::vector<ModelSettings> models;
  bool require_all_models = false;
  // Ports open at once: requests for what is not there yet are NotFound.
  bool listen_early = false;
  // How long Start waits for the models; a load goes on behind it.
  absl::Duration start_timeout = absl::InfiniteDuration();
  // Ends the wait: Start then returns the server as it is, which never becomes ready, to be
  // stopped. Until Start has returned.
  CancellationManager* start_cancellation = nullptr;

  // "": none. "host:0": any port; "unix:/path".
  std::string grpc_address = "";
  std::vector<std::string> more_grpc_addresses = {};
  std::vector<std::pair<std::string, std::string>> grpc_channel_arguments = {};
  std::vector<std::string> rest_addresses = {};  // as HttpServerOptions; none: no REST
  // Of all ports; null: no TLS, no token. The port of ModelServerMonitoring has no TLS.
  std::shared_ptr<const Credentials> credentials = nullptr;
  HttpServerOptions http = {};  // without addresses and TLS
  RestFrontOptions rest = {};   // without lanes
  RestLanes::Options lanes = {};
  int max_running_requests = 64;  // of gRPC, at a time; others wait
  // Of gRPC, that wait for those: others are ResourceExhausted. Health, status and reflection are
  // none of them. REST: lanes.max_waiting.
  int max_waiting_requests = 20'000;
  bool enable_health = true;        // grpc.health.v1
  bool enable_session_run = false;  // SessionService: who may call it may run each op

  ServedModelOptions model = {};  // its runner is batching's, where that is set
  std::optional<BatchingOptions> batching = std::nullopt;
  bool enable_warm_up = true;
  int warm_up_iterations = 1;
  // The last logged requests of a model, so many, warm up its versions too (replay_requests.h).
  int64_t warm_up_from_request_log = 0;
  ModelServerMonitoring monitoring = {};
  ModelVersions::Options versions = {};  // without loader, warm_up and on_change
};

class ModelServer {
 public:
  static StatusOr<std::unique_ptr<ModelServer>> Start(ModelServerOptions options);
  ~ModelServer();
  ModelServer(const ModelServer&) = delete;
  ModelServer& operator=(const ModelServer&) = delete;

  // For requests within the process.
  const ModelRequests& requests() const { return *requests_; }
  ModelVersions* versions() const { return versions_.get(); }
  int grpc_port() const { return rpc_ == nullptr ? 0 : rpc_->port(); }
  int rest_port() const { return http_ == nullptr ? 0 : http_->port(); }
  int monitoring_port() const { return pages_ == nullptr ? 0 : pages_->port(); }
  // What was counted so far; null without ModelServerMonitoring::metrics.
  const std::shared_ptr<ServerMetrics>& metrics() const { return metrics_; }
  bool is_ready() const { return readiness_->is_ready(); }

  // Probes see it not ready, for good; requests are served as before. Proxies that probe may turn
  // to other servers before Stop.
  void SetNotReady() { readiness_->SetStopping(); }
  // Ends the fronts; requests that run have `drain`. Then the request log is written to its end.
  // Idempotent; not from a request.
  void Stop(absl::Duration drain);

 private:
  class StartEnd;

  ModelServer() = default;
  // Readiness becomes stopping; requests and reloads wait no longer for models.
  void EndWaits();
  Status Listen(const ModelServerOptions& options);
  // Answers what is asked for outside of /v1/.
  std::function<bool(HttpRequest*)> PagesOf(const ModelServerMonitoring& monitoring,
                                            bool with_status) const;

  std::shared_ptr<ServerMetrics> metrics_;
  // What probes and clients of other protocols ask.
  Status AddProtocols(const ModelServerOptions& options, RpcServer::Options* rpc);

  const std::shared_ptr<Readiness> readiness_ = std::make_shared<Readiness>();
  std::unique_ptr<ModelHealth> health_;
  std::shared_ptr<ReflectionService> reflection_;
  std::shared_ptr<ModelVersions> versions_;
  std::unique_ptr<HostedModels> hosted_;
  std::shared_ptr<const ModelRequests> requests_;
  std::shared_ptr<RpcServer> rpc_;
  Mutex stop_mu_;
  std::unique_ptr<RestLanes> lanes_;  // before http_, whose handlers use it
  std::unique_ptr<HttpServer> http_, pages_;
};

}  // namespace millrace

#endif  // MILLRACE_SERVING_SERVER_MODEL_SERVER_H_
