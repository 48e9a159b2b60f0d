// SPDX-License-Identifier: Apache-2.0
//
// The client against a model server in this process, over TCP and over a unix socket.
#include "serving/client/model_client.h"

#include <unistd.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "net/rpc_channel.h"
#include "net/security.h"
#include "proto/serving/method_paths.h"
#include "saver/model_signature.h"
#include "serving/client/call_retries.h"
#include "serving/server/model_server.h"
#include "serving/testing/test_model.h"

// covers: serving: the C++ client predicts over TCP and a unix socket, reads typed lists and raw
//   contents, and tells signatures, versions and the server's errors
// covers: serving: a client whose server is not there yet waits for it within its deadline; a bound
//   of retries ends that earlier

namespace millrace {
namespace {

class ModelClientTest : public ServingTest {
 protected:
  ModelClientTest()
      // Not in TempDir(): a socket's path has at most 107 characters.
      : socket_(absl::StrCat("/tmp/mr_client_", RandomHexName())) {}
  ~ModelClientTest() override {
    server_.reset();
    unlink(socket_.c_str());
  }
  // The fixture exports the model as a version of it.
  void SetUp() override {
    ASSERT_OK(FileSystem::Posix()->RecursivelyCreateDirectory(dir_));
    ASSERT_OK(ExportTestModel(JoinPath(dir_, "3")));
  }

  ModelServerOptions Options(const std::string& grpc_address) const {
    ModelServerOptions options;
    options.models.push_back({.name = "m", .base_path = dir_});
    options.models[0].labels = {{"stable", 3}};
    options.grpc_address = grpc_address;
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
  }
  static ModelClientOptions WithoutSecurity(int max_retries = 5) {
    return {.credentials = std::make_shared<Credentials>(), .max_retries = max_retries};
  }
  std::string TcpAddress() const { return absl::StrCat("127.0.0.1:", server_->grpc_port()); }
  std::string UnixAddress() const { return absl::StrCat("unix:", socket_); }

  static std::map<std::string, Tensor> Inputs() {
    return {{"x", Tensor::Of<float>({{1, 2}})}, {"k", Tensor::Scalar(2.0f)}};
  }
  static void ExpectAnswer(const StatusOr<ModelPrediction>& got) {
    ASSERT_OK(got);
    ASSERT_EQ(got->outputs.size(), 3u);
    ExpectTensorEqual(got->outputs.at("product"), Tensor::Of<float>({{2, 4}}));
    ExpectTensorEqual(got->outputs.at("sum"), Tensor::Of<float>({{3, 4}}));
    ExpectTensorEqual(got->outputs.at("words"), Tensor::Of({"w"}));
    EXPECT_EQ(got->version, 3);
    EXPECT_EQ(got->signature, "serving_default");
  }

