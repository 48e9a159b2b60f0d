// SPDX-License-Identifier: Apache-2.0
//
// A model server over real sockets, asked by gRPC and REST: replies of TensorFlow Serving's own
// models where they are at hand, else a model of our own.
#include "serving/server/model_server.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/cancellation.h"
#include "core/clock.h"
#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/record.h"
#include "core/status.h"
#include "core/testing/shared_data.h"
#include "core/testing/tensor_testing.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "net/http/testing/raw_http_client.h"
#include "net/rpc_channel.h"
#include "net/tensor_coding.h"
#include "proto/inference/grpc_service.pb.h"
#include "proto/serving/get_model_status.pb.h"
#include "proto/serving/logging.pb.h"
#include "proto/serving/method_paths.h"
#include "proto/serving/model.pb.h"
#include "proto/serving/model_management.pb.h"
#include "proto/serving/predict.pb.h"
#include "proto/serving/prediction_log.pb.h"
#include "serving/model_config.h"
#include "serving/model_versions.h"
#include "serving/server/grpc_front.h"
#include "serving/server/hosted_models.h"
#include "serving/testing/test_model.h"
#include "serving/version_source.h"
#include "serving/version_state.h"
#include "serving/warm_up.h"

// covers: serving: a server answers Predict over gRPC and REST with TensorFlow Serving's replies,
//   codes and texts
// covers: serving: a version swapped in while requests run fails none of them
// covers: serving: several models at start: the good ones serve, a bad one is in the status; one
//   bad model alone ends the start
// covers: serving: a start that is cancelled waits no longer for models

namespace millrace {
namespace {

constexpr char kHalfPlusTwo[] = "serving/saved_model_half_plus_two_2_versions";

std::string Joined(const std::string& directory, int64_t version) {
  return JoinPath(directory, absl::StrCat(version));
}

// With the model of serving/testing/test_model.h.
class ModelServerTest : public ::testing::Test {
 protected:
  ModelServerTest() : base_(JoinPath(::testing::TempDir(), "served_" + RandomHexName())) {}
  ~ModelServerTest() override {
    server_.reset();
    FileSystem::Posix()->RecursivelyDelete(base_).IgnoreError();
  }

  // A version of a model of `name`.
  void AddVersion(const std::string& name, int64_t version) {
    ASSERT_OK(FileSystem::Posix()->RecursivelyCreateDirectory(JoinPath(base_, name)));
    ASSERT_OK(ExportTestModel(Joined(JoinPath(base_, name), version)));
  }
  ModelServerOptions Options(const std::vector<std::string>& models) {
    ModelServerOptions options;
    for (const std::string& name : models) {
      options.models.push_back({.name = name, .base_path = JoinPath(base_, name)});
    }
    options.grpc_address = "127.0.0.1:0";
    options.rest_addresses = {"127.0.0.1:0"};
    options.credentials = std::make_shared<Credentials>();
    options.versions.source.trust_new_versions = true;
    options.versions.poll_period = absl::ZeroDuration();
    options.versions.plan.max_retries = 0;
    options.start_timeout = absl::Seconds(60);
    return options;
  }
  void Start(ModelServerOptions options) {
    StatusOr<std::unique_ptr<ModelServer>> server = ModelServer::Start(std::move(options));
    ASSERT_OK(server);
    server_ = *std::move(server);
    channel_ = RpcChannel::Make(absl::StrCat("127.0.0.1:", server_->grpc_port()),
                                std::make_shared<Credentials>());
  }

