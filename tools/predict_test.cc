// SPDX-License-Identifier: Apache-2.0
//
// predict, as a process, against a model server in this one.

#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/time.h"
#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "net/security.h"
#include "saver/model_signature.h"
#include "serving/server/model_server.h"
#include "serving/testing/test_model.h"
#include "tools/instances.h"
#include "tools/remote_model.h"

// covers: serving: `predict` shows the token of its environment over gRPC and REST
// covers: serving: `predict` prints the same table over gRPC and REST, TCP and unix sockets; exit
//   codes tell mistakes from servers that are not there

namespace millrace {
namespace {

class PredictTest : public ServingTest {
 protected:
  // A socket's path has at most 107 characters: not in TempDir().
  PredictTest() : socket_(absl::StrCat("/tmp/mr_predict_", RandomHexName())) {}
  ~PredictTest() override {
    server_.reset();
    for (const char* suffix : {".grpc", ".rest"}) unlink((socket_ + suffix).c_str());
  }
  void SetUp() override {
    FileSystem* const files = FileSystem::Posix();
    ASSERT_OK(files->RecursivelyCreateDirectory(dir_));
    ASSERT_OK(ExportTestModel(JoinPath(dir_, "3")));
    ASSERT_OK(
        WriteFileAtomically(files, JoinPath(dir_, "x.json"), "[1, 2]\n\n{\"inputs\": [3, 4]}\n"));
    ASSERT_OK(WriteFileAtomically(files, JoinPath(dir_, "bare.json"), "[1, 2]\n[3, 4]\n"));
    ASSERT_OK(WriteFileAtomically(files, JoinPath(dir_, "bad.json"), "[1, 2]\n[3\n"));
    ASSERT_OK(WriteFileAtomically(files, JoinPath(dir_, "words.txt"), "it's\n\n"));
    ASSERT_OK(WriteFileAtomically(files, JoinPath(dir_, "blank.txt"), "\n\n"));
  }
  void Start(const std::string& grpc_address, const std::string& rest_address,
             const std::string& token = "") {
    ModelServerOptions options;
    options.models.push_back({.name = "m", .base_path = dir_});
    options.models[0].labels = {{"stable", 3}};
    options.grpc_address = grpc_address;
    options.rest_addresses = {rest_address};
    auto credentials = std::make_shared<Credentials>();
    credentials->token = token;
    options.credentials = std::move(credentials);
    options.versions.source.trust_new_versions = true;
    options.versions.poll_period = absl::ZeroDuration();
    options.start_timeout = absl::Seconds(60);
    StatusOr<std::unique_ptr<ModelServer>> server = ModelServer::Start(std::move(options));
    ASSERT_OK(server);
    server_ = *std::move(server);
  }
  std::string Grpc() const {
    return absl::StrCat("--server=127.0.0.1:", server_->grpc_port(), " ");
  }
  std::string Rest() const {
    return absl::StrCat("--rest --server=127.0.0.1:", server_->rest_port(), " ");
  }

  struct Ended {
    int code = 0;
    std::string text;  // stdout and stderr
  };
  // "$" is the test's directory.
  Ended Run(const std::string& arguments) const {
    const std::string command = absl::StrCat(
        "tools/predict ", absl::StrReplaceAll(arguments, {{"$", dir_}}), " 2>&1 < /dev/null");
    FILE* const pipe = popen(command.c_str(), "r");
    Ended ended;
    char buffer[4096];
    for (size_t n = 0; (n = fread(buffer, 1, sizeof(buffer), pipe)) > 0;) {
      ended.text.append(buffer, n);
    }
    ended.code = WEXITSTATUS(pclose(pipe));
    return ended;
  }
  void ExpectRun(const std::string& arguments, const std::string& text) const {
    const Ended ended = Run(arguments);
    EXPECT_EQ(ended.code, 0) << arguments;
    EXPECT_EQ(ended.text, text) << arguments;
  }

