// SPDX-License-Identifier: Apache-2.0
#include "serving/server/local_model_server.h"

#include <atomic>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "proto/serving/classification.pb.h"
#include "proto/serving/inference.pb.h"
#include "proto/serving/predict.pb.h"
#include "proto/serving/regression.pb.h"
#include "serving/testing/test_model.h"

// covers: serving: a server within a program answers by names and by messages, with a server's
//   codes and texts, batches, counts, takes other models and versions, and opens no port

namespace millrace {
namespace {

class LocalModelServerTest : public ::testing::Test {
 protected:
  LocalModelServerTest() : base_(JoinPath(::testing::TempDir(), "local_" + RandomHexName())) {}
  ~LocalModelServerTest() override {
    server_.reset();
    FileSystem::Posix()->RecursivelyDelete(base_).IgnoreError();
  }

  std::string PathOf(const std::string& name) { return JoinPath(base_, name); }
  void AddVersion(const std::string& name, int64_t version) {
    ASSERT_OK(FileSystem::Posix()->RecursivelyCreateDirectory(PathOf(name)));
    ASSERT_OK(ExportTestModel(JoinPath(PathOf(name), absl::StrCat(version))));
  }
  LocalModelServerOptions Options(const std::vector<std::string>& models) {
    LocalModelServerOptions options;
    for (const std::string& name : models) {
      options.models.push_back({.name = name, .base_path = PathOf(name)});
    }
    options.poll_period = absl::InfiniteDuration();
    options.max_load_retries = 0;
    options.start_timeout = absl::Seconds(60);
    return options;
  }
  void Start(const LocalModelServerOptions& options) {
    StatusOr<std::unique_ptr<LocalModelServer>> server = LocalModelServer::Start(options);
    ASSERT_OK(server);
    server_ = *std::move(server);
  }
  static std::map<std::string, Tensor> Inputs() {
    return {{"x", Tensor::Of<float>({{1, 2}})}, {"k", Tensor::Scalar(2.0f)}};
  }
  Status Refused(const std::string& model, const ModelPredictOptions& options = {}) {
    return server_->Predict(model, Inputs(), options).status();
  }