  template <typename Request, typename Response>
  Status Call(const char* path, const Request& request, Response* response) {
    MR_ASSIGN_OR_RETURN(const grpc::ByteBuffer bytes, EncodeMessage(request));
    MR_ASSIGN_OR_RETURN(const grpc::ByteBuffer reply,
                        channel_->Call(path, {.deadline = absl::Now() + absl::Seconds(60)}, bytes));
    return DecodeMessage(path, reply, response);
  }
  static tensorflow::serving::PredictRequest PredictOf(const std::string& model) {
    tensorflow::serving::PredictRequest request;
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(
        R"pb(inputs {
               key: "x"
               value {
                 dtype: DT_FLOAT
                 tensor_shape {
                   dim { size: 1 }
                   dim { size: 2 }
                 }
                 float_val: [ 1, 2 ]
               }
             }
             inputs {
               key: "k"
               value { dtype: DT_FLOAT float_val: 2 }
             })pb",
        &request));
    request.mutable_model_spec()->set_name(model);
    return request;
  }
  Status Predict(const tensorflow::serving::PredictRequest& request,
                 tensorflow::serving::PredictResponse* response) {
    return Call(kPredictPath, request, response);
  }
  RawHttpReply Rest(absl::string_view method, absl::string_view path, absl::string_view body = "") {
    RawHttpClient client(server_->rest_port());
    return client.Ask(HttpRequestText(method, path, body));
  }
  RawHttpReply Post(absl::string_view body, absl::string_view path = "/v1/models/m:predict") {
    return Rest("POST", path, body);
  }

  const std::string base_;
  std::unique_ptr<ModelServer> server_;
  std::shared_ptr<RpcChannel> channel_;
};

// With half_plus_two.
class HalfPlusTwoServerTest : public ModelServerTest {
 protected:
  void SetUp() override {
    if (SharedDataPath(kHalfPlusTwo).empty()) {
      GTEST_SKIP() << "MILLRACE_SHARED has no " << kHalfPlusTwo;
    }
  }

  void AddVersion(const std::string& name, int64_t version) {
    const std::string from = JoinPath(SharedDataPath(kHalfPlusTwo), "00000123");
    Copy(from, Joined(JoinPath(base_, name), version));
  }
  static void Copy(const std::string& from, const std::string& to) {
    FileSystem* const files = FileSystem::Posix();
    ASSERT_OK(files->RecursivelyCreateDirectory(to));
    const StatusOr<std::vector<std::string>> children = files->GetChildren(from);
    ASSERT_OK(children);
    for (const std::string& child : *children) {
      const std::string path = JoinPath(from, child);
      if (files->IsDirectory(path).value_or(false)) {
        Copy(path, JoinPath(to, child));
        continue;
      }
      const StatusOr<std::string> bytes = ReadFileToString(files, path);
      ASSERT_OK(bytes);
      ASSERT_OK(WriteFileAtomically(files, JoinPath(to, child), *bytes));
    }
  }
  static tensorflow::serving::PredictRequest PredictOf(const std::string& model) {
    tensorflow::serving::PredictRequest request;
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(
        R"pb(inputs {
               key: "x"
               value {
                 dtype: DT_FLOAT
                 tensor_shape {
                   dim { size: 3 }
                   dim { size: 1 }
                 }
                 float_val: [ 1, 2, 5 ]
               }
             })pb",
        &request));
    request.mutable_model_spec()->set_name(model);
    return request;
  }
};

