// SPDX-License-Identifier: Apache-2.0
//
// What probes and clients of other protocols say to a model server, over real sockets.

#include <grpcpp/support/byte_buffer.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/cancellation.h"
#include "core/file_system.h"
#include "core/mutex.h"
#include "core/notification.h"
#include "core/random_bits.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "net/duplex_call.h"
#include "net/http/testing/raw_http_client.h"
#include "net/rpc_channel.h"
#include "net/security.h"
#include "net/tensor_coding.h"
#include "proto/health/health.pb.h"
#include "proto/inference/grpc_service.pb.h"
#include "proto/reflection/v1.pb.h"
#include "serving/model_versions.h"
#include "serving/protocols/health.h"
#include "serving/protocols/readiness.h"
#include "serving/server/model_server.h"
#include "serving/testing/test_model.h"
#include "serving/version_state.h"

// covers: serving: a server answers grpc.health.v1 per model and whole; a watch hears of a model
//   that goes, and of the server's stop, and ends
// covers: serving: a server that probes see as not ready any more serves until its stop
// covers: serving: a server answers the Open Inference Protocol over gRPC and REST, typed, raw and
//   binary, with its codes
// covers: serving: a server answers reflection, also a client that has closed its side

namespace millrace {
namespace {

using ::grpc::health::v1::HealthCheckRequest;
using ::grpc::health::v1::HealthCheckResponse;

// Longer than any answer takes: what has not come by then hangs.
constexpr absl::Duration kHang = absl::Seconds(60);

TEST(HealthRuleTest, IsThatOfTheModelsVersions) {
  using State = VersionState;
  using Phase = Readiness::Phase;
  const auto of = [](bool is_listed, const std::vector<State>& states, Phase phase) {
    ModelStatus model;
    model.is_listed = is_listed;
    for (const State state : states) {
      model.versions.push_back({.version = 1, .state = state, .status = {}});
    }
    return HealthOfModel(phase, &model);
  };
  for (const Phase phase : {Phase::kStarting, Phase::kReady}) {
    EXPECT_EQ(of(true, {State::kAvailable}, phase), Health::kServing);
    EXPECT_EQ(of(true, {State::kLoading, State::kAvailable, State::kEnded}, phase),
              Health::kServing);
  }
  EXPECT_EQ(of(true, {State::kAvailable}, Phase::kStopping), Health::kNotServing);
  for (const State state : {State::kFound, State::kQueued, State::kLoading, State::kWarming,
                            State::kDraining, State::kUnloading, State::kFailed, State::kWaiting}) {
    for (const bool is_listed : {true, false}) {
      EXPECT_EQ(of(is_listed, {state}, Phase::kReady), Health::kNotServing);
    }
  }
  // Its base path is empty.
  EXPECT_EQ(of(true, {}, Phase::kReady), Health::kNotServing);
  EXPECT_EQ(of(true, {State::kEnded}, Phase::kReady), Health::kNotServing);
  EXPECT_EQ(of(false, {State::kEnded}, Phase::kReady), Health::kServiceUnknown);
  EXPECT_EQ(HealthOfModel(Phase::kReady, nullptr), Health::kServiceUnknown);
  EXPECT_EQ(HealthOfServer(Phase::kStarting), Health::kNotServing);
  EXPECT_EQ(HealthOfServer(Phase::kReady), Health::kServing);
  EXPECT_EQ(HealthOfServer(Phase::kStopping), Health::kNotServing);
}

TEST(ReadinessTest, NothingComesBackFromStopping) {
  Readiness readiness;
  EXPECT_FALSE(readiness.is_ready());
  readiness.SetReady();
  EXPECT_TRUE(readiness.is_ready());
  readiness.SetStopping();
  readiness.SetReady();
  EXPECT_EQ(readiness.phase(), Readiness::Phase::kStopping);
  EXPECT_EQ(readiness.AwaitChange(0), readiness.changes());
}

// A watch, and what it heard. Shared with the call.
class HealthWatch {
 public:
  bool AwaitLast(HealthCheckResponse::ServingStatus status) {
    return Await([&] { return !heard_.empty() && heard_.back() == status; });
  }
  bool AwaitEnd() {
    return Await([&] { return has_ended_; });
  }
  void Heard(HealthCheckResponse::ServingStatus status) {
    MutexLock lock(&mu_);
    heard_.push_back(status);
    changed_.SignalAll();
  }
  void Ended(const Status& status) {
    MutexLock lock(&mu_);
    has_ended_ = true;
    status_ = status;
    changed_.SignalAll();
  }
  Status status() {
    MutexLock lock(&mu_);
    return status_;
  }
  HealthCheckResponse::ServingStatus last() {
    MutexLock lock(&mu_);
    return heard_.empty() ? HealthCheckResponse::UNKNOWN : heard_.back();
  }

