// SPDX-License-Identifier: Apache-2.0
//
// What a model server says of itself over its REST port, and what it logs, with a model of our own.
#include <re2/re2.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/record.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/tensor_proto.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "net/http/testing/raw_http_client.h"
#include "nlohmann/json.hpp"
#include "proto/serving/predict.pb.h"
#include "proto/serving/prediction_log.pb.h"
#include "serving/model_versions.h"
#include "serving/monitoring/monitoring_pages.h"
#include "serving/server/model_server.h"
#include "serving/testing/test_model.h"
#include "serving/version_state.h"

// covers: serving: a server's metrics, status and pages come by REST where they are enabled, and
// say
//   of each request what it was; series of unloaded versions go

namespace millrace {
namespace {

using absl::StrContains;

// The columns of the test model: product, sum and words.
constexpr char kBody[] = R"({"inputs": {"x": [[1.0, 2.0]], "k": 2.0}})";
constexpr char kPath[] = "/monitoring/prometheus/metrics";

class MonitoringTest : public ::testing::Test {
 protected:
  MonitoringTest() : base_(JoinPath(::testing::TempDir(), "monitored_" + RandomHexName())) {}
  ~MonitoringTest() override {
    server_.reset();
    FileSystem::Posix()->RecursivelyDelete(base_).IgnoreError();
  }
  void SetUp() override {
    ASSERT_OK(FileSystem::Posix()->RecursivelyCreateDirectory(JoinPath(base_, "m")));
    ASSERT_OK(ExportTestModel(JoinPath(base_, "m/1")));
  }

  void Start(ModelServerMonitoring monitoring, RequestLogSettings log = {}) {
    ModelServerOptions options = options_;
    ModelSettings model;
    model.name = "m";
    model.base_path = JoinPath(base_, "m");
    model.request_log = log;
    options.models = {model};
    options.rest_addresses = {"127.0.0.1:0"};
    options.versions.source.trust_new_versions = true;
    options.versions.poll_period = absl::ZeroDuration();
    options.start_timeout = absl::Seconds(60);
    options.monitoring = std::move(monitoring);
    auto server = ModelServer::Start(std::move(options));
    ASSERT_OK(server);
    server_ = *std::move(server);
  }
  RawHttpReply Ask(absl::string_view method, absl::string_view path, absl::string_view body = "") {
    RawHttpClient client(server_->rest_port());
    return client.Ask(HttpRequestText(method, path, body));
  }
  Status PredictInProcess(const std::string& model) {
    tensorflow::serving::PredictRequest request;
    request.mutable_model_spec()->set_name(model);
    MR_RETURN_IF_ERROR(
        TensorToContentProto(Tensor::Of<float>({{1, 2}}), &(*request.mutable_inputs())["x"]));
    MR_RETURN_IF_ERROR(
        TensorToContentProto(Tensor::Scalar(2.0f), &(*request.mutable_inputs())["k"]));
    tensorflow::serving::PredictResponse response;
    return server_->requests().Predict(request, {}, &response);
  }