TEST_F(HalfPlusTwoServerTest, AnswersOverGrpc) {
  AddVersion("m", 3);
  Start(Options({"m"}));
  tensorflow::serving::PredictResponse response;
  ASSERT_OK(Predict(PredictOf("m"), &response));
  tensorflow::serving::PredictResponse want;
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(
      R"pb(model_spec {
             name: "m"
             version { value: 3 }
             signature_name: "serving_default"
           }
           outputs {
             key: "y"
             value {
               dtype: DT_FLOAT
               tensor_shape {
                 dim { size: 3 }
                 dim { size: 1 }
               }
               float_val: [ 2.5, 3, 4.5 ]
             }
           })pb",
      &want));
  EXPECT_EQ(response.DebugString(), want.DebugString());

  tensorflow::serving::PredictRequest request = PredictOf("m");
  request.clear_model_spec();
  EXPECT_STATUS(Predict(request, &response), absl::StatusCode::kInvalidArgument,
                "Missing ModelSpec");
  request.mutable_model_spec();
  EXPECT_STATUS(Predict(request, &response), absl::StatusCode::kInvalidArgument,
                "ModelSpec has no name specified.");
  EXPECT_STATUS(Predict(PredictOf("n"), &response), absl::StatusCode::kNotFound,
                "Servable not found for request: Latest(n)");
  request = PredictOf("m");
  request.mutable_model_spec()->mutable_version()->set_value(4);
  EXPECT_STATUS(Predict(request, &response), absl::StatusCode::kNotFound,
                "Servable not found for request: Specific(m, 4)");
  request = PredictOf("m");
  request.mutable_model_spec()->set_version_label("stable");
  EXPECT_STATUS(Predict(request, &response), absl::StatusCode::kInvalidArgument,
                "Unrecognized servable version label: stable");
  request = PredictOf("m");
  request.mutable_model_spec()->set_signature_name("s");
  EXPECT_STATUS(Predict(request, &response), absl::StatusCode::kFailedPrecondition,
                "Serving signature key \"s\" not found.");

  tensorflow::serving::GetModelStatusRequest of_status;
  of_status.mutable_model_spec()->set_name("m");
  tensorflow::serving::GetModelStatusResponse status;
  ASSERT_OK(Call(kGetModelStatusPath, of_status, &status));
  ASSERT_EQ(status.model_version_status_size(), 1);
  EXPECT_EQ(status.model_version_status(0).version(), 3);
  EXPECT_EQ(status.model_version_status(0).state(),
            tensorflow::serving::ModelVersionStatus::AVAILABLE);
  // A method of nobody.
  EXPECT_STATUS(Call(kSessionRunPath, of_status, &status), absl::StatusCode::kUnimplemented, "");
}

