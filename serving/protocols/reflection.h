// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_PROTOCOLS_REFLECTION_H_
#define MILLRACE_SERVING_PROTOCOLS_REFLECTION_H_

// ReflectionService: grpc.reflection.v1 and v1alpha, which tell clients without our .proto files
// (grpcurl, buf curl) what this server offers.
//
// It knows the services that it is given, and the files that define them with all that these
// import; other messages of the process do not exist for it. An answer with a file has the files
// that it imports behind it, without those that the same call has got before.
//
// A call holds one request, and hears the next one when its answer has left: a client that asks
// several things at once, and closes its side, gets all answers.
//
// Thread-safety: all methods, from any thread.
// Lifetime: the handlers share what they need; open calls end by Stop, or with their server.
// Failure: Create: NotFound for a service that the program has no schema of. What clients ask wrong
// is an error_response, and the call goes on; a message that is none ends it.

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/mutex.h"
#include "core/status.h"
#include "net/duplex_call.h"

namespace google::protobuf {
class DescriptorPool;
}
namespace grpc::reflection::v1 {
class ServerReflectionRequest;
class ServerReflectionResponse;
}  // namespace grpc::reflection::v1

namespace millrace {

// The schemas of some services. Immutable.
class OfferedSchemas {
 public:
  // What a client has got already: names of files.
  struct Sent;

  // Full names of services in `pool`, which outlives this.
  static StatusOr<std::shared_ptr<const OfferedSchemas>> Make(
      const google::protobuf::DescriptorPool* pool, std::vector<std::string> services);
  ~OfferedSchemas();

  static std::shared_ptr<Sent> NothingSent();
  void Answer(const grpc::reflection::v1::ServerReflectionRequest& request, Sent* sent,
              grpc::reflection::v1::ServerReflectionResponse* response) const;

 private:
  struct Impl;
  explicit OfferedSchemas(std::unique_ptr<const Impl> impl);
  const std::unique_ptr<const Impl> impl_;
};

class ReflectionService : public std::enable_shared_from_this<ReflectionService> {
 public:
  static constexpr size_t kMaxCalls = 256;
  static constexpr size_t kMaxRequestBytes = 16 << 10;

  // Of the schemas that are linked into the program. The reflection services are added.
  static StatusOr<std::shared_ptr<ReflectionService>> Create(std::vector<std::string> services);

  std::map<std::string, std::function<void(std::shared_ptr<DuplexCall>)>> DuplexHandlers();
  // Closes open calls; later ones close at once. Idempotent.
  void Stop();

 private:
  class Conversation;

  explicit ReflectionService(std::shared_ptr<const OfferedSchemas> schemas)
      : schemas_(std::move(schemas)) {}
  void Begin(std::shared_ptr<DuplexCall> call);

  const std::shared_ptr<const OfferedSchemas> schemas_;
  Mutex mu_;
  std::map<const Conversation*, std::weak_ptr<Conversation>> open_ ABSL_GUARDED_BY(mu_);
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace millrace

#endif  // MILLRACE_SERVING_PROTOCOLS_REFLECTION_H_