  const std::string socket_;
  std::unique_ptr<ModelServer> server_;
};

TEST_F(ModelClientTest, PredictsOverTcp) {
  Start(Options("127.0.0.1:0"));
  ASSERT_OK_AND_ASSIGN(const auto client, ModelClient::Connect(TcpAddress(), WithoutSecurity()));
  ExpectAnswer(client->Predict("m", Inputs()));
  ExpectAnswer(client->Predict("m", Inputs(), {.which = {.version = 3}}));
  ExpectAnswer(client->Predict("m", Inputs(), {.which = {.label = "stable"}}));

  const StatusOr<ModelPrediction> sum = client->Predict("m", Inputs(), {.outputs = {"sum"}});
  ASSERT_OK(sum);
  ASSERT_EQ(sum->outputs.size(), 1u);
  ExpectTensorEqual(sum->outputs.at("sum"), Tensor::Of<float>({{3, 4}}));

  const StatusOr<ModelPrediction> regressed =
      client->Predict("m", {{"inputs", Tensor::Of<float>({{1, -2}})}}, {.signature = "regress_x"});
  ASSERT_OK(regressed);
  ExpectTensorEqual(regressed->outputs.at("outputs"), Tensor::Of<float>({{-1, 2}}));
  EXPECT_EQ(regressed->signature, "regress_x");
}

TEST_F(ModelClientTest, PredictsOverAUnixSocketWithRawReplies) {
  ModelServerOptions options = Options(UnixAddress());
  options.model.serialize_as_tensor_content = true;
  Start(std::move(options));
  ASSERT_OK_AND_ASSIGN(const auto client, ModelClient::Connect(UnixAddress(), WithoutSecurity()));
  EXPECT_EQ(client->address(), UnixAddress());
  ExpectAnswer(client->Predict("m", Inputs()));
}

TEST_F(ModelClientTest, TellsTheServersErrors) {
  Start(Options("127.0.0.1:0"));
  ASSERT_OK_AND_ASSIGN(const auto client, ModelClient::Connect(TcpAddress(), WithoutSecurity()));
  EXPECT_STATUS(client->Predict("n", Inputs()), absl::StatusCode::kNotFound,
                "Servable not found for request: Latest(n)");
  EXPECT_STATUS(client->Predict("m", Inputs(), {.which = {.version = 4}}),
                absl::StatusCode::kNotFound, "Servable not found for request: Specific(m, 4)");
  EXPECT_STATUS(client->Predict("m", Inputs(), {.which = {.label = "canary"}}),
                absl::StatusCode::kInvalidArgument, "Unrecognized servable version label: canary");
  EXPECT_STATUS(client->Predict("m", {}), absl::StatusCode::kInvalidArgument, "");
  EXPECT_STATUS(client->Predict("m", Inputs(), {.which = {.version = 3, .label = "stable"}}),
                absl::StatusCode::kInvalidArgument,
                "at most one of version and label must be given, got 3 and 'stable'");
  EXPECT_STATUS(client->Predict("m", {{"x", Tensor()}}), absl::StatusCode::kInvalidArgument,
                "input 'x' must have a value");
  for (const absl::Duration timeout : {absl::ZeroDuration(), absl::InfiniteDuration()}) {
    EXPECT_STATUS(client->Predict("m", Inputs(), {.timeout = timeout}),
                  absl::StatusCode::kInvalidArgument, "timeout must be positive and finite");
  }
}

TEST_F(ModelClientTest, TellsVersionsAndSignatures) {
  Start(Options("127.0.0.1:0"));
  ASSERT_OK_AND_ASSIGN(const auto client, ModelClient::Connect(TcpAddress(), WithoutSecurity()));
  for (const std::optional<int64_t> asked : {std::optional<int64_t>(), std::optional<int64_t>(3)}) {
    ASSERT_OK_AND_ASSIGN(const std::vector<ServedVersionStatus> versions,
                         client->GetModelStatus("m", asked));
    ASSERT_EQ(versions.size(), 1u);
    EXPECT_EQ(versions[0].version, 3);
    EXPECT_EQ(versions[0].state, ServedVersionState::kAvailable);
    EXPECT_OK(versions[0].error);
  }
  EXPECT_STATUS(client->GetModelStatus("n"), absl::StatusCode::kNotFound, "n");

  ASSERT_OK_AND_ASSIGN(const ServedModelMetadata metadata, client->GetMetadata("m"));
  EXPECT_EQ(metadata.version, 3);
  const ModelSignature& signature = metadata.signatures.at("serving_default");
  ASSERT_EQ(signature.inputs().size(), 2u);
  EXPECT_EQ(signature.inputs().at("x").dtype(), DT_FLOAT);
  EXPECT_EQ(signature.inputs().at("x").shape().ToString(), "[?,2]");
  EXPECT_EQ(signature.outputs().at("words").dtype(), DT_STRING);
  EXPECT_EQ(metadata.signatures.at("regress").method_name(), "tensorflow/serving/regress");
  EXPECT_STATUS(client->GetMetadata("n"), absl::StatusCode::kNotFound, "");
}

TEST_F(ModelClientTest, ABoundOfTriesEndsACallToNobody) {
  const std::string counted = absl::StrCat(UnixAddress(), kPredictPath);
  for (const int max_retries : {0, 2}) {
    ASSERT_OK_AND_ASSIGN(const auto client,
                         ModelClient::Connect(UnixAddress(), WithoutSecurity(max_retries)));
    const int64_t before = RpcCallsBegun()[counted];
    const Status got = client->Predict("m", Inputs()).status();
    // gRPC's own text, by which we know that the call did not run.
    EXPECT_TRUE(SurelyDidNotRun(got)) << got;
    EXPECT_EQ(RpcCallsBegun()[counted] - before, max_retries + 1);
  }
}

TEST_F(ModelClientTest, AServerThatStartsLaterIsFound) {
  ASSERT_OK_AND_ASSIGN(const auto client,
                       ModelClient::Connect(UnixAddress(), WithoutSecurity(1'000'000)));
  StatusOr<ModelPrediction> got = Internal("not asked");
  std::thread asks([&] { got = client->Predict("m", Inputs(), {.timeout = absl::Minutes(5)}); });
  Start(Options(UnixAddress()));
  asks.join();
  ExpectAnswer(got);
}

TEST(ModelClientConnect, RefusesWhatIsNoAddress) {
  for (const char* address :
       {"", "host", "host:", ":8500", "host:x", "host:0", "host:65536", "unix:"}) {
    EXPECT_STATUS(ModelClient::Connect(address), absl::StatusCode::kInvalidArgument,
                  absl::StrCat("address must be host:port or unix:/path, got '", address, "'"));
  }
  EXPECT_STATUS(ModelClient::Connect("a:1", {.timeout = absl::InfiniteDuration()}),
                absl::StatusCode::kInvalidArgument, "timeout must be positive and finite, got inf");
  EXPECT_STATUS(ModelClient::Connect("a:1", {.max_retries = -1}),
                absl::StatusCode::kInvalidArgument, "max_retries must be >= 0, got -1");
}

}  // namespace
}  // namespace millrace