TEST_F(HalfPlusTwoServerTest, AnswersOverRest) {
  AddVersion("m", 3);
  Start(Options({"m"}));
  for (const char* path : {"/v1/models/m:predict", "/V1/models/m/versions/3:predict"}) {
    const RawHttpReply rows = Post(R"({"instances": [[1.0], [2.0], [5.0]]})", path);
    EXPECT_EQ(rows.status, 200) << rows.body;
    EXPECT_EQ(rows.body, "{\n    \"predictions\": [[2.5], [3.0], [4.5]\n    ]\n}");
    EXPECT_EQ(rows.header("content-type"), "application/json");
  }
  const RawHttpReply columns = Post(R"({"inputs": {"x": [[1.0], [2.0], [5.0]]}})");
  EXPECT_EQ(columns.status, 200);
  EXPECT_EQ(
      columns.body,
      "{\n    \"outputs\": [\n        [\n            2.5\n        ],\n        [\n            3.0\n"
      "        ],\n        [\n            4.5\n        ]\n    ]\n}");
  const RawHttpReply regressed =
      Post(R"({"signature_name": "regress_x_to_y", "examples": [{"x": 1.0}, {"x": 2.0}]})",
           "/v1/models/m:regress");
  EXPECT_EQ(regressed.status, 200) << regressed.body;
  EXPECT_EQ(regressed.body, "{\n    \"results\": [2.5, 3.0]\n}");

  const struct {
    const char *method, *path, *body;
    int status;
    const char* error;
  } bad[] = {
      {"POST", "/v1/models/n:predict", "{}", 404, "Servable not found for request: Latest(n)"},
      {"POST", "/v1/models/m/versions/4:predict", "{}", 404,
       "Servable not found for request: Specific(m, 4)"},
      {"POST", "/v1/models/m:predict", "", 400, "JSON Parse error: The document is empty"},
      {"POST", "/v1/models/m:predict", "{\"instances\": [1.0", 400, "JSON Parse error: "},
      {"POST", "/v1/models/m:predict", R"({"signature_name": "s", "instances": [1.0]})", 400,
       "Serving signature name: \\\"s\\\" not found in signature def"},
      {"POST", "/v1/models/m:explain", "{}", 400, "Malformed request: POST /v1/models/m:explain"},
      {"GET", "/v1/models/n", "", 404, "Could not find any versions of model n"},
      {"GET", "/v1/models/m/versions/9", "", 404, "Could not find version 9 of model m"},
      {"PUT", "/v1/models/m", "", 400, "Malformed request: PUT /v1/models/m"},
  };
  for (const auto& c : bad) {
    SCOPED_TRACE(absl::StrCat(c.method, " ", c.path, " ", c.body));
    const RawHttpReply reply = Rest(c.method, c.path, c.body);
    EXPECT_EQ(reply.status, c.status) << reply.body;
    EXPECT_TRUE(absl::StrContains(reply.body, c.error)) << reply.body;
    EXPECT_TRUE(absl::StartsWith(reply.body, "{\n    \"error\": \"")) << reply.body;
  }
  EXPECT_EQ(Rest("GET", "/nothing").status, 404);

  const RawHttpReply status = Rest("GET", "/v1/models/m");
  EXPECT_EQ(status.body,
            "{\n \"model_version_status\": [\n  {\n   \"version\": \"3\",\n   \"state\": "
            "\"AVAILABLE\",\n   \"status\": {\n    \"error_code\": \"OK\",\n    "
            "\"error_message\": \"\"\n   }\n  }\n ]\n}\n");
  const RawHttpReply metadata = Rest("GET", "/v1/models/m/metadata");
  EXPECT_EQ(metadata.status, 200);
  EXPECT_TRUE(absl::StrContains(metadata.body, "\"regress_x_to_y\"")) << metadata.body;
  const RawHttpReply models = Rest("GET", "/v1/models");
  EXPECT_TRUE(absl::StrContains(models.body, "{\"name\": \"m\"")) << models.body;
  EXPECT_TRUE(absl::StrContains(models.body, "\"AVAILABLE\"")) << models.body;
}

// Requests of both fronts, and a version that comes, and one that goes, meanwhile.
TEST_F(ModelServerTest, ASwapFailsNoRequest) {
  AddVersion("m", 1);
  Start(Options({"m"}));
  std::atomic<bool> stops{false};
  std::atomic<int64_t> failed{0}, of_new{0};
  std::vector<std::thread> clients;
  for (int i = 0; i < 2; ++i) {
    clients.emplace_back([&, over_rest = i == 1] {
      RawHttpClient client(server_->rest_port());
      while (!stops) {
        if (over_rest) {
          const RawHttpReply reply = client.Ask(HttpRequestText(
              "POST", "/v1/models/m:predict", R"({"inputs": {"x": [[1, 2]], "k": 2}})"));
          failed += reply.status == 200 ? 0 : 1;
          continue;
        }
        tensorflow::serving::PredictResponse response;
        failed += Predict(PredictOf("m"), &response).ok() ? 0 : 1;
        of_new += response.model_spec().version().value() == 2 ? 1 : 0;
      }
    });
  }
  AddVersion("m", 2);
  server_->versions()->Poll();
  EXPECT_TRUE(server_->versions()->WaitFor(
      "m",
      [](absl::Span<const VersionStatus> versions) {
        return versions.size() == 2 && versions[0].state == VersionState::kAvailable &&
               versions[1].state == VersionState::kEnded;
      },
      absl::Now() + absl::Seconds(60)));
  while (of_new == 0 && failed == 0) std::this_thread::yield();
  stops = true;
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(failed, 0);
}

