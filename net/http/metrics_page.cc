// SPDX-License-Identifier: Apache-2.0
#include "net/http/metrics_page.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/logging.h"
#include "core/metrics.h"
#include "core/mutex.h"
#include "core/process_metrics.h"
#include "net/http/http_server.h"

namespace millrace {
namespace {

constexpr char kVariable[] = "MILLRACE_METRICS_ADDRESS";
constexpr int kMaxPort = 65'535;
// Scrapers keep one connection each.
constexpr int kMaxConnections = 64;
constexpr int64_t kMaxBody = 64 << 10;
constexpr absl::Duration kTime = absl::Seconds(20);

struct Ports {
  std::string host = "127.0.0.1";
  int first = 0, last = 0;
};

StatusOr<Ports> PortsOf(absl::string_view text) {
  Ports ports;
  absl::string_view rest = text;
  if (const size_t colon = rest.rfind(':'); colon != absl::string_view::npos) {
    ports.host = std::string(rest.substr(0, colon));
    rest.remove_prefix(colon + 1);
  }
  const size_t dash = rest.find('-');
  const bool is_range = dash != absl::string_view::npos;
  const bool is_read = absl::SimpleAtoi(rest.substr(0, dash), &ports.first) &&
                       (!is_range || absl::SimpleAtoi(rest.substr(dash + 1), &ports.last));
  if (!is_range) ports.last = ports.first;
  if (!is_read || ports.host.empty() || ports.first < (is_range ? 1 : 0) ||
      ports.last < ports.first || ports.last > kMaxPort) {
    return InvalidArgument(kVariable, ": must be [HOST:]PORT or [HOST:]FIRST-LAST, got '", text,
                           "'");
  }
  return ports;
}

void Answer(HttpRequest* request, const std::function<Status()>& health) {
  if (request->method() != "GET" && request->method() != "HEAD") {
    return request->Answer(405, {{"Allow", "GET, HEAD"}}, "");
  }
  if (request->path() == "/metrics") {
    return request->Answer(200, {{"Content-Type", kMetricsContentType}}, ProcessMetrics().Page());
  }
  if (request->path() == "/healthz") {
    const Status status = health ? health() : absl::OkStatus();
    return request->Answer(status.ok() ? 200 : 503, {{"Content-Type", "text/plain; charset=utf-8"}},
                           status.ok() ? "ok\n" : absl::StrCat(status.message(), "\n"));
  }
  request->Answer(404, {{"Content-Type", "text/plain; charset=utf-8"}},
                  "this port has /metrics and /healthz\n");
}

class Page : public MetricsPage {
 public:
  explicit Page(std::unique_ptr<HttpServer> server) : server_(std::move(server)) {}
  int port() const override { return server_->port(); }

 private:
  const std::unique_ptr<HttpServer> server_;
};

}  // namespace

StatusOr<std::unique_ptr<MetricsPage>> MetricsPage::Start(Options options) {
  MR_ASSIGN_OR_RETURN(const Ports ports, PortsOf(options.address));
  Status first_error;
  for (int port = ports.first; port <= ports.last; ++port) {
    HttpServerOptions http;
    http.addresses = {absl::StrCat(ports.host, ":", port)};
    http.num_threads = 1;
    http.max_connections = kMaxConnections;
    http.max_body_bytes = kMaxBody;
    http.body_time = kTime;
    http.reply_time = kTime;
    auto server = HttpServer::Start(
        std::move(http), [health = options.health](std::unique_ptr<HttpRequest> request) {
          Answer(request.get(), health);
        });
    if (server.ok()) return std::make_unique<Page>(*std::move(server));
    // Only another port may do.
    if (!absl::IsFailedPrecondition(server.status())) return server.status();
    first_error.Update(server.status());
  }
  return first_error;
}

namespace {

struct OfProcess {
  Mutex mu;
  bool is_begun ABSL_GUARDED_BY(mu) = false;
  // Never deleted: threads of the process outlive its statics.
  MetricsPage* page ABSL_GUARDED_BY(mu) = nullptr;
};

OfProcess& of_process() {
  static OfProcess* const of_process = new OfProcess;
  return *of_process;
}

}  // namespace

Status StartMetricsPageOfEnvironment(std::function<Status()> health) {
  const char* const address = std::getenv(kVariable);
  if (address == nullptr || *address == '\0') return absl::OkStatus();
  MR_RETURN_IF_ERROR(PortsOf(address).status());
  OfProcess& process = of_process();
  MutexLock lock(&process.mu);
  if (std::exchange(process.is_begun, true)) return absl::OkStatus();
  auto page = MetricsPage::Start({.address = address, .health = std::move(health)});
  if (!page.ok()) {
    LogWarning("Metrics are not served: ", page.status().message());
    return absl::OkStatus();
  }
  process.page = page->release();
  LogInfo("Serves metrics on port ", process.page->port(), ": /metrics, /healthz");
  return absl::OkStatus();
}

int MetricsPagePort() {
  OfProcess& process = of_process();
  MutexLock lock(&process.mu);
  return process.page == nullptr ? 0 : process.page->port();
}

}  // namespace millrace