 private:
  template <typename Condition>
  bool Await(Condition condition) {
    const absl::Time hang = absl::Now() + kHang;
    MutexLock lock(&mu_);
    while (!condition()) {
      if (absl::Now() >= hang) return false;
      changed_.WaitWithTimeout(&mu_, absl::Seconds(1));
    }
    return true;
  }

  Mutex mu_;
  CondVar changed_;
  std::vector<HealthCheckResponse::ServingStatus> heard_;
  bool has_ended_ = false;
  Status status_;
};

// Writes requests one behind the other without waiting for answers, and then closes its side.
class Pipeliner : public DuplexCall::User {
 public:
  Pipeliner(std::shared_ptr<DuplexCall> call, std::deque<grpc::ByteBuffer> requests)
      : call_(std::move(call)), requests_(std::move(requests)) {}
  void WriteNext() {
    if (requests_.empty()) return call_->Close();
    const grpc::ByteBuffer next = std::move(requests_.front());
    requests_.pop_front();
    call_->Write(next);
  }
  void OnMessage(const grpc::ByteBuffer&) override { ++num_answers_; }
  void OnWritten() override { WriteNext(); }
  void OnEnded(const Status&, bool) override { has_ended_.Notify(); }

  std::atomic<int> num_answers_{0};
  Notification has_ended_;

 private:
  const std::shared_ptr<DuplexCall> call_;
  std::deque<grpc::ByteBuffer> requests_;  // of the thread that wrote last
};

// Writes one request, closes its side when told, keeps the first answer.
class Asker : public DuplexCall::User {
 public:
  void OnMessage(const grpc::ByteBuffer& message) override {
    if (has_answer_.HasBeenNotified()) return;
    decoded_ = DecodeMessage("answer", message, &answer_);
    has_answer_.Notify();
  }
  void OnWritten() override {}
  void OnEnded(const Status&, bool) override { has_ended_.Notify(); }

  Notification has_answer_, has_ended_;
  Status decoded_;
  grpc::reflection::v1::ServerReflectionResponse answer_;
};

class ProtocolsTest : public ::testing::Test {
 protected:
  ProtocolsTest() : base_(JoinPath(::testing::TempDir(), "protocols_" + RandomHexName())) {}
  ~ProtocolsTest() override {
    server_.reset();
    FileSystem::Posix()->RecursivelyDelete(base_).IgnoreError();
  }
  void SetUp() override {
    ASSERT_OK(FileSystem::Posix()->RecursivelyCreateDirectory(JoinPath(base_, "m")));
    ASSERT_OK(ExportTestModel(JoinPath(base_, "m/1")));
    ModelServerOptions options;
    options.models = {{.name = "m", .base_path = JoinPath(base_, "m")}};
    options.grpc_address = "127.0.0.1:0";
    options.rest_addresses = {"127.0.0.1:0"};
    options.credentials = std::make_shared<Credentials>();
    options.versions.source.trust_new_versions = true;
    options.versions.poll_period = absl::ZeroDuration();
    options.start_timeout = kHang;
    StatusOr<std::unique_ptr<ModelServer>> server = ModelServer::Start(std::move(options));
    ASSERT_OK(server);
    server_ = *std::move(server);
    channel_ = RpcChannel::Make(absl::StrCat("127.0.0.1:", server_->grpc_port()),
                                std::make_shared<Credentials>());
  }

