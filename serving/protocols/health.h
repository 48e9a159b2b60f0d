// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_PROTOCOLS_HEALTH_H_
#define MILLRACE_SERVING_PROTOCOLS_HEALTH_H_

// ModelHealth: the health (net/health_service.h) of the models of a server.
//
//   "", a service by its name    SERVING while the server is ready
//   a model by its name          SERVING while it has an available version
//   all of them                  NOT_SERVING once the server stops
//
// A name of both is the service's. A model that is loading, failed or draining is NOT_SERVING; one
// that is not listed and holds nothing is unknown: NOT_FOUND to Check, SERVICE_UNKNOWN to Watch.
//
// One thread tells all watchers.
//
// Thread-safety: all methods, from any thread; Stop and the destructor not from a handler.
// Failure: from Create, ResourceExhausted when the system gives no thread.

#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/mutex.h"
#include "core/status.h"
#include "net/health_service.h"
#include "net/rpc_server.h"
#include "serving/model_versions.h"
#include "serving/protocols/readiness.h"

namespace millrace {

// The rule for a model; null: no such name.
Health HealthOfModel(Readiness::Phase phase, const ModelStatus* model);
// The rule for the server and its services.
Health HealthOfServer(Readiness::Phase phase);

class ModelHealth {
 public:
  struct Options {
    std::shared_ptr<const ModelVersions> versions;
    // Its NoteChange is called after each change of `versions`.
    std::shared_ptr<Readiness> readiness;
    std::vector<std::string> services;  // names that stand for the whole server
  };
  static StatusOr<std::unique_ptr<ModelHealth>> Create(Options options);
  ~ModelHealth();
  ModelHealth(const ModelHealth&) = delete;
  ModelHealth& operator=(const ModelHealth&) = delete;

  std::map<std::string, RpcServer::Handler> Handlers() { return service_->Handlers(); }

  // After the readiness has become stopping: each watch gets its last word and ends; later ones do
  // so at once. Idempotent.
  void Stop();

 private:
  explicit ModelHealth(const Options& options);
  void Run();

  const std::shared_ptr<Readiness> readiness_;
  const std::shared_ptr<HealthService> service_;
  Mutex mu_;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  Mutex thread_mu_;  // held by the one who joins
  std::thread thread_ ABSL_GUARDED_BY(thread_mu_);
};

}  // namespace millrace

#endif  // MILLRACE_SERVING_PROTOCOLS_HEALTH_H_
