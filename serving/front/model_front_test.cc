// SPDX-License-Identifier: Apache-2.0
#include "serving/front/model_front.h"

#include <stdlib.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/file_system.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "net/http/testing/raw_http_client.h"
#include "nlohmann/json.hpp"

namespace millrace {
namespace {

using Json = nlohmann::json;

struct FrontAnswer {
  int status = 0;
  Json json;
};

// A front whose node program never serves: what needs no node.
class ModelFrontTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/front_test_XXXXXX";  // a short path, for the socket
    ASSERT_NE(mkdtemp(name), nullptr);
    dir_ = name;
    model_ = absl::StrCat(dir_, "/saved");
    ASSERT_OK(FileSystem::Posix()->CreateDirectory(model_));
    ASSERT_OK(
        WriteFileAtomically(FileSystem::Posix(), absl::StrCat(model_, "/saved_model.pb"), "x"));
    StartFront();
  }
  void TearDown() override {
    front_.reset();
    FileSystem::Posix()->RecursivelyDelete(dir_).IgnoreError();
  }
  void StartFront() {
    front_.reset();
    ASSERT_OK_AND_ASSIGN(front_, ModelFront::Start(Options()));
  }
  ModelFrontOptions Options() const {
    return {.state_dir = absl::StrCat(dir_, "/state"),
            .addresses = {absl::StrCat("unix:", dir_, "/rest")},
            .model_server = "/bin/false"};
  }

  FrontAnswer Ask(const std::string& method, const std::string& path,
                  const std::string& body = "") {
    RawHttpClient client(absl::StrCat(dir_, "/rest"));
    const RawHttpReply reply = client.Ask(HttpRequestText(method, path, body));
    return {.status = reply.status, .json = Json::parse(reply.body, nullptr, false)};
  }
  void ExpectOk(const std::string& method, const std::string& path, const std::string& body = "") {
    const FrontAnswer answer = Ask(method, path, body);
    EXPECT_EQ(answer.status, 200) << method << " " << path << ": " << answer.json;
  }
  // Of a change: the form of the hosted service.
  void ExpectError(const std::string& method, const std::string& path, const std::string& body,
                   int status, const std::string& code, const std::string& message) {
    SCOPED_TRACE(absl::StrCat(method, " ", path, " ", body));
    const FrontAnswer answer = Ask(method, path, body);
    EXPECT_EQ(answer.status, status);
    ASSERT_TRUE(answer.json.is_object());
    const Json error = answer.json.value("error", Json::object());
    EXPECT_EQ(error.value("code", 0), status);
    EXPECT_EQ(error.value("status", ""), code);
    EXPECT_EQ(error.value("message", ""), message);
  }
  std::string VersionBody(const std::string& name) const {
    return absl::StrCat("{\"name\": \"", name, "\", \"deploymentUri\": \"", model_, "\"}");
  }

  std::string dir_, model_;
  std::unique_ptr<ModelFront> front_;
};

// covers: serving: probes of a front hear that it goes before it goes
TEST_F(ModelFrontTest, ProbesHearThatItIsNotReadyAnyMore) {
  EXPECT_EQ(Ask("GET", "/v2/health/live").json, Json::parse("{\"live\": true}"));
  FrontAnswer ready = Ask("GET", "/v2/health/ready");
  EXPECT_EQ(ready.status, 200);
  EXPECT_EQ(ready.json, Json::parse("{\"ready\": true}"));
  front_->SetNotReady();
  ready = Ask("GET", "/v2/health/ready");
  EXPECT_EQ(ready.status, 503);
  EXPECT_EQ(ready.json, Json::parse("{\"ready\": false}"));
  ExpectOk("GET", "/v2/health/live");
  ExpectOk("GET", "/v1/projects/p/models");
}