  template <typename Request, typename Response>
  Status Call(const std::string& path, const Request& request, Response* response) {
    MR_ASSIGN_OR_RETURN(const grpc::ByteBuffer bytes, EncodeMessage(request));
    MR_ASSIGN_OR_RETURN(const grpc::ByteBuffer reply,
                        channel_->Call(path, {.deadline = absl::Now() + kHang}, bytes));
    response->Clear();
    return DecodeMessage(path, reply, response);
  }
  template <typename Request, typename Response>
  Status CallV2(const char* method, const Request& request, Response* response) {
    return Call(absl::StrCat("/inference.GRPCInferenceService/", method), request, response);
  }
  StatusOr<HealthCheckResponse::ServingStatus> Check(const std::string& service) {
    HealthCheckRequest request;
    request.set_service(service);
    HealthCheckResponse response;
    MR_RETURN_IF_ERROR(Call("/grpc.health.v1.Health/Check", request, &response));
    return response.status();
  }
  std::shared_ptr<HealthWatch> Watch(const std::string& service,
                                     CancellationManager* cancellation = nullptr) {
    auto watch = std::make_shared<HealthWatch>();
    HealthCheckRequest request;
    request.set_service(service);
    const StatusOr<grpc::ByteBuffer> bytes = EncodeMessage(request);
    EXPECT_OK(bytes);
    channel_->Stream(
        "/grpc.health.v1.Health/Watch", {.cancellation = cancellation}, *bytes,
        [watch](const grpc::ByteBuffer& message) -> StatusOr<bool> {
          HealthCheckResponse response;
          MR_RETURN_IF_ERROR(DecodeMessage("watch", message, &response));
          watch->Heard(response.status());
          return true;
        },
        [watch](const Status& status) { watch->Ended(status); });
    return watch;
  }
  RawHttpReply Rest(absl::string_view method, absl::string_view path, absl::string_view body = "",
                    absl::string_view headers = "") {
    RawHttpClient client(server_->rest_port());
    return client.Ask(HttpRequestText(method, path, body, headers));
  }