  const std::string socket_;
  std::unique_ptr<ModelServer> server_;
};

TEST_F(PredictTest, PrintsTheSameTableOverGrpcAndRest) {
  Start("127.0.0.1:0", "127.0.0.1:0");
  const std::string table =
      "OUTPUTS\n"
      "[-1.0, -2.0]\n"
      "[-3.0, -4.0]\n";
  const std::string asked = "--model m --signature regress_x --json_instances ";
  ExpectRun(absl::StrCat(Grpc(), asked, "$/x.json"), table);
  for (const std::string& at : {Grpc(), Rest()}) {
    ExpectRun(absl::StrCat(at, asked, "$/bare.json"), table);
    ExpectRun(absl::StrCat(at, asked, "$/bare.json --model_version 3"), table);
    ExpectRun(absl::StrCat(at, asked, "$/bare.json --label stable --format table"), table);
    ExpectRun(
        absl::StrCat(at, "--model m --signature classify_classes --text_instances $/words.txt"),
        "CLASSES\n[\"it's\"]\n['']\n");
    // An empty text is an Example without features.
    ExpectRun(absl::StrCat(at, "--model m --signature classify --text_instances $/blank.txt"),
              "CLASSES  SCORES\n['']     [1.0]\n['']     [1.0]\n");
  }
  const Ended json = Run(absl::StrCat(Grpc(), asked, "$/bare.json --format=json"));
  EXPECT_EQ(json.code, 0);
  EXPECT_TRUE(absl::StartsWith(json.text, "{\n  \"predictions\": [\n")) << json.text;
  const Ended reply = Run(absl::StrCat(Rest(), asked, "$/bare.json --format=json"));
  EXPECT_EQ(reply.code, 0);
  EXPECT_EQ(reply.text, "{\n    \"predictions\": [[-1.0, -2.0], [-3.0, -4.0]\n    ]\n}\n");
}

TEST_F(PredictTest, ShowsTheTokenOfItsEnvironment) {
  const std::string token = "a-token-of-some-length-01234";
  Start("127.0.0.1:0", "127.0.0.1:0", token);
  const std::string file = JoinPath(dir_, "token");
  ASSERT_OK(WriteFileAtomically(FileSystem::Posix(), file, token));
  std::filesystem::permissions(file, std::filesystem::perms::owner_read);
  const std::string asked = "--model m --signature regress_x --json_instances $/bare.json";
  for (const std::string& at : {Grpc(), Rest()}) {
    const Ended refused = Run(absl::StrCat(at, asked));
    EXPECT_NE(refused.code, 0);
    EXPECT_TRUE(absl::StrContains(refused.text, "callers must show the token")) << refused.text;
    setenv("MILLRACE_TOKEN_FILE", file.c_str(), 1);
    ExpectRun(absl::StrCat(at, asked), "OUTPUTS\n[-1.0, -2.0]\n[-3.0, -4.0]\n");
    unsetenv("MILLRACE_TOKEN_FILE");
  }
}

TEST_F(PredictTest, AsksUnixSockets) {
  const std::string grpc = absl::StrCat("unix:", socket_, ".grpc");
  const std::string rest = absl::StrCat("unix:", socket_, ".rest");
  Start(grpc, rest);
  const std::string asked = " --model m --signature regress_x --json_instances $/bare.json";
  const std::string table = "OUTPUTS\n[-1.0, -2.0]\n[-3.0, -4.0]\n";
  ExpectRun(absl::StrCat("--server ", grpc, asked), table);
  ExpectRun(absl::StrCat("--rest --server ", rest, asked), table);
}

TEST_F(PredictTest, MistakesAreExplained) {
  Start("127.0.0.1:0", "127.0.0.1:0");
  const std::string rows = " --json_instances $/bare.json";
  for (const std::string& at : {Grpc(), Rest()}) {
    const struct {
      std::string arguments;
      int code;
      std::string text;
    } cases[] = {
        {"--model m", 1, "one of --json_instances and --text_instances must be given, got none"},
        {"--model m --model_version 3 --label stable" + rows, 1,
         "at most one of --model_version and --label must be given"},
        {"--model m --model_version x" + rows, 1,
         at == Grpc() ? "--model_version must be a number >= 0, got 'x'; names are for a front"
                      : "Malformed request: GET /v1/models/m/versions/x/metadata"},
        {"--model m --model_version=-1" + rows, 1,
         "--model_version must be a number >= 0, got '-1'"},
        {"--model m --format csv" + rows, 1, "--format must be table or json, got 'csv'"},
        {"--model m --signature none" + rows, 1, "--signature must be one of 'classify', "},
        {"--model n" + rows, 1, "predict: NOT_FOUND: "},
        {"--model m --model_version 4" + rows, 1, "predict: NOT_FOUND: "},
        {"--model m --signature regress_x --json_instances $/none", 1, "none"},
        {"--model m --signature regress_x --json_instances $/bad.json", 1,
         "bad.json': line 2: must be a JSON value, got '[3'"},
        {"--model m --signature regress_x --timeout_seconds 0" + rows, 1, "--timeout_seconds"},
        {rows, 2, "--model"},
    };
    for (const auto& c : cases) {
      const Ended ended = Run(at + c.arguments);
      EXPECT_EQ(ended.code, c.code) << at << c.arguments << "\n" << ended.text;
      EXPECT_TRUE(absl::StrContains(ended.text, c.text)) << at << c.arguments << "\n" << ended.text;
    }
  }
  // Nobody is there, but somebody may come.
  const Ended away = Run("--rest --server unix:/nobody/is/here --model m" + rows);
  EXPECT_EQ(away.code, 128) << away.text;
  EXPECT_TRUE(absl::StrContains(away.text, "must be reachable")) << away.text;
}

TEST_F(PredictTest, RepliesAreTakenApart) {
  Start("127.0.0.1:0", "127.0.0.1:0");
  const RemoteModel model = {.address = absl::StrCat("127.0.0.1:", server_->rest_port()),
                             .name = "m"};
  ASSERT_OK_AND_ASSIGN(const auto signatures, RestSignatures(model));
  const SignatureInputs& outputs = signatures.at("regress_x").outputs();
  EXPECT_EQ(outputs.at("outputs").shape().ToString(), "[?,2]");
  ASSERT_OK_AND_ASSIGN(
      const Instances rows,
      PredictionsOfReply("{\"predictions\": [[Infinity, -Infinity], [0.5, 1]]}", outputs));
  EXPECT_EQ(rows.count, 2);
  EXPECT_EQ(rows.inputs.at("outputs").flat<float>()[0], std::numeric_limits<float>::infinity());
  EXPECT_EQ(rows.inputs.at("outputs").flat<float>()[1], -std::numeric_limits<float>::infinity());
  // Of text such words stay what they are.
  ASSERT_OK_AND_ASSIGN(const Instances words,
                       PredictionsOfReply(R"({"predictions": [["NaN \" NaN"]]})",
                                          signatures.at("classify_classes").outputs()));
  EXPECT_EQ(words.inputs.at("classes").flat<std::string>()[0], "NaN \" NaN");
  for (const char* reply : {"", "[]", "{}", R"({"predictions": 1})", R"({"outputs": [1]})"}) {
    EXPECT_STATUS(PredictionsOfReply(reply, outputs), absl::StatusCode::kInvalidArgument,
                  "must be JSON with a list of predictions")
        << reply;
  }
  EXPECT_STATUS(PredictionsOfReply(R"({"predictions": [[1, 2, 3]]})", outputs),
                absl::StatusCode::kInvalidArgument, "The predictions of the server's reply");
}

}  // namespace
}  // namespace millrace