// covers: serving: the front's models and versions: made, listed, deleted, the first version is the
//   default, the default goes last; wrong requests get their text and code
TEST_F(ModelFrontTest, ModelsAndVersionsAreMadeListedAndDeleted) {
  const std::string models = "/v1/projects/p/models", census = models + "/census";
  EXPECT_EQ(Ask("GET", models).json, Json::parse("{\"models\": []}"));
  FrontAnswer made = Ask("POST", models, "{\"name\": \"census\", \"description\": \"income\"}");
  EXPECT_EQ(made.status, 200);
  EXPECT_EQ(made.json["name"], "projects/p/models/census");
  EXPECT_EQ(made.json["description"], "income");
  EXPECT_FALSE(made.json.contains("defaultVersion"));

  made = Ask("POST", census + "/versions", VersionBody("v1"));
  EXPECT_EQ(made.status, 200);
  EXPECT_EQ(made.json["name"], "projects/p/models/census/versions/v1");
  EXPECT_EQ(made.json["deploymentUri"], model_);
  EXPECT_EQ(made.json["isDefault"], true);
  EXPECT_EQ(made.json["state"], "READY");
  EXPECT_EQ(made.json["minNodes"], 0);
  made = Ask("POST", census + "/versions", VersionBody("v2"));
  EXPECT_FALSE(made.json.contains("isDefault"));

  EXPECT_EQ(Ask("GET", census).json["defaultVersion"]["name"],
            "projects/p/models/census/versions/v1");
  EXPECT_EQ(Ask("GET", census + "/versions").json["versions"].size(), 2u);
  ExpectOk("POST", census + "/versions/v2:setDefault");
  EXPECT_EQ(Ask("GET", census + "/versions/v2").json["isDefault"], true);
  ExpectError("DELETE", census + "/versions/v2", "", 400, "FAILED_PRECONDITION",
              "Model 'census' of project 'p': version 'v2' must not be the default to be deleted "
              "while there are others, got the default of 2; set another default first");
  ExpectError("DELETE", census, "", 400, "FAILED_PRECONDITION",
              "Model 'census' of project 'p': it must have no versions to be deleted, got 2; "
              "delete them first");
  ExpectOk("DELETE", census + "/versions/v1");
  ExpectOk("DELETE", census + "/versions/v2");
  ExpectOk("DELETE", census);
  ExpectError("GET", census, "", 404, "NOT_FOUND",
              "Model 'census' of project 'p': it must exist, got no such model");
}

TEST_F(ModelFrontTest, PathsWithoutAProjectAreTheDefaultProject) {
  ExpectOk("POST", "/v1/models", "{\"name\": \"m\"}");
  ExpectOk("GET", "/v1/projects/default/models/m");
  EXPECT_EQ(Ask("GET", "/v1/projects/other/models").json["models"].size(), 0u);
}

TEST_F(ModelFrontTest, WrongRequestsAreRefused) {
  ExpectOk("POST", "/v1/models", "{\"name\": \"m\"}");
  ExpectOk("POST", "/v1/models/m/versions", VersionBody("v1"));
  ExpectError("POST", "/v1/models", "{\"name\": \"m\"}", 409, "ALREADY_EXISTS",
              "Model 'm' of project 'default': its name must be new, got that of another model");
  ExpectError("POST", "/v1/models/m/versions", VersionBody("v1"), 409, "ALREADY_EXISTS",
              "Model 'm' of project 'default': version 'v1' must be new, got the name of another "
              "one");
  ExpectError("POST", "/v1/models", "{", 400, "INVALID_ARGUMENT",
              "Model: it must be a JSON object, got '{'");
  ExpectError("POST", "/v1/models", "{\"name\": \"1m\"}", 400, "INVALID_ARGUMENT",
              "Model: its name must be at most 128 letters, digits and underscores, a letter "
              "first, got '1m'");
  ExpectError("POST", "/v1/models/nil/versions", VersionBody("v1"), 404, "NOT_FOUND",
              "Model 'nil' of project 'default': it must exist, got no such model");
  ExpectError("POST", "/v1/models/m/versions",
              absl::StrCat("{\"name\": \"v2\", \"deploymentUri\": \"", dir_, "\"}"), 400,
              "INVALID_ARGUMENT",
              absl::StrCat("Version: deploymentUri must have a saved_model.pb, got '", dir_,
                           "' without one"));
  ExpectError("POST", "/v1/models/m/versions",
              "{\"name\": \"v2\", \"deploymentUri\": \"gs://bucket\"}", 400, "INVALID_ARGUMENT",
              "Version: deploymentUri must be an absolute directory, got 'gs://bucket'");
  ExpectError("POST", "/v1/models/m/versions",
              "{\"name\": \"v2\", \"minNodes\": 3, \"maxNodes\": 2}", 400, "INVALID_ARGUMENT",
              "Version: maxNodes must be >= minNodes, got 2 and 3");
  ExpectError("POST", "/v1/models/m/versions", "{\"name\": \"v2\", \"maxNodes\": 65}", 400,
              "INVALID_ARGUMENT", "Version: maxNodes must be an integer of 1 to 64, got 65");
  ExpectError("POST", "/v1/models/m/versions/nil:setDefault", "", 404, "NOT_FOUND",
              "Model 'm' of project 'default': version 'nil' must exist, got no such version");
  ExpectError("PUT", "/v1/models/m", "", 400, "INVALID_ARGUMENT",
              "Malformed request: PUT /v1/models/m");
  ExpectError("GET", "/", "", 400, "INVALID_ARGUMENT", "Malformed request: GET /");
  const FrontAnswer unknown = Ask("POST", "/v1/models", "{\"nam\": \"m\"}");
  EXPECT_EQ(unknown.status, 400);
  EXPECT_TRUE(absl::StrContains(unknown.json.dump(), "did you mean 'name'?")) << unknown.json;
}