  const std::string base_;
  std::unique_ptr<ModelServer> server_;
  std::shared_ptr<RpcChannel> channel_;
};

TEST_F(ProtocolsTest, HealthIsOfTheServerItsServicesAndItsModels) {
  for (const char* service :
       {"", "m", "tensorflow.serving.PredictionService", "PredictionService", "ModelService",
        "tensorflow.serving.ModelService", "inference.GRPCInferenceService"}) {
    const auto status = Check(service);
    ASSERT_OK(status) << service;
    EXPECT_EQ(*status, HealthCheckResponse::SERVING) << service;
  }
  EXPECT_STATUS(Check("n").status(), absl::StatusCode::kNotFound, "got 'n'");
}

TEST_F(ProtocolsTest, AWatchHearsEachChangeAndEndsWithTheServer) {
  const auto of_model = Watch("m");
  const auto of_server = Watch("");
  const auto of_nobody = Watch("n");
  EXPECT_TRUE(of_model->AwaitLast(HealthCheckResponse::SERVING));
  EXPECT_TRUE(of_server->AwaitLast(HealthCheckResponse::SERVING));
  EXPECT_TRUE(of_nobody->AwaitLast(HealthCheckResponse::SERVICE_UNKNOWN));
  // It drains, unloads and is gone. What was in between may be put together.
  ASSERT_OK(server_->versions()->SetModels({}));
  EXPECT_TRUE(of_model->AwaitLast(HealthCheckResponse::SERVICE_UNKNOWN));
  EXPECT_EQ(of_server->last(), HealthCheckResponse::SERVING);
  // It comes back.
  ASSERT_OK(server_->versions()->SetModels({{.name = "m", .base_path = JoinPath(base_, "m")}}));
  EXPECT_TRUE(of_model->AwaitLast(HealthCheckResponse::SERVING));
  EXPECT_TRUE(server_->is_ready());
  server_->Stop(kHang);  // as long as no call holds it up, it does not take that long
  EXPECT_FALSE(server_->is_ready());
  for (const auto& watch : {of_model, of_server, of_nobody}) {
    ASSERT_TRUE(watch->AwaitEnd());
    EXPECT_FALSE(watch->status().ok());
  }
  EXPECT_EQ(of_model->last(), HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(of_server->last(), HealthCheckResponse::NOT_SERVING);
}

TEST_F(ProtocolsTest, AServerThatIsNotReadyAnyMoreServes) {
  const auto of_server = Watch("");
  EXPECT_TRUE(of_server->AwaitLast(HealthCheckResponse::SERVING));
  RawHttpClient kept(server_->rest_port());
  EXPECT_EQ(kept.Ask(HttpRequestText("GET", "/v2/health/ready")).status, 200);
  server_->SetNotReady();
  EXPECT_TRUE(of_server->AwaitLast(HealthCheckResponse::NOT_SERVING));
  for (const char* const service : {"", "m"}) {
    ASSERT_OK_AND_ASSIGN(const auto status, Check(service));
    EXPECT_EQ(status, HealthCheckResponse::NOT_SERVING) << service;
  }
  for (const char* const path : {"/v2/health/ready", "/v2/models/m/ready"}) {
    EXPECT_EQ(Rest("GET", path).status, 503) << path;
  }
  EXPECT_EQ(Rest("GET", "/v2/health/live").status, 200);
  // On connections that are there, and on new ones.
  inference::ModelMetadataRequest request;
  request.set_name("m");
  inference::ModelMetadataResponse response;
  EXPECT_OK(CallV2("ModelMetadata", request, &response));
  EXPECT_EQ(Rest("GET", "/v2/models/m").status, 200);
  const RawHttpReply reply = kept.Ask(HttpRequestText("GET", "/v2/models/m"));
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.header("connection"), "");
}

TEST_F(ProtocolsTest, AWatchEndsWithItsClient) {
  CancellationManager cancellation;
  const auto watch = Watch("m", &cancellation);
  EXPECT_TRUE(watch->AwaitLast(HealthCheckResponse::SERVING));
  cancellation.StartCancel();
  EXPECT_TRUE(watch->AwaitEnd());
}

TEST_F(ProtocolsTest, ReflectionAnswersAClientThatHasClosedItsSide) {
  for (const char* version : {"v1", "v1alpha"}) {
    grpc::reflection::v1::ServerReflectionRequest request;
    request.set_list_services("");
    const StatusOr<grpc::ByteBuffer> bytes = EncodeMessage(request);
    ASSERT_OK(bytes);
    const auto asker = std::make_shared<Asker>();
    const auto call = channel_->Duplex(
        absl::StrCat("/grpc.reflection.", version, ".ServerReflection/ServerReflectionInfo"));
    call->Start(asker);
    call->Write(*bytes);
    call->Close();
    ASSERT_TRUE(asker->has_ended_.WaitFor(kHang));
    ASSERT_TRUE(asker->has_answer_.HasBeenNotified());
    ASSERT_OK(asker->decoded_);
    bool has_inference = false;
    for (const auto& service : asker->answer_.list_services_response().service()) {
      has_inference |= service.name() == "inference.GRPCInferenceService";
    }
    EXPECT_TRUE(has_inference) << asker->answer_.DebugString();
  }
}

// Few: a client that has closed waits for DuplexCall::kFarewell at most.
TEST_F(ProtocolsTest, ReflectionAnswersAllThatAClientAskedBeforeItClosedItsSide) {
  constexpr int kRequests = 8;
  grpc::reflection::v1::ServerReflectionRequest request;
  request.set_file_containing_symbol("inference.GRPCInferenceService");
  std::deque<grpc::ByteBuffer> requests;
  for (int i = 0; i < kRequests; ++i) {
    const StatusOr<grpc::ByteBuffer> bytes = EncodeMessage(request);
    ASSERT_OK(bytes);
    requests.push_back(*bytes);
  }
  const std::shared_ptr<DuplexCall> call =
      channel_->Duplex("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo");
  const auto asker = std::make_shared<Pipeliner>(call, std::move(requests));
  call->Start(asker);
  asker->WriteNext();
  ASSERT_TRUE(asker->has_ended_.WaitFor(kHang));
  EXPECT_EQ(asker->num_answers_, kRequests);
}

inference::ModelInferRequest InferOf(bool raw) {
  inference::ModelInferRequest request;
  request.set_model_name("m");
  request.set_id("7");
  auto* const x = request.add_inputs();
  x->set_name("x");
  x->set_datatype("FP32");
  x->add_shape(1);
  x->add_shape(2);
  auto* const k = request.add_inputs();
  k->set_name("k");
  k->set_datatype("FP32");
  const float values[] = {1, 2, 3};
  if (raw) {
    request.add_raw_input_contents(reinterpret_cast<const char*>(values), 2 * sizeof(float));
    request.add_raw_input_contents(reinterpret_cast<const char*>(values + 2), sizeof(float));
    return request;
  }
  x->mutable_contents()->add_fp32_contents(values[0]);
  x->mutable_contents()->add_fp32_contents(values[1]);
  k->mutable_contents()->add_fp32_contents(values[2]);
  return request;
}

TEST_F(ProtocolsTest, InfersOverGrpc) {
  inference::ModelInferResponse response;
  ASSERT_OK(CallV2("ModelInfer", InferOf(/*raw=*/false), &response));
  EXPECT_EQ(response.model_name(), "m");
  EXPECT_EQ(response.model_version(), "1");
  EXPECT_EQ(response.id(), "7");
  ASSERT_EQ(response.outputs_size(), 3);  // product, sum, words, by name
  EXPECT_EQ(response.outputs(0).name(), "product");
  EXPECT_EQ(response.outputs(0).contents().fp32_contents(1), 6);
  EXPECT_EQ(response.outputs(2).contents().bytes_contents(0), "w");
  EXPECT_EQ(response.raw_output_contents_size(), 0);

  inference::ModelInferRequest request = InferOf(/*raw=*/true);
  request.add_outputs()->set_name("words");
  request.add_outputs()->set_name("sum");
  ASSERT_OK(CallV2("ModelInfer", request, &response));
  ASSERT_EQ(response.outputs_size(), 2);
  EXPECT_EQ(response.outputs(0).name(), "words");
  ASSERT_EQ(response.raw_output_contents_size(), 2);
  EXPECT_EQ(response.raw_output_contents(0), std::string("\1\0\0\0w", 5));
  float sum[2];
  ASSERT_EQ(response.raw_output_contents(1).size(), sizeof(sum));
  std::memcpy(sum, response.raw_output_contents(1).data(), sizeof(sum));
  EXPECT_EQ(sum[0], 4);
  EXPECT_EQ(sum[1], 5);

  request = InferOf(true);
  request.set_model_version("2");
  EXPECT_STATUS(CallV2("ModelInfer", request, &response), absl::StatusCode::kNotFound,
                "Servable not found for request: Specific(m, 2)");
  request.set_model_version("v2");
  EXPECT_STATUS(CallV2("ModelInfer", request, &response), absl::StatusCode::kInvalidArgument,
                "version must be a number");
  request = InferOf(true);
  (*request.mutable_parameters())["signature_name"].set_string_param("none");
  EXPECT_STATUS(CallV2("ModelInfer", request, &response), absl::StatusCode::kFailedPrecondition,
                "none");
  request = InferOf(true);
  for (int i = 0; i < 2; ++i) request.add_outputs()->set_name("sum");
  EXPECT_STATUS(CallV2("ModelInfer", request, &response), absl::StatusCode::kInvalidArgument,
                "each output must be asked for once");
  EXPECT_STATUS(CallV2("ModelConfig", request, &response), absl::StatusCode::kUnimplemented, "");
  // Metrics saw them; latencies are of the two that succeeded.
  const std::string page = server_->metrics()->Page();
  for (const char* line :
       {"request_latency_count{model_name=\"m\",API=\"Predict\",entrypoint=\"GRPC\"} 2\n",
        "request_count{model_name=\"m\",status=\"FAILED_PRECONDITION\"} 1\n"}) {
    EXPECT_TRUE(absl::StrContains(page, line)) << line << page;
  }
}

TEST_F(ProtocolsTest, TellsOfItselfOverGrpc) {
  inference::ServerLiveResponse live;
  ASSERT_OK(CallV2("ServerLive", inference::ServerLiveRequest(), &live));
  EXPECT_TRUE(live.live());
  inference::ServerReadyResponse ready;
  ASSERT_OK(CallV2("ServerReady", inference::ServerReadyRequest(), &ready));
  EXPECT_TRUE(ready.ready());
  inference::ServerMetadataResponse server;
  ASSERT_OK(CallV2("ServerMetadata", inference::ServerMetadataRequest(), &server));
  EXPECT_EQ(server.name(), "millrace");
  for (const char* name : {"m", "n"}) {
    inference::ModelReadyRequest request;
    request.set_name(name);
    inference::ModelReadyResponse model;
    ASSERT_OK(CallV2("ModelReady", request, &model));
    EXPECT_EQ(model.ready(), std::string(name) == "m");
  }
  inference::ModelMetadataRequest request;
  request.set_name("m");
  inference::ModelMetadataResponse metadata;
  ASSERT_OK(CallV2("ModelMetadata", request, &metadata));
  ASSERT_EQ(metadata.inputs_size(), 2);  // k and x
  EXPECT_EQ(metadata.inputs(1).name(), "x");
  EXPECT_EQ(metadata.inputs(1).datatype(), "FP32");
  ASSERT_EQ(metadata.inputs(1).shape_size(), 2);
  EXPECT_EQ(metadata.inputs(1).shape(0), -1);
  request.set_name("n");
  EXPECT_STATUS(CallV2("ModelMetadata", request, &metadata), absl::StatusCode::kNotFound, "n");
}

constexpr char kInputs[] = R"("inputs":[{"name":"x","shape":[1,2],"datatype":"FP32","data":[1,2]},)"
                           R"({"name":"k","shape":[],"datatype":"FP32","data":[3]}])";

TEST_F(ProtocolsTest, InfersOverRest) {
  for (const char* path : {"/v2/models/m/infer", "/v2/models/m/versions/1/infer"}) {
    const RawHttpReply reply = Rest("POST", path, absl::StrCat(R"({"id":"7",)", kInputs, "}"));
    EXPECT_EQ(reply.status, 200) << reply.body;
    EXPECT_EQ(reply.header("content-type"), "application/json");
    EXPECT_EQ(reply.body, R"({"model_name":"m","model_version":"1","id":"7","outputs":[)"
                          R"({"name":"product","datatype":"FP32","shape":[1,2],"data":[3.0,6.0]},)"
                          R"({"name":"sum","datatype":"FP32","shape":[1,2],"data":[4.0,5.0]},)"
                          R"({"name":"words","datatype":"BYTES","shape":[1],"data":["w"]}]})");
  }
  // Binary both ways.
  const std::string json =
      R"({"inputs":[{"name":"k","shape":[],"datatype":"FP32","data":[3]},)"
      R"({"name":"x","shape":[1,2],"datatype":"FP32","parameters":{"binary_data_size":8}}],)"
      R"("outputs":[{"name":"sum","parameters":{"binary_data":true}}]})";
  const float x[] = {1, 2};
  const RawHttpReply reply =
      Rest("POST", "/v2/models/m/infer",
           absl::StrCat(json, absl::string_view(reinterpret_cast<const char*>(x), sizeof(x))),
           absl::StrCat("Inference-Header-Content-Length: ", json.size(), "\r\n"));
  EXPECT_EQ(reply.status, 200) << reply.body;
  const std::string want =
      R"({"model_name":"m","model_version":"1","outputs":[{"name":"sum","datatype":"FP32",)"
      R"("shape":[1,2],"parameters":{"binary_data_size":8}}]})";
  EXPECT_EQ(reply.header("inference-header-content-length"), absl::StrCat(want.size()));
  const float sum[] = {4, 5};
  EXPECT_EQ(reply.body,
            absl::StrCat(want, absl::string_view(reinterpret_cast<const char*>(sum), sizeof(sum))));
}

TEST_F(ProtocolsTest, TellsOfItselfOverRest) {
  const struct {
    const char *method, *path, *body;
    int status;
    const char* answer;
  } cases[] = {
      {"GET", "/v2/health/live", "", 200, "{\"live\":true}"},
      {"GET", "/v2/health/ready", "", 200, "{\"ready\":true}"},
      {"GET", "/v2", "", 200, "{\"name\":\"millrace\",\"version\":"},
      {"GET", "/v2/", "", 200, "\"extensions\":[\"binary_tensor_data\""},
      {"GET", "/v2/models/m/ready", "", 200, "{\"name\":\"m\",\"ready\":true}"},
      {"GET", "/v2/models/m/versions/1/ready", "", 200, "{\"name\":\"m\",\"ready\":true}"},
      {"GET", "/v2/models/m/versions/2/ready", "", 404, "{\n    \"error\": \"Servable not found"},
      {"GET", "/v2/models/n/ready", "", 404, "{\n    \"error\": \"Servable not found"},
      {"GET", "/v2/models/%6d", "", 200,
       "{\"name\":\"m\",\"versions\":[\"1\"],\"platform\":\"tensorflow_savedmodel\",\"inputs\":["
       "{\"name\":\"k\",\"datatype\":\"FP32\",\"shape\":[]},"
       "{\"name\":\"x\",\"datatype\":\"FP32\",\"shape\":[-1,2]}],\"outputs\":["},
      {"GET", "/v2/models/n", "", 404, "Servable not found for request: Latest(n)"},
      {"GET", "/v2/models/m/versions/x", "", 400, "version must be a number"},
      {"GET", "/v2/models/m/config", "", 404, "Path must be one of"},
      {"POST", "/v2/repository/index", "{}", 404, "Path must be one of"},
      {"GET", "/v2/models/m/infer", "", 400, "Malformed request: GET /v2/models/m/infer"},
      {"POST", "/v2/health/live", "{}", 400, "Malformed request: POST"},
      {"POST", "/v2/models/n/infer", "{}", 404, "Latest(n)"},
      {"POST", "/v2/models/m/infer", "{}", 400, "'inputs' must be given"},
      {"POST", "/v2/models/m/infer", "{\"inputs\":[]}", 400, "\"error\": \""},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(absl::StrCat(c.method, " ", c.path));
    const RawHttpReply reply = Rest(c.method, c.path, c.body);
    EXPECT_EQ(reply.status, c.status) << reply.body;
    EXPECT_TRUE(absl::StrContains(reply.body, c.answer)) << reply.body;
  }
  const RawHttpReply cut =
      Rest("POST", "/v2/models/m/infer", "{}", "Inference-Header-Content-Length: 3\r\n");
  EXPECT_EQ(cut.status, 400);
  EXPECT_TRUE(absl::StrContains(cut.body, "Inference-Header-Content-Length must be")) << cut.body;
  // The paths of TensorFlow Serving are still there.
  EXPECT_EQ(Rest("GET", "/v1/models/m").status, 200);
  EXPECT_EQ(Rest("GET", "/v20").status, 404);
}

}  // namespace
}  // namespace millrace