  const std::string base_;
  ModelServerOptions options_;  // what a test adds
  std::unique_ptr<ModelServer> server_;
};

TEST_F(MonitoringTest, MetricsComeWhereTheyAreEnabled) {
  Start({});
  EXPECT_EQ(Ask("GET", kPath).status, 404);
  server_.reset();
  Start({.metrics_path = kPath});
  const RawHttpReply reply = Ask("GET", kPath);
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.header("content-type"), "text/plain; version=0.0.4; charset=utf-8");
  EXPECT_EQ(Ask("POST", kPath, "x").status, 404);
  EXPECT_EQ(Ask("GET", "/monitoring").status, 404);
}

TEST_F(MonitoringTest, EachRequestIsCounted) {
  Start({.metrics_path = kPath});
  ASSERT_EQ(Ask("POST", "/v1/models/m:predict", kBody).status, 200);
  ASSERT_EQ(Ask("POST", "/v1/models/m:predict", "{").status, 400);
  const RawHttpReply classified =
      Ask("POST", "/v1/models/m:classify",
          R"({"signature_name": "classify_scores", "examples": [{"v": 1.0}, {"v": 2.0}]})");
  ASSERT_EQ(classified.status, 200) << classified.body;
  ASSERT_EQ(Ask("POST", "/v1/models/nobody:predict", kBody).status, 404);
  ASSERT_OK(PredictInProcess("m"));
  const std::string page = Ask("GET", kPath).body;
  for (const char* line : {
           ":tensorflow:serving:request_count{model_name=\"m\",status=\"OK\"} 3\n",
           ":tensorflow:serving:request_count{model_name=\"m\",status=\"INVALID_ARGUMENT\"} 1\n",
           ":tensorflow:serving:request_count{model_name=\"\",status=\"NOT_FOUND\"} 1\n",
           // Of the one that succeeded.
           ":tensorflow:serving:request_latency_count{model_name=\"m\",API=\"Predict\","
           "entrypoint=\"REST\"} 1\n",
           ":tensorflow:serving:request_latency_count{model_name=\"m\",API=\"Predict\","
           "entrypoint=\"in_process\"} 1\n",
           ":tensorflow:serving:request_latency_count{model_name=\"m\",API=\"Classify\","
           "entrypoint=\"REST\"} 1\n",
           // The body that is no JSON did not come to the model.
           ":tensorflow:serving:runtime_latency_count{model_name=\"m\",API=\"Predict\","
           "runtime=\"TF1\"} 2\n",
           ":tensorflow:serving:request_example_count_total{model=\"m\"} 2\n",
           "millrace_requests_total{model_name=\"m\",version=\"1\",signature=\"classify_scores\","
           "status=\"OK\"} 1\n",
           "millrace_requests_running{model_name=\"m\",version=\"1\"} 0\n",
           "millrace_version_state{model_name=\"m\",version=\"1\",state=\"available\"} 1\n",
       }) {
    EXPECT_TRUE(StrContains(page, line)) << line << page;
  }
  EXPECT_FALSE(StrContains(page, "nobody")) << page;
  // What Prometheus' parser asks of a line.
  const RE2 sample(
      R"re([a-zA-Z_:][a-zA-Z0-9_:]*(\{([a-zA-Z_]\w*="([^"\\]|\\["\\n])*",?)*\})? \S+)re");
  const RE2 comment(R"re(# (HELP|TYPE) [a-zA-Z_:][a-zA-Z0-9_:]* .*)re");
  ASSERT_TRUE(absl::EndsWith(page, "\n"));
  for (const absl::string_view line : absl::StrSplit(page, '\n', absl::SkipEmpty())) {
    const std::string text(line);
    EXPECT_TRUE(RE2::FullMatch(text, text[0] == '#' ? comment : sample)) << text;
  }
}

TEST_F(MonitoringTest, SeriesOfUnloadedVersionsGo) {
  Start({.metrics_path = kPath});
  ASSERT_OK(PredictInProcess("m"));
  EXPECT_TRUE(StrContains(Ask("GET", kPath).body, "model_name=\"m\""));
  ASSERT_OK(server_->versions()->SetModels({}));
  ASSERT_TRUE(server_->versions()->WaitFor(
      "m",
      [](absl::Span<const VersionStatus> versions) {
        return versions.size() == 1 && versions[0].state == VersionState::kEnded;
      },
      absl::InfiniteFuture()));
  const std::string page = Ask("GET", kPath).body;
  EXPECT_FALSE(StrContains(page, "\"m\"")) << page;
  EXPECT_TRUE(StrContains(page, "millrace_uptime_seconds ")) << page;
}

TEST_F(MonitoringTest, StatusIsJsonAndPagesAreHtml) {
  Start({});
  const RawHttpReply status = Ask("GET", "/millrace/status");
  EXPECT_EQ(status.status, 200);
  EXPECT_EQ(status.header("content-type"), "application/json");
  const auto json = nlohmann::json::parse(status.body, nullptr, false);
  ASSERT_FALSE(json.is_discarded()) << status.body;
  EXPECT_EQ(json["models"][0]["name"], "m");
  EXPECT_EQ(json["models"][0]["versions"][0]["state"], "available");
  EXPECT_EQ(json["requests"]["running"], 0);
  const RawHttpReply page = Ask("GET", "/millrace/models/%6d");
  EXPECT_EQ(page.status, 200);
  EXPECT_EQ(page.header("content-type"), "text/html; charset=utf-8");
  EXPECT_TRUE(StrContains(page.body, "<h1>m</h1>")) << page.body;
  EXPECT_TRUE(StrContains(Ask("GET", "/millrace/models").body, "href=\"/millrace/models/m\""));
  for (const char* path : {"/millrace/models/", "/millrace/models/n", "/millrace/", "/"}) {
    EXPECT_EQ(Ask("GET", path).status, 404) << path;
  }
  server_.reset();
  Start({.status_pages = false});
  EXPECT_EQ(Ask("GET", "/millrace/status").status, 404);
}

// The pages' own port answers while each thread of the other one might run requests.
TEST_F(MonitoringTest, PagesMayHaveAPortOfTheirOwn) {
  Start({.metrics_path = kPath, .status_pages = false, .address = "127.0.0.1:0"});
  ASSERT_GT(server_->monitoring_port(), 0);
  for (const char* path : {kPath, "/millrace/status", "/millrace/models/m"}) {
    RawHttpClient client(server_->monitoring_port());
    EXPECT_EQ(client.Ask(HttpRequestText("GET", path)).status, 200) << path;
  }
  RawHttpClient client(server_->monitoring_port());
  EXPECT_EQ(client.Ask(HttpRequestText("GET", "/v1/models/m")).status, 404);
}

TEST_F(MonitoringTest, RequestsByRestAreLoggedUntilTheStop) {
  Start({}, {.sampling_rate = 1, .filename_prefix = JoinPath(base_, "log")});
  ASSERT_EQ(Ask("POST", "/v1/models/m:predict", kBody).status, 200);
  ASSERT_EQ(Ask("POST", "/v1/models/m:predict", "{").status, 400);
  ASSERT_OK(PredictInProcess("m"));
  server_->Stop(absl::ZeroDuration());
  auto reader = RecordReader::Open(FileSystem::Posix(), JoinPath(base_, "log-00000001"));
  ASSERT_OK(reader);
  for (int i = 0; i < 2; ++i) {
    const StatusOr<absl::string_view> record = (*reader)->Next();
    ASSERT_OK(record);
    tensorflow::serving::PredictionLog log;
    ASSERT_TRUE(log.ParseFromString(std::string(*record)));
    EXPECT_EQ(log.predict_log().request().model_spec().name(), "m");
    EXPECT_EQ(log.predict_log().request().inputs().size(), 2);
    EXPECT_EQ(log.predict_log().response().outputs().size(), 3);
  }
  EXPECT_TRUE(absl::IsOutOfRange((*reader)->Next().status()));
}

// As those of TensorFlow Serving's protocol.
TEST_F(MonitoringTest, RequestsOfTheOpenProtocolAreCountedAndLogged) {
  Start({.metrics_path = kPath}, {.sampling_rate = 1, .filename_prefix = JoinPath(base_, "log")});
  const char* const path = "/v2/models/m/infer";
  const RawHttpReply reply =
      Ask("POST", path,
          R"({"inputs":[{"name":"x","shape":[1,2],"datatype":"FP32","data":[1,2]},)"
          R"({"name":"k","shape":[],"datatype":"FP32","data":[3]}],"outputs":[{"name":"sum"}]})");
  ASSERT_EQ(reply.status, 200) << reply.body;
  ASSERT_EQ(Ask("POST", path, "{}").status, 400);
  ASSERT_EQ(Ask("POST", "/v2/models/nobody/infer", "{}").status, 404);
  const std::string page = Ask("GET", kPath).body;
  for (const char* line : {
           ":tensorflow:serving:request_count{model_name=\"m\",status=\"OK\"} 1\n",
           ":tensorflow:serving:request_count{model_name=\"m\",status=\"INVALID_ARGUMENT\"} 1\n",
           ":tensorflow:serving:request_count{model_name=\"\",status=\"NOT_FOUND\"} 1\n",
           ":tensorflow:serving:request_latency_count{model_name=\"m\",API=\"Predict\","
           "entrypoint=\"REST\"} 1\n",
           // The body without inputs did not come to the model.
           ":tensorflow:serving:runtime_latency_count{model_name=\"m\",API=\"Predict\","
           "runtime=\"TF1\"} 1\n",
           "millrace_requests_running{model_name=\"m\",version=\"1\"} 0\n",
       }) {
    EXPECT_TRUE(StrContains(page, line)) << line << page;
  }
  server_->Stop(absl::ZeroDuration());
  auto reader = RecordReader::Open(FileSystem::Posix(), JoinPath(base_, "log-00000001"));
  ASSERT_OK(reader);
  const StatusOr<absl::string_view> record = (*reader)->Next();
  ASSERT_OK(record);
  tensorflow::serving::PredictionLog log;
  ASSERT_TRUE(log.ParseFromString(std::string(*record)));
  EXPECT_EQ(log.predict_log().request().model_spec().name(), "m");
  EXPECT_EQ(log.predict_log().request().inputs().size(), 2);
  EXPECT_EQ(log.predict_log().response().outputs().size(), 1);  // what was asked for
  EXPECT_TRUE(absl::IsOutOfRange((*reader)->Next().status()));
}

TEST_F(MonitoringTest, BatchesHaveSeries) {
  options_.batching.emplace();
  Start({.metrics_path = kPath});
  const RawHttpReply classified =
      Ask("POST", "/v1/models/m:classify",
          R"({"signature_name": "classify_scores", "examples": [{"v": 1.0}, {"v": 2.0}]})");
  ASSERT_EQ(classified.status, 200) << classified.body;
  const std::string page = Ask("GET", kPath).body;
  // One request of two examples, which found a place: a step of its own.
  for (const char* line : {
           "queuing_latency_count{thread_pool_name=\"batch_threads\"} 1\n",
           "input_batch_size_sum{thread_pool_name=\"batch_threads\"} 2\n",
           "processed_batch_size_sum{thread_pool_name=\"batch_threads\"} 2\n",
           "padding_size_sum{thread_pool_name=\"batch_threads\"} 0\n",
           "wrapped_run_count 1\n",
       }) {
    EXPECT_TRUE(StrContains(page, absl::StrCat(":tensorflow:serving:batching_session:", line)))
        << line << page;
  }
}

TEST_F(MonitoringTest, ARefusedRequestSaysWhenToRetry) {
  options_.lanes.num_threads = 1;
  options_.lanes.max_waiting = -1;  // not even one that runs
  options_.lanes.hand_over_all = true;
  Start({});
  for (const char* path : {"/v1/models/m:predict", "/v2/models/m/infer"}) {
    const RawHttpReply reply = Ask("POST", path, kBody);
    EXPECT_EQ(reply.status, 429) << path << reply.body;
    EXPECT_EQ(reply.header("retry-after"), "1") << path;
  }
}

// Without anything that observes, requests are as before.
TEST_F(MonitoringTest, NothingNeedBeObserved) {
  Start({.metrics = false, .request_log = false});
  EXPECT_EQ(server_->metrics(), nullptr);
  EXPECT_EQ(server_->requests().observer(), nullptr);
  EXPECT_EQ(Ask("POST", "/v1/models/m:predict", kBody).status, 200);
  EXPECT_OK(PredictInProcess("m"));
  EXPECT_EQ(Ask("GET", "/millrace/status").status, 404);
}

TEST(MonitoringConfigTest, ReadsTheTextForm) {
  // As ../shared/data/serving/monitoring_config.txt.
  auto path = ReadMonitoringConfig(
      "prometheus_config: {\n  enable: true,\n  path: \"/monitoring/prometheus/metrics\"\n}");
  ASSERT_OK(path);
  EXPECT_EQ(*path, "/monitoring/prometheus/metrics");
  EXPECT_EQ(ReadMonitoringConfig("prometheus_config { enable: true }").value_or("error"), kPath);
  EXPECT_EQ(ReadMonitoringConfig("prometheus_config { path: '/x' }").value_or("error"), "");
  EXPECT_EQ(ReadMonitoringConfig("").value_or("error"), "");
  EXPECT_EQ(
      ReadMonitoringConfig("prometheus_config { enable: true path: '/v20' }").value_or("error"),
      "/v20");
  EXPECT_STATUS(ReadMonitoringConfig("prometheus { }"), absl::StatusCode::kInvalidArgument,
                "Error parsing text-format tensorflow.serving.MonitoringConfig");
  for (const char* bad : {"x", "/v1/x", "/v2", "/v2/", "/v2/metrics"}) {
    EXPECT_STATUS(
        ReadMonitoringConfig(absl::StrCat("prometheus_config { enable: true path: '", bad, "' }")),
        absl::StatusCode::kInvalidArgument, "prometheus_config.path must begin with");
  }
}

}  // namespace
}  // namespace millrace