  const std::string base_;
  std::unique_ptr<LocalModelServer> server_;
};

TEST_F(LocalModelServerTest, AnswersByNames) {
  AddVersion("m", 3);
  Start(Options({"m"}));
  ASSERT_OK_AND_ASSIGN(const ModelPrediction got, server_->Predict("m", Inputs()));
  EXPECT_EQ(got.version, 3);
  EXPECT_EQ(got.signature, "serving_default");
  ASSERT_EQ(got.outputs.size(), 3u);
  EXPECT_EQ(got.outputs.at("product").flat<float>()[1], 4);
  EXPECT_EQ(got.outputs.at("sum").flat<float>()[0], 3);

  ASSERT_OK_AND_ASSIGN(
      const ModelPrediction one,
      server_->Predict("m", Inputs(),
                       {.which = {.version = 3}, .outputs = {"sum"}, .timeout = absl::Minutes(5)}));
  EXPECT_EQ(one.outputs.size(), 1u);

  EXPECT_STATUS(Refused("n"), absl::StatusCode::kNotFound,
                "Servable not found for request: Latest(n)");
  EXPECT_STATUS(Refused("m", {.which = {.version = 4}}), absl::StatusCode::kNotFound,
                "Servable not found for request: Specific(m, 4)");
  EXPECT_STATUS(Refused("m", {.which = {.label = "stable"}}), absl::StatusCode::kInvalidArgument,
                "Unrecognized servable version label: stable");
  EXPECT_STATUS(Refused("m", {.which = {.version = 3, .label = "stable"}}),
                absl::StatusCode::kInvalidArgument, "got 3 and 'stable'");
  EXPECT_STATUS(Refused("m", {.signature = "s"}), absl::StatusCode::kFailedPrecondition,
                "Serving signature key \"s\" not found.");
  EXPECT_STATUS(Refused("m", {.timeout = -absl::Seconds(1)}), absl::StatusCode::kDeadlineExceeded,
                "");
  EXPECT_STATUS(server_->Predict("m", {}).status(), absl::StatusCode::kInvalidArgument,
                "input size does not match signature: 0!=2");
}

TEST_F(LocalModelServerTest, AnswersByMessages) {
  AddVersion("m", 3);
  Start(Options({"m"}));
  tensorflow::serving::ClassificationRequest classify;
  classify.mutable_model_spec()->set_name("m");
  classify.mutable_model_spec()->set_signature_name("classify");
  *classify.mutable_input() = InputOf({1, 2});
  tensorflow::serving::ClassificationResponse classified;
  ASSERT_OK(server_->Classify(classify, &classified));
  ASSERT_EQ(classified.result().classifications_size(), 2);
  EXPECT_EQ(classified.result().classifications(1).classes(0).score(), 5);

  tensorflow::serving::RegressionRequest regress;
  regress.mutable_model_spec()->set_name("m");
  regress.mutable_model_spec()->set_signature_name("regress");
  *regress.mutable_input() = InputOf({1, 2});
  tensorflow::serving::RegressionResponse regressed;
  ASSERT_OK(server_->Regress(regress, &regressed));
  EXPECT_EQ(regressed.result().regressions(1).value(), 6);

  tensorflow::serving::MultiInferenceRequest none;
  tensorflow::serving::MultiInferenceResponse several;
  EXPECT_STATUS(server_->MultiInference(none, &several), absl::StatusCode::kInvalidArgument, "");

  tensorflow::serving::PredictRequest predict;
  tensorflow::serving::PredictResponse predicted;
  predicted.mutable_model_spec();
  EXPECT_STATUS(server_->Predict(predict, &predicted), absl::StatusCode::kInvalidArgument,
                "Missing ModelSpec");
  EXPECT_FALSE(predicted.has_model_spec());
}

TEST_F(LocalModelServerTest, TellsItsStatusAndCounts) {
  AddVersion("m", 3);
  Start(Options({"m"}));
  for (int i = 0; i < 2; ++i) ASSERT_OK(server_->Predict("m", Inputs()));
  const std::string metrics = server_->MetricsText();
  EXPECT_TRUE(absl::StrContains(
      metrics, ":tensorflow:serving:request_count{model_name=\"m\",status=\"OK\"} 2"))
      << metrics;
  const std::string status = server_->StatusText();
  EXPECT_TRUE(absl::StrContains(status, "\"m\"")) << status;

  ASSERT_OK_AND_ASSIGN(const auto versions, server_->GetModelStatus("m"));
  ASSERT_EQ(versions.size(), 1u);
  EXPECT_EQ(versions[0].version, 3);
  EXPECT_EQ(versions[0].state, ServedVersionState::kAvailable);
  EXPECT_STATUS(server_->GetModelStatus("n").status(), absl::StatusCode::kNotFound,
                "Could not find any versions of model n");

  ASSERT_OK_AND_ASSIGN(const ServedModelMetadata metadata, server_->GetMetadata("m"));
  EXPECT_EQ(metadata.version, 3);
  EXPECT_TRUE(metadata.signatures.contains("regress"));
}

TEST_F(LocalModelServerTest, TakesVersionsAndModelsThatCome) {
  AddVersion("m", 1);
  AddVersion("n", 5);
  LocalModelServerOptions options = Options({"m"});
  options.models[0].labels = {{"stable", 1}};
  Start(options);
  ASSERT_OK(server_->Predict("m", Inputs(), {.which = {.label = "stable"}}));
  std::atomic<bool> stops{false};
  std::atomic<int> failed{0};
  std::thread client([&] {
    while (!stops) failed += server_->Predict("m", Inputs()).ok() ? 0 : 1;
  });
  AddVersion("m", 2);
  // Waits until what is new has been tried.
  EXPECT_OK(server_->Reload({{.name = "m", .base_path = PathOf("m"), .versions = {2}},
                             {.name = "n", .base_path = PathOf("n")}},
                            absl::Seconds(60)));
  EXPECT_EQ(server_->Predict("m", Inputs()).value_or(ModelPrediction()).version, 2);
  EXPECT_EQ(server_->Predict("n", Inputs()).value_or(ModelPrediction()).version, 5);
  stops = true;
  client.join();
  EXPECT_EQ(failed, 0);
  // A list that is refused changes nothing.
  EXPECT_STATUS(server_->Reload({{.name = "", .base_path = base_}}),
                absl::StatusCode::kInvalidArgument, "");
  EXPECT_OK(server_->Predict("n", Inputs()));
}

TEST_F(LocalModelServerTest, BatchesWhatManyThreadsAsk) {
  AddVersion("m", 1);
  LocalModelServerOptions options = Options({"m"});
  options.batching = true;
  options.batching_parameters = "max_batch_size { value: 8 }";
  Start(options);
  std::atomic<int> wrong{0};
  std::vector<std::thread> clients;
  for (int i = 0; i < 4; ++i) {
    clients.emplace_back([&, i] {
      tensorflow::serving::RegressionRequest request;
      request.mutable_model_spec()->set_name("m");
      request.mutable_model_spec()->set_signature_name("regress");
      *request.mutable_input() = InputOf({static_cast<float>(i)});
      for (int turn = 0; turn < 20; ++turn) {
        tensorflow::serving::RegressionResponse response;
        const bool is_right = server_->Regress(request, &response).ok() &&
                              response.result().regressions_size() == 1 &&
                              response.result().regressions(0).value() == static_cast<float>(3 * i);
        wrong += is_right ? 0 : 1;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_TRUE(absl::StrContains(server_->MetricsText(), "processed_batch_size"));
}

// With a path of the current directory, and a list as text.
TEST_F(LocalModelServerTest, RelativePathsAndConfigurationTexts) {
  AddVersion("m", 1);
  AddVersion("n", 1);
  const std::filesystem::path home = std::filesystem::current_path();
  std::filesystem::current_path(base_);
  LocalModelServerOptions options = Options({});
  options.models = {{.name = "m", .base_path = "m"}};
  StatusOr<std::unique_ptr<LocalModelServer>> server = LocalModelServer::Start(options);
  std::filesystem::current_path(home);
  ASSERT_OK(server);
  EXPECT_OK((*server)->Predict("m", Inputs()));

  options.models.clear();
  options.model_config = absl::StrCat("model_config_list { config { name: 'n' base_path: '",
                                      PathOf("n"), "' model_platform: 'tensorflow' } }");
  Start(options);
  EXPECT_OK(server_->Predict("n", Inputs()));
}

// What the first server was asked warms up the second one, as a later process would be.
TEST_F(LocalModelServerTest, LoggedRequestsWarmUpTheNextVersion) {
  AddVersion("m", 1);
  LocalModelServerOptions options = Options({});
  options.model_config =
      absl::StrCat("model_config_list { config { name: 'm' base_path: '", PathOf("m"),
                   "' model_platform: 'tensorflow' logging_config { log_collector_config { "
                   "filename_prefix: '",
                   JoinPath(base_, "logs/m"), "' } sampling_config { sampling_rate: 1 } } } }");
  options.warm_up_from_request_log = 2;
  Start(options);
  for (int i = 0; i < 3; ++i) ASSERT_OK(server_->Predict("m", Inputs()));
  const char* const replayed = "millrace_replayed_requests_total{model_name=\"m\",status=\"OK\"}";
  EXPECT_FALSE(absl::StrContains(server_->MetricsText(), replayed));
  server_->Stop();  // writes the log
  server_.reset();

  AddVersion("m", 2);
  Start(options);
  EXPECT_TRUE(absl::StrContains(server_->MetricsText(), absl::StrCat(replayed, " 2\n")))
      << server_->MetricsText();
  // They were no requests.
  EXPECT_FALSE(absl::StrContains(server_->MetricsText(),
                                 ":tensorflow:serving:request_count{model_name=\"m\""));
}

TEST_F(LocalModelServerTest, RefusesWhatContradictsItself) {
  AddVersion("m", 1);
  const auto refused = [&](LocalModelServerOptions options) {
    return LocalModelServer::Start(options).status();
  };
  EXPECT_STATUS(refused(Options({})), absl::StatusCode::kInvalidArgument, "got neither");
  LocalModelServerOptions options = Options({"m"});
  options.model_config = "model_config_list {}";
  EXPECT_STATUS(refused(options), absl::StatusCode::kInvalidArgument, "got both");
  options = Options({"m"});
  options.batching_parameters = "max_batch_size { value: 8 }";
  EXPECT_STATUS(refused(options), absl::StatusCode::kInvalidArgument, "must be with batching");
  options = Options({"m"});
  options.models[0].num_latest = 0;
  EXPECT_STATUS(refused(options), absl::StatusCode::kInvalidArgument, "at least 1, got 0");
  options = Options({"m"});
  options.inter_op_threads = -1;
  EXPECT_STATUS(refused(options), absl::StatusCode::kInvalidArgument, "got 0 and -1");
  options = Options({"m"});
  options.memory_limit = 1;
  EXPECT_STATUS(refused(options), absl::StatusCode::kInvalidArgument, "");
  const Status absent = refused(Options({"absent"}));
  EXPECT_TRUE(absl::StartsWith(absent.message(), "1 model(s) did not become available: {absent: "))
      << absent;
}

TEST_F(LocalModelServerTest, RefusesCallsAfterStop) {
  AddVersion("m", 1);
  Start(Options({"m"}));
  server_->Stop();
  server_->Stop();
  EXPECT_STATUS(Refused("m"), absl::StatusCode::kUnavailable, "must come before Stop");
  tensorflow::serving::PredictRequest request;
  tensorflow::serving::PredictResponse response;
  EXPECT_STATUS(server_->Predict(request, &response), absl::StatusCode::kUnavailable, "");
  EXPECT_STATUS(server_->Reload({}), absl::StatusCode::kUnavailable, "");
  EXPECT_STATUS(server_->GetModelStatus("m").status(), absl::StatusCode::kUnavailable,
                "must come before Stop");
  EXPECT_FALSE(server_->StatusText().empty());
}

}  // namespace
}  // namespace millrace