TEST_F(ModelServerTest, OneBadModelOfSeveralIsInTheStatus) {
  AddVersion("good", 1);
  ASSERT_OK(FileSystem::Posix()->RecursivelyCreateDirectory(JoinPath(base_, "bad/1")));
  ASSERT_OK(WriteFileAtomically(FileSystem::Posix(), JoinPath(base_, "bad/1/saved_model.pb"),
                                "no message"));
  {
    const auto alone = ModelServer::Start(Options({"bad"}));
    EXPECT_FALSE(alone.ok());
    EXPECT_TRUE(
        absl::StartsWith(alone.status().message(), "1 model(s) did not become available: {bad: "))
        << alone.status();
  }
  {
    ModelServerOptions options = Options({"good", "bad"});
    options.require_all_models = true;
    EXPECT_FALSE(ModelServer::Start(std::move(options)).ok());
  }
  Start(Options({"good", "bad", "absent"}));
  tensorflow::serving::PredictResponse response;
  EXPECT_OK(Predict(PredictOf("good"), &response));
  EXPECT_STATUS(Predict(PredictOf("bad"), &response), absl::StatusCode::kNotFound,
                "Servable not found for request: Latest(bad)");
  const RawHttpReply status = Rest("GET", "/v1/models/bad");
  EXPECT_TRUE(absl::StrContains(status.body, "\"state\": \"END\"")) << status.body;
  EXPECT_FALSE(absl::StrContains(status.body, "\"error_code\": \"OK\"")) << status.body;
}

// Labels of a model that is not there, or of a version that is not, harm nobody at start.
TEST_F(ModelServerTest, LabelsAreSetAtStartWhereTheyCanBe) {
  AddVersion("good", 1);
  AddVersion("other", 1);
  ModelServerOptions options = Options({"good", "other", "absent"});
  options.models[0].labels = {{"stable", 1}};
  options.models[1].labels = {{"stable", 2}};
  options.models[2].labels = {{"stable", 1}};
  Start(std::move(options));
  tensorflow::serving::PredictResponse response;
  tensorflow::serving::PredictRequest request = PredictOf("good");
  request.mutable_model_spec()->set_version_label("stable");
  EXPECT_OK(Predict(request, &response));
  EXPECT_OK(Predict(PredictOf("other"), &response));
  request = PredictOf("other");
  request.mutable_model_spec()->set_version_label("stable");
  EXPECT_STATUS(Predict(request, &response), absl::StatusCode::kInvalidArgument,
                "Unrecognized servable version label: stable");
  // The status of a model says nothing of labels, over REST as over gRPC.
  for (const char* const label : {"stable", "best"}) {
    const RawHttpReply status = Rest("GET", absl::StrCat("/v1/models/good/labels/", label));
    EXPECT_EQ(status.status, 200) << status.body;
    EXPECT_EQ(status.body, Rest("GET", "/v1/models/good").body);
  }
}

// The time of logged requests is a part of a load's. The clock of loads stands still: this one has
// its time, though a tenth of it is none.
TEST_F(ModelServerTest, LoggedRequestsTakeNoLoadItsTime) {
  AddVersion("m", 1);
  ASSERT_OK(FileSystem::Posix()->RecursivelyCreateDirectory(base_));
  const std::string prefix = JoinPath(base_, "requests.log");
  tensorflow::serving::PredictionLog log;
  log.mutable_log_metadata()->mutable_model_spec()->set_name("m");
  *log.mutable_predict_log()->mutable_request() = PredictOf("m");
  ASSERT_OK_AND_ASSIGN(const auto writer,
                       RecordWriter::Open(FileSystem::Posix(), absl::StrCat(prefix, "-00000001")));
  ASSERT_OK(writer->Write(log.SerializeAsString()));
  ASSERT_OK(writer->Close());
  FakeClock clock(absl::Now());
  for (const absl::Duration load_time : {absl::Hours(1), absl::Nanoseconds(1)}) {
    HostedModelsOptions options = {.warm_up_from_request_log = 10,
                                   .versions = Options({}).versions};
    options.versions.source.clock = &clock;
    options.versions.plan.max_load_time = load_time;
    ASSERT_OK_AND_ASSIGN(const auto hosted, HostedModels::Create(options));
    ModelSettings model = Options({"m"}).models[0];
    model.request_log.filename_prefix = prefix;
    ASSERT_OK(hosted->Load({model}, true, absl::InfiniteDuration()));
    EXPECT_EQ(absl::StrContains(hosted->metrics()->Page(), "millrace_replayed_requests_total{"),
              load_time == absl::Hours(1))
        << hosted->metrics()->Page();
  }
}

