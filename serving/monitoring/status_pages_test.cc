// SPDX-License-Identifier: Apache-2.0
#include "serving/monitoring/status_pages.h"

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/status.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "serving/version_state.h"

// covers: serving: the status of a server is JSON, and pages of at most 4 KB, whatever its models
//   are called

namespace millrace {
namespace {

constexpr char kHostile[] = "<script>\"'&\n\xff</script>";

ServerStatus StatusWith(std::vector<ModelStatus> models) {
  ServerStatus status;
  status.build = "1.2.3";
  status.uptime = absl::Milliseconds(1500);
  status.num_running = 2;
  status.num_waiting = 1;
  status.tensor_bytes = 10;
  status.resident_bytes = 20;
  status.models = std::move(models);
  status.running_of = [](absl::string_view, int64_t version) { return version == 2 ? 7 : 0; };
  return status;
}

ModelStatus ModelWith(const std::string& name, int num_versions) {
  ModelStatus model;
  model.name = name;
  model.base_path = "/models";
  model.is_listed = true;
  for (int i = num_versions; i > 0; --i) {
    model.versions.push_back({i, VersionState::kAvailable, Status(), 100});
  }
  return model;
}

TEST(StatusPagesTest, JsonHasAll) {
  ModelStatus model = ModelWith("m", 2);
  model.labels = {{"stable", 1}};
  model.versions[1].state = VersionState::kFailed;
  model.versions[1].status = absl::NotFoundError("no file");
  const auto json = nlohmann::json::parse(StatusJson(StatusWith({model})));
  EXPECT_EQ(json, nlohmann::json::parse(R"({
    "build": "1.2.3", "uptime_seconds": 1.5,
    "requests": {"running": 2, "waiting": 1}, "bytes": {"tensors": 10, "resident": 20},
    "models": [{"name": "m", "base_path": "/models", "listed": true, "labels": {"stable": 1},
      "versions": [
        {"version": 2, "state": "available", "bytes": 100, "running": 7},
        {"version": 1, "state": "failed", "bytes": 100, "running": 0, "code": "NOT_FOUND",
         "error": "no file"}],
      "forgotten_versions": 0}]})"));
}

TEST(StatusPagesTest, HostileNamesAreEscaped) {
  ModelStatus model = ModelWith(kHostile, 1);
  model.labels = {{kHostile, 1}};
  model.source = absl::NotFoundError(kHostile);
  model.versions[0].status = absl::InternalError(kHostile);
  const ServerStatus status = StatusWith({model});
  const auto json = nlohmann::json::parse(StatusJson(status));
  // What is no UTF-8 is U+FFFD.
  EXPECT_EQ(json["models"][0]["name"], "<script>\"'&\n\xef\xbf\xbd</script>");
  for (const std::string& page : {ModelHtml(model, status), ModelsHtml(status)}) {
    EXPECT_FALSE(absl::StrContains(page, "<script")) << page;
    EXPECT_FALSE(absl::StrContains(page, '\xff')) << page;
    EXPECT_TRUE(absl::StrContains(page, "&lt;script&gt;&quot;&#39;&amp;\n\xef\xbf\xbd&lt;/"))
        << page;
  }
  EXPECT_TRUE(absl::StrContains(
      ModelsHtml(status), "href=\"/millrace/models/%3Cscript%3E%22%27%26%0A%FF%3C%2Fscript%3E\""));
}

TEST(StatusPagesTest, PagesAreBounded) {
  const std::string long_name(10'000, '"');  // six bytes each when escaped
  ModelStatus many = ModelWith(long_name, 1000);
  for (VersionStatus& version : many.versions) version.status = absl::InternalError(long_name);
  many.source = absl::InternalError(long_name);
  many.labels = {{long_name, 1000}};
  std::vector<ModelStatus> models(1000, ModelWith("name", 1));
  models[0] = many;
  const ServerStatus status = StatusWith(models);
  for (const std::string& page : {ModelHtml(many, status), ModelsHtml(status)}) {
    EXPECT_LE(page.size(), kMaxHtmlBytes);
    EXPECT_TRUE(absl::StrContains(page, " more</p>")) << page;
    EXPECT_TRUE(absl::EndsWith(page, "</body></html>\n")) << page;
  }
  EXPECT_TRUE(absl::StrContains(ModelsHtml(status), "href=\"/millrace/models/name\""));
  const std::string small = ModelHtml(ModelWith("m", 2), status);
  EXPECT_TRUE(absl::StrContains(small,
                                "<tr><td>2</td><td>available</td><td></td><td>100</td><td>7</td>"
                                "<td></td></tr>"))
      << small;
  EXPECT_FALSE(absl::StrContains(small, " more"));
}

}  // namespace
}  // namespace millrace
