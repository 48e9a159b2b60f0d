// SPDX-License-Identifier: Apache-2.0
#include "net/http/http_server.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "core/exceptions.h"
#include "core/mutex.h"
#include "net/http/http_connection.h"
#include "net/http/http_connections.h"
#include "net/http/http_exchange.h"
#include "net/http/http_lingers.h"
#include "net/http/http_listener.h"
#include "net/http/http_loops.h"
#include "net/http/http_server_options.h"
#include "net/http/http_watch.h"

namespace millrace {
namespace {

// How long the replies of a server that stops may take to get out.
constexpr absl::Duration kFlushTime = absl::Seconds(5);

class Server final : public HttpServer {
 public:
  Server(HttpServerOptions options, HttpHandler handler)
      : options_(std::move(options)), handler_(std::move(handler)) {}
  ~Server() override { Stop(absl::ZeroDuration()); }

  Status Begin();

  const std::vector<std::string>& addresses() const override { return addresses_; }
  int port() const override { return port_; }
  int num_connections() const override { return connections_.num(); }
  void Stop(absl::Duration drain) override;

 private:
  void Drain(absl::Duration drain);

  const HttpServerOptions options_;
  const HttpHandler handler_;
  const std::shared_ptr<HttpShared> shared_ = std::make_shared<HttpShared>(options_);
  // Each knows those before it.
  HttpConnections connections_{&options_, shared_};
  HttpLingers lingers_{shared_, &connections_};
  const HttpExchange exchange_{&options_, &handler_, shared_};
  HttpLoops loops_{&options_, shared_, &exchange_, &connections_, &lingers_};
  HttpWatch watch_{&options_, shared_, &connections_, &lingers_, &loops_};
  std::vector<std::string> addresses_;
  int port_ = 0;

  Mutex stop_mu_;
  bool stopped_ ABSL_GUARDED_BY(stop_mu_) = false;
};

Status Server::Begin() {
  if (!shared_->watch.open() || !shared_->wake.open()) {
    return absl::ResourceExhaustedError("HTTP server: two more files must be free, got none");
  }
  std::vector<HttpListener> listeners;
  for (const std::string& address : options_.addresses) {
    MR_ASSIGN_OR_RETURN(HttpListener listener, HttpListener::Open(address));
    addresses_.push_back(listener.address());
    if (listeners.empty()) port_ = listener.port();
    listeners.push_back(std::move(listener));
  }
  MR_RETURN_IF_ERROR(loops_.Start());
  return watch_.Begin(std::move(listeners));
}

void Server::Stop(absl::Duration drain) {
  MutexLock one_at_a_time(&stop_mu_);
  if (std::exchange(stopped_, true)) return;
  if (watch_.is_running()) Drain(drain);
  loops_.Stop();
  watch_.End();
}

void Server::Drain(absl::Duration drain) {
  const int64_t deadline = DeadlineNs(drain);
  shared_->draining = true;
  watch_.CloseListeners();
  connections_.AwaitNone(std::min(deadline, DeadlineNs(options_.linger_time)));
  connections_.CloseIdleOnes();
  connections_.AwaitNone(deadline);
  // From here on nothing suspends: a loop that ends with a suspended connection would abort.
  shared_->ending = true;
  std::vector<uint64_t> answered;
  for (const auto& connection : connections_.All()) {
    if (connection->End()) answered.push_back(connection->id);
  }
  connections_.AwaitEndOf(answered, DeadlineNs(kFlushTime));
}

}  // namespace

StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(HttpServerOptions options,
                                                        HttpHandler handler) {
  return NoExceptions("HTTP server", [&]() -> StatusOr<std::unique_ptr<HttpServer>> {
    MR_RETURN_IF_ERROR(CheckHttpServerOptions(options));
    MR_RETURN_IF_ERROR(CheckHttpLibrary(!options.tls_key.empty()));
    auto server = std::make_unique<Server>(std::move(options), std::move(handler));
    MR_RETURN_IF_ERROR(server->Begin());
    return std::unique_ptr<HttpServer>(std::move(server));
  });
}

}  // namespace millrace
