// SPDX-License-Identifier: Apache-2.0
#include "serving/monitoring/monitoring_pages.h"

#include <algorithm>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/metrics.h"
#include "google/protobuf/text_format.h"
#include "proto/serving/monitoring_config.pb.h"
#include "serving/monitoring/current_status.h"
#include "serving/monitoring/status_pages.h"
#include "serving/rest/rest_path.h"

namespace millrace {
namespace {

constexpr char kStatusPath[] = "/millrace/status";
constexpr char kModelsPath[] = "/millrace/models";

void Answer(HttpRequest* request, absl::string_view content_type, std::string body) {
  // What it says is of now; a browser takes it for nothing else.
  request->Answer(200,
                  {{"Content-Type", std::string(content_type)},
                   {"Cache-Control", "no-store"},
                   {"X-Content-Type-Options", "nosniff"}},
                  std::move(body));
}

void AnswerHtml(HttpRequest* request, std::string body) {
  Answer(request, "text/html; charset=utf-8", std::move(body));
}

}  // namespace

bool MonitoringPages::Serve(HttpRequest* request) const {
  if (request->method() != "GET" && request->method() != "HEAD") return false;
  const absl::string_view path = request->path();
  if (!metrics_path_.empty() && path == metrics_path_) {
    Answer(request, kMetricsContentType, metrics_->Page());
    return true;
  }
  if (!with_status_) return false;
  absl::string_view name = path;
  const bool is_models = absl::ConsumePrefix(&name, kModelsPath);
  const bool is_model = is_models && absl::ConsumePrefix(&name, "/") && !name.empty();
  if (path != kStatusPath && path != kModelsPath && !is_model) return false;
  const ServerStatus status = CurrentStatus(*versions_, *metrics_);
  if (path == kStatusPath) {
    Answer(request, "application/json", StatusJson(status));
    return true;
  }
  if (!is_model) {
    AnswerHtml(request, ModelsHtml(status));
    return true;
  }
  const std::string wanted = PercentDecoded(name);
  const auto model = std::find_if(status.models.begin(), status.models.end(),
                                  [&](const ModelStatus& m) { return m.name == wanted; });
  if (model == status.models.end()) return false;
  AnswerHtml(request, ModelHtml(*model, status));
  return true;
}

StatusOr<std::string> ReadMonitoringConfig(absl::string_view text) {
  tensorflow::serving::MonitoringConfig config;
  if (!google::protobuf::TextFormat::ParseFromString(std::string(text), &config)) {
    return InvalidArgument("Error parsing text-format ", config.GetTypeName());
  }
  if (!config.prometheus_config().enable()) return std::string();
  const std::string& path = config.prometheus_config().path();
  if (path.empty()) return std::string(kDefaultMetricsPath);
  // What the other handlers of the port take first.
  const bool is_v2 = path == "/v2" || absl::StartsWith(path, "/v2/");
  if (path[0] != '/' || IsRestPath(path) || is_v2) {
    return InvalidArgument(
        "MonitoringConfig: prometheus_config.path must begin with \"/\" and be none of /v1/ and "
        "/v2, got \"",
        path, "\"");
  }
  return path;
}

}  // namespace millrace
