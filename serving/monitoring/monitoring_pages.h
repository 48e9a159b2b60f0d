// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_MONITORING_MONITORING_PAGES_H_
#define MILLRACE_SERVING_MONITORING_MONITORING_PAGES_H_

// MonitoringPages: the pages of a server outside of /v1/, by GET and HEAD.
//
//   /monitoring/prometheus/metrics   or another path; not at all without one
//   /millrace/status                 JSON
//   /millrace/models[/NAME]          HTML
//
// They wait for no request that runs, and take only locks that are held for moments.
//
// Thread-safety: all methods, from any thread. Lifetime: shares what it needs.
// Failure: 404 for a model that is not known.

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "core/status.h"
#include "net/http/http_server.h"
#include "serving/model_versions.h"
#include "serving/monitoring/server_metrics.h"

namespace millrace {

inline constexpr char kDefaultMetricsPath[] = "/monitoring/prometheus/metrics";

class MonitoringPages {
 public:
  // `metrics_path` "": no page of metrics. `with_status`: those below /millrace/.
  MonitoringPages(std::shared_ptr<const ModelVersions> versions,
                  std::shared_ptr<const ServerMetrics> metrics, std::string metrics_path,
                  bool with_status)
      : versions_(std::move(versions)),
        metrics_(std::move(metrics)),
        metrics_path_(std::move(metrics_path)),
        with_status_(with_status) {}

  // Answers the request, or says that it is for none of the pages.
  bool Serve(HttpRequest* request) const;

 private:
  const std::shared_ptr<const ModelVersions> versions_;
  const std::shared_ptr<const ServerMetrics> metrics_;
  const std::string metrics_path_;
  const bool with_status_;
};

// The path of a MonitoringConfig as text, as --monitoring_config_file has it; "" when it enables
// nothing. InvalidArgument: "Error parsing text-format tensorflow.serving.MonitoringConfig", or a
// path that is taken or does not begin with "/".
StatusOr<std::string> ReadMonitoringConfig(absl::string_view text);

}  // namespace millrace

#endif  // MILLRACE_SERVING_MONITORING_MONITORING_PAGES_H_
