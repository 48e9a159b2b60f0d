// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_PROTOCOLS_HEALTH_H_
#define MILLRACE_SERVING_PROTOCOLS_HEALTH_H_

// HealthService: grpc.health.v1 over the models of a server.
//
//   "", a service by its name    SERVING while the server is ready
//   a model by its name          SERVING while it has an available version
//   all of them                  NOT_SERVING once the server stops
//
// A name of both is the service's. A model that is loading, failed or draining is NOT_SERVING; one
// that is not listed and holds nothing is unknown: NOT_FOUND to Check, SERVICE_UNKNOWN to Watch.
//
//   Watch:  opened -> (status written)* -> ended
//
// Always:
//   * the last status that a watcher got is the one of now, or is about to be written: changes that
//     come while one is written are put together;
//   * a watcher costs no thread; one thread tells all of them;
//   * a watch ends when its client goes, and, with NOT_SERVING as its last word, when the server
//     stops.
//
// Thread-safety: all methods, from any thread; Stop and the destructor not from a handler.
// Lifetime: handlers and open watches share it. Stop comes before the last of them goes.
// Failure: ResourceExhausted for a watcher above the bound, and from Create when the system gives
// no thread.

#include <grpcpp/support/byte_buffer.h>

#include <cstddef>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/mutex.h"
#include "core/status.h"
#include "net/rpc_server.h"
#include "serving/model_versions.h"
#include "serving/protocols/readiness.h"

namespace millrace {

// Numbers of grpc.health.v1.HealthCheckResponse.ServingStatus.
enum class Health : int { kServing = 1, kNotServing = 2, kServiceUnknown = 3 };

// The rule for a model; null: no such name.
Health HealthOfModel(Readiness::Phase phase, const ModelStatus* model);
// The rule for the server and its services.
Health HealthOfServer(Readiness::Phase phase);

class HealthService : public std::enable_shared_from_this<HealthService> {
 public:
  struct Options {
    std::shared_ptr<const ModelVersions> versions;
    // Its NoteChange is called after each change of `versions`.
    std::shared_ptr<Readiness> readiness;
    std::vector<std::string> services;  // names that stand for the whole server
    size_t max_watchers = 1'000;
  };
  static StatusOr<std::shared_ptr<HealthService>> Create(Options options);
  ~HealthService();

  std::map<std::string, RpcServer::Handler> Handlers();
  Health StatusOf(absl::string_view name) const;
  size_t num_watchers() const;

  // After the readiness has become stopping: each watch gets its last word and ends; later ones do
  // so at once. Idempotent.
  void Stop();

 private:
  struct Watcher;

  explicit HealthService(Options options);
  Health StatusAmong(absl::Span<const ModelStatus> models, absl::string_view name) const;
  StatusOr<grpc::ByteBuffer> Check(const grpc::ByteBuffer& request) const;
  Status Watch(std::shared_ptr<ServerCall> call, const grpc::ByteBuffer& request);
  void TellAll();
  // Begins what is next for a watcher, unless something is under way, whose end calls this again.
  void GoOn(const std::shared_ptr<Watcher>& watcher);
  void ClientHasGone(const std::shared_ptr<Watcher>& watcher);
  void Run();

  const Options options_;
  mutable Mutex mu_;  // before the locks of versions and readiness
  std::set<std::shared_ptr<Watcher>> watchers_ ABSL_GUARDED_BY(mu_);
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  Mutex thread_mu_;  // held by the one who joins
  std::thread thread_ ABSL_GUARDED_BY(thread_mu_);
};

}  // namespace millrace

#endif  // MILLRACE_SERVING_PROTOCOLS_HEALTH_H_
