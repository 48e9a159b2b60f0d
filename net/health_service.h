// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_NET_HEALTH_SERVICE_H_
#define MILLRACE_NET_HEALTH_SERVICE_H_

// HealthService: grpc.health.v1 on a port, for whatever its owner gives a name.
//
//   Check:  one answer; NOT_FOUND for a name that is unknown
//   Watch:  opened -> (status written)* -> ended; an unknown name is SERVICE_UNKNOWN
//
// Always:
//   * the last status that a watcher got is the one of now, or is about to be written: changes that
//     come while one is written are put together;
//   * a watcher costs no thread;
//   * a watch ends when its client goes, and, with NOT_SERVING as its last word, when the server
//     stops.
//
// Thread-safety: all methods, from any thread; End not from a handler.
// Lifetime: handlers and open watches share it. What `look` uses outlives them.
// Failure: ResourceExhausted for a watcher above the bound.

#include <grpcpp/support/byte_buffer.h>

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "absl/strings/string_view.h"
#include "core/mutex.h"
#include "core/status.h"
#include "net/rpc_server.h"

namespace millrace {

// Numbers of grpc.health.v1.HealthCheckResponse.ServingStatus.
enum class Health : int { kServing = 1, kNotServing = 2, kServiceUnknown = 3 };

class HealthService : public std::enable_shared_from_this<HealthService> {
 public:
  // The health of each name, as it was when the look was taken.
  using Look = std::function<Health(absl::string_view name)>;
  struct Options {
    // Takes a look. Called with a lock of the service held: it calls none of its methods.
    std::function<Look()> look;
    // What names may be, for the error of an unknown one: "a task or ...".
    std::string known_names;
    size_t max_watchers = 1'000;
  };
  static std::shared_ptr<HealthService> Create(Options options);

  std::map<std::string, RpcServer::Handler> Handlers();
  Health StatusOf(absl::string_view name) const;
  size_t num_watchers() const;

  // Something may have changed: writes begin on this thread, for those whose status has.
  void NoteChange();
  // Each watch gets its last word and ends; later ones do so at once. Idempotent.
  void End();

 private:
  struct Watcher;

  explicit HealthService(Options options);
  StatusOr<grpc::ByteBuffer> Check(const grpc::ByteBuffer& request) const;
  Status Watch(std::shared_ptr<ServerCall> call, const grpc::ByteBuffer& request);
  // Begins what is next for a watcher, unless something is under way, whose end calls this again.
  void GoOn(const std::shared_ptr<Watcher>& watcher);
  void ClientHasGone(const std::shared_ptr<Watcher>& watcher);

  const Options options_;
  mutable Mutex mu_;  // before the locks of `look`
  std::set<std::shared_ptr<Watcher>> watchers_ ABSL_GUARDED_BY(mu_);
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace millrace

#endif  // MILLRACE_NET_HEALTH_SERVICE_H_