TEST_F(ModelFrontTest, PredictionsOfWhatIsNotThereHaveTheirFormOfErrors) {
  FrontAnswer answer = Ask("POST", "/v1/models/m:predict", "{}");
  EXPECT_EQ(answer.status, 404);
  EXPECT_EQ(answer.json["error"],
            "Model 'm' of project 'default': it must exist, got no such model");
  ExpectOk("POST", "/v1/models", "{\"name\": \"m\"}");
  answer = Ask("POST", "/v1/models/m:predict", "{}");
  EXPECT_EQ(answer.status, 400);
  EXPECT_EQ(answer.json["error"],
            "Model 'm' of project 'default': it must have a version, got none");
}

// covers: serving: where nodes fail to start, a request is refused with the reason, and the version
//   says so
TEST_F(ModelFrontTest, NodesThatDoNotStartRefuseWithTheirReason) {
  ExpectOk("POST", "/v1/models", "{\"name\": \"m\"}");
  ExpectOk("POST", "/v1/models/m/versions", VersionBody("v1"));
  const FrontAnswer answer = Ask("POST", "/v1/models/m:predict", "{}");
  EXPECT_EQ(answer.status, 503);
  const std::string error = answer.json.value("error", "");
  EXPECT_TRUE(absl::StrContains(
      error, "Version m/v1: its nodes must start, got 3 failures in a row; the last failure: node"))
      << error;
  EXPECT_TRUE(absl::StrContains(error, "ended with exit code 1 before it was ready")) << error;
  const Json version = Ask("GET", "/v1/models/m/versions/v1").json;
  EXPECT_EQ(version["state"], "FAILED");
  EXPECT_EQ(version["nodes"].size(), 0u);
}

TEST_F(ModelFrontTest, AnotherFrontFindsModelsAndNamesAreNotMixedUp) {
  ExpectOk("POST", "/v1/models", "{\"name\": \"m\"}");
  ExpectOk("POST", "/v1/models/m/versions", VersionBody("v1"));
  ExpectOk("POST", "/v1/models/m/versions", VersionBody("v2"));
  ExpectOk("POST", "/v1/models/m/versions/v2:setDefault");
  // Two at a time would tread on each other.
  EXPECT_EQ(ModelFront::Start(Options()).status().code(), absl::StatusCode::kUnavailable);
  StartFront();
  EXPECT_EQ(Ask("GET", "/v1/models/m").json["defaultVersion"]["name"],
            "projects/default/models/m/versions/v2");
  EXPECT_EQ(Ask("GET", "/v1/models/m/versions").json["versions"].size(), 2u);
}

TEST_F(ModelFrontTest, NodesThatWouldAnswerItNothingAreRefused) {
  for (const char* const flag : {"--token_file=/token", "--ssl_config_file=/ssl"}) {
    ModelFrontOptions options = Options();
    options.state_dir = absl::StrCat(dir_, "/other");
    options.node_flags = {flag};
    EXPECT_STATUS(ModelFront::Start(options).status(), absl::StatusCode::kInvalidArgument,
                  "Flags of nodes must be without --");
  }
}

TEST_F(ModelFrontTest, AFileThatIsNoCatalogIsNamed) {
  front_.reset();
  ASSERT_OK(WriteFileAtomically(FileSystem::Posix(), absl::StrCat(dir_, "/state/models.json"),
                                "{\"format\": 2}"));
  const Status status = ModelFront::Start(Options()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_TRUE(absl::StrContains(status.message(), "/state/models.json")) << status;
}

}  // namespace
}  // namespace millrace