// It came before its models were tried: neither they nor their labels take its place.
TEST_F(ModelServerTest, TheListOfAClientDuringTheStartStays) {
  AddVersion("m", 1);
  AddVersion("n", 1);
  const ModelServerOptions options = Options({"m", "n"});
  ASSERT_OK_AND_ASSIGN(const auto hosted, HostedModels::Create({.versions = options.versions}));
  ModelSettings labelled = options.models[0];
  labelled.labels = {{"stable", 1}};
  ASSERT_OK(hosted->SetModels({labelled}));
  ASSERT_OK(hosted->versions()->Reload({options.models[1]}, absl::Now() + absl::Seconds(60)));
  EXPECT_OK(hosted->AwaitModels(true, absl::Seconds(60), true));
  ASSERT_EQ(hosted->versions()->models().size(), 1u);
  EXPECT_EQ(hosted->versions()->models()[0].name, "n");
  EXPECT_OK(hosted->versions()->Get("n").status());
}

// What a client sent comes back in messages, but not all of it.
TEST_F(ModelServerTest, LongMessagesOverRestAreCut) {
  AddVersion("m", 1);
  Start(Options({"m"}));
  const RawHttpReply reply = Post(absl::StrCat("{\"signature_name\": \"", std::string(100'000, 's'),
                                               "\", \"instances\": [1]}"));
  EXPECT_EQ(reply.status, 400);
  EXPECT_LT(reply.body.size(), 20'000u);
  EXPECT_TRUE(absl::StrContains(reply.body, "...TRUNCATED")) << reply.body;
}

TEST_F(ModelServerTest, ReloadsItsListOfModels) {
  AddVersion("a", 1);
  AddVersion("b", 1);
  AddVersion("b", 2);
  Start(Options({"a"}));
  tensorflow::serving::ReloadConfigRequest request;
  const auto add = [&](const std::string& name) {
    auto* const config = request.mutable_config()->mutable_model_config_list()->add_config();
    config->set_name(name);
    config->set_base_path(JoinPath(base_, name));
    config->set_model_platform("tensorflow");
    return config;
  };
  auto* const b = add("b");
  b->mutable_model_version_policy()->mutable_all();
  (*b->mutable_version_labels())["canary"] = 2;
  tensorflow::serving::ReloadConfigResponse response;
  ASSERT_OK(Call(kHandleReloadConfigRequestPath, request, &response));
  EXPECT_EQ(response.status().error_code(), 0);
  tensorflow::serving::PredictResponse predicted;
  tensorflow::serving::PredictRequest predict = PredictOf("b");
  predict.mutable_model_spec()->set_version_label("canary");
  ASSERT_OK(Predict(predict, &predicted));
  EXPECT_EQ(predicted.model_spec().version().value(), 2);
  EXPECT_EQ(predicted.model_spec().version_label(), "");
  // Not a list.
  EXPECT_STATUS(
      Call(kHandleReloadConfigRequestPath, tensorflow::serving::ReloadConfigRequest(), &response),
      absl::StatusCode::kInvalidArgument, "Only ModelConfigList is currently supported");
  EXPECT_OK(Predict(predict, &predicted));
  // Refused for a label, after a while in which it came.
  tensorflow::serving::ReloadConfigRequest to_a;
  auto* const a = to_a.mutable_config()->mutable_model_config_list()->add_config();
  a->set_name("a");
  a->set_base_path(JoinPath(base_, "a"));
  a->set_model_platform("tensorflow");
  (*a->mutable_version_labels())["canary"] = 99;
  EXPECT_STATUS(Call(kHandleReloadConfigRequestPath, to_a, &response),
                absl::StatusCode::kFailedPrecondition,
                "Request to assign label to version 99 of model a");
  EXPECT_OK(Predict(predict, &predicted));
  // Refused whole.
  add("b");
  EXPECT_STATUS(Call(kHandleReloadConfigRequestPath, request, &response),
                absl::StatusCode::kInvalidArgument,
                "Illegal to list model b multiple times in config list");
  EXPECT_OK(Predict(predict, &predicted));
}

// covers: serving: the access log names the client of a request over gRPC, too
TEST_F(ModelServerTest, TheAccessLogNamesClientsOfBothFronts) {
  AddVersion("m", 1);
  ModelServerOptions options = Options({"m"});
  options.monitoring.access_log_sampling = 1;
  Start(std::move(options));
  tensorflow::serving::PredictResponse response;
  inference::ModelInferResponse inferred;
  inference::ModelInferRequest infer;
  infer.set_model_name("m");
  ::testing::internal::CaptureStderr();
  EXPECT_OK(Predict(PredictOf("m"), &response));
  EXPECT_FALSE(Call("/inference.GRPCInferenceService/ModelInfer", infer, &inferred)
                   .ok());  // it has no inputs
  EXPECT_EQ(Post(R"({"inputs": {"x": [[1, 2]], "k": 2}})").status, 200);
  const std::string log = ::testing::internal::GetCapturedStderr();
  int lines = 0;
  for (const absl::string_view line : absl::StrSplit(log, '\n')) {
    if (!absl::StrContains(line, " client=")) continue;
    ++lines;
    EXPECT_TRUE(absl::StrContains(line, " client=\"127.0.0.1:")) << line;
  }
  EXPECT_EQ(lines, 3) << log;
}

// Its warm-up takes years.
TEST_F(ModelServerTest, AStartThatIsCancelledGivesAServerThatStops) {
  AddVersion("a", 1);
  const std::string version = Joined(JoinPath(base_, "a"), 1);
  ASSERT_OK(FileSystem::Posix()->RecursivelyCreateDirectory(JoinPath(version, "assets.extra")));
  tensorflow::serving::PredictionLog log;
  *log.mutable_predict_log()->mutable_request() = PredictOf("a");
  ASSERT_OK_AND_ASSIGN(const auto writer,
                       RecordWriter::Open(FileSystem::Posix(), JoinPath(version, kWarmUpFile)));
  ASSERT_OK(writer->Write(log.SerializeAsString()));
  ASSERT_OK(writer->Close());
  for (const bool listen_early : {true, false}) {
    SCOPED_TRACE(listen_early);
    CancellationManager cancellation;
    ModelServerOptions options = Options({"a"});
    options.listen_early = listen_early;
    options.warm_up_iterations = INT32_MAX;
    options.start_timeout = absl::InfiniteDuration();
    options.start_cancellation = &cancellation;
    StatusOr<std::unique_ptr<ModelServer>> server = absl::UnknownError("not yet");
    std::thread start([&] { server = ModelServer::Start(options); });
    cancellation.StartCancel();  // before, or while it waits
    start.join();
    ASSERT_OK(server);
    EXPECT_FALSE((*server)->is_ready());
    EXPECT_EQ((*server)->grpc_port() != 0, listen_early);
    (*server)->Stop(absl::ZeroDuration());
    server->reset();  // waits for the warm-up, which is told to end
  }
}

TEST(GrpcFrontTest, TextsAreCut) {
  EXPECT_EQ(CutForClients(absl::NotFoundError("short")).message(), "short");
  const Status cut = CutForClients(absl::NotFoundError(std::string(2000, 'x')));
  EXPECT_EQ(cut.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(cut.message(), std::string(1024, 'x') + "...TRUNCATED");
  // Not within a character, which no client could read.
  EXPECT_EQ(CutForClients(absl::NotFoundError(std::string(1023, 'x') + "\xc3\xa4")).message(),
            std::string(1023, 'x') + "...TRUNCATED");
}

TEST(ModelConfigTest, ReadsTheTextForm) {
  const auto models = ReadModelConfig(R"pb(
    model_config_list {
      config { name: "a" base_path: "/a" model_platform: "tensorflow" }
      config {
        name: "b"
        base_path: "/b"
        model_type: TENSORFLOW
        model_version_policy { specific { versions: [ 3, 1 ] } }
        version_labels { key: "stable" value: 3 }
      }
      config {
        name: "c"
        base_path: "/c"
        model_platform: "tensorflow"
        model_version_policy { latest { num_versions: 2 } }
      }
    })pb");
  ASSERT_OK(models);
  ASSERT_EQ(models->size(), 3u);
  EXPECT_EQ((*models)[0].name, "a");
  EXPECT_EQ((*models)[0].policy.num_latest, 1);
  EXPECT_EQ((*models)[1].policy.kind, VersionPolicy::Kind::kSpecific);
  EXPECT_EQ((*models)[1].policy.specific, (std::vector<int64_t>{3, 1}));
  EXPECT_EQ((*models)[1].labels.at("stable"), 3);
  EXPECT_EQ((*models)[2].policy.num_latest, 2);

  const auto logged = ReadModelConfig(R"pb(
    model_config_list {
      config {
        name: "a"
        base_path: "/a"
        model_platform: "tensorflow"
        logging_config {
          log_collector_config { type: "file" filename_prefix: "/logs/a" }
          sampling_config { sampling_rate: 0.25 }
        }
      }
    })pb");
  ASSERT_OK(logged);
  EXPECT_EQ(logged->front().request_log.sampling_rate, 0.25);
  EXPECT_EQ(logged->front().request_log.filename_prefix, "/logs/a");
  const struct {
    const char *config, *error;
  } bad_logs[] = {
      {"sampling_config { sampling_rate: 2 }", "sampling_rate must be 0 to 1, got 2"},
      {"sampling_config { sampling_rate: nan }", "sampling_rate must be 0 to 1, got nan"},
      {"sampling_config { sampling_rate: 1 }", "filename_prefix must be given"},
      {"log_collector_config { type: 'x' filename_prefix: '/l' } sampling_config { sampling_rate: "
       "1 }",
       "log_collector_config.type must be \"file\" or nothing, got \"x\""},
  };
  for (const auto& c : bad_logs) {
    EXPECT_STATUS(ReadModelConfig(absl::StrCat("model_config_list { config { name: 'a' base_path: "
                                               "'/a' model_platform: 'tensorflow' "
                                               "logging_config { ",
                                               c.config, " } } }")),
                  absl::StatusCode::kInvalidArgument, c.error);
  }

  EXPECT_STATUS(ReadModelConfig("improperly formatted file"), absl::StatusCode::kInvalidArgument,
                "Error parsing text-format tensorflow.serving.ModelServerConfig: 1:12: ");
  EXPECT_STATUS(ReadModelConfig("model_config_list { config { name: 'a' base_path: '/a' } }"),
                absl::StatusCode::kInvalidArgument,
                "Model a: model_platform must be \"tensorflow\", got \"\"");
  EXPECT_STATUS(ReadModelConfig("model_config_list { config { name: 'a' model_platform: "
                                "'tensorflow' model_type: TENSORFLOW } }"),
                absl::StatusCode::kInvalidArgument, "got both");
  EXPECT_STATUS(ReadModelConfig("custom_model_config {}"), absl::StatusCode::kUnimplemented, "");
}

}  // namespace
}  // namespace millrace
