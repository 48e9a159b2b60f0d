// SPDX-License-Identifier: Apache-2.0
//
// The token of a server, over real sockets.
#include "serving/server/rest_token.h"

#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "net/http/testing/raw_http_client.h"
#include "net/security.h"
#include "serving/client/http_client.h"
#include "serving/client/model_client.h"
#include "serving/server/model_server.h"
#include "serving/server/testing/served_test_models.h"

// covers: serving: a server with a token asks for it on each port, probes and metrics among them,
//   gRPC and REST alike

namespace millrace {
namespace {

constexpr char kToken[] = "the-token-of-this-server-0123456";

class RestTokenTest : public ServedTestModels {
 protected:
  void SetUp() override {
    AddVersion("m", 3);
    ModelServerOptions options = Options({"m"});
    auto credentials = std::make_shared<Credentials>();
    credentials->token = kToken;
    options.credentials = std::move(credentials);
    options.monitoring.metrics_path = "/metrics";
    options.monitoring.address = "127.0.0.1:0";
    Start(std::move(options));
  }
  static std::string Bearer(absl::string_view token) {
    return absl::StrCat("Authorization: Bearer ", token, "\r\n");
  }
};

TEST_F(RestTokenTest, EachPathAsksForIt) {
  const struct {
    const char *method, *path, *body;
  } asked[] = {
      {"POST", "/v1/models/m:predict", R"({"inputs": {"x": [[1, 2]], "k": 2}})"},
      {"GET", "/v1/models/m", ""},
      {"GET", "/v1/models", ""},
      {"GET", "/v2/health/live", ""},
      {"GET", "/v2/health/ready", ""},
      {"GET", "/v2/models/m", ""},
      {"GET", "/metrics", ""},
      {"GET", "/millrace/status", ""},
  };
  for (const auto& c : asked) {
    SCOPED_TRACE(c.path);
    EXPECT_EQ(Rest(c.method, c.path, c.body, Bearer(kToken)).status, 200);
    const RawHttpReply none = Rest(c.method, c.path, c.body);
    EXPECT_EQ(none.status, 401);
    EXPECT_EQ(none.header("www-authenticate"), "Bearer realm=\"millrace\"");
    EXPECT_EQ(none.header("content-type"), "application/json");
    EXPECT_TRUE(
        absl::StrContains(none.body, "callers must show the token of this server, got none"))
        << none.body;
    const RawHttpReply other = Rest(c.method, c.path, c.body, Bearer("another-token"));
    EXPECT_EQ(other.status, 401);
    EXPECT_TRUE(absl::StrContains(other.header("www-authenticate"), "error=\"invalid_token\""));
    EXPECT_FALSE(absl::StrContains(other.body, kToken));
  }
  // Nobody learns what is not there.
  EXPECT_EQ(Rest("GET", "/nothing").status, 401);
  EXPECT_EQ(Rest("GET", "/nothing", "", Bearer(kToken)).status, 404);
}

TEST_F(RestTokenTest, ReadsTheHeaderAsHttpDoes) {
  const char* const path = "/v1/models/m";
  EXPECT_EQ(Rest("GET", path, "", absl::StrCat("authorization: bearer  ", kToken, " \r\n")).status,
            200);
  EXPECT_EQ(Rest("GET", path, "", absl::StrCat("Authorization: Basic ", kToken, "\r\n")).status,
            401);
  EXPECT_EQ(Rest("GET", path, "", absl::StrCat("Authorization: ", kToken, "\r\n")).status, 401);
  EXPECT_EQ(Rest("GET", path, "", "Authorization: Bearer \r\n").status, 401);
  EXPECT_EQ(Rest("GET", path, "", Bearer(absl::StrCat(kToken, "x"))).status, 401);
}

TEST_F(RestTokenTest, ThePortOfThePagesAsksToo) {
  RawHttpClient without(server_->monitoring_port());
  EXPECT_EQ(without.Ask(HttpRequestText("GET", "/metrics")).status, 401);
  RawHttpClient with(server_->monitoring_port());
  EXPECT_EQ(with.Ask(HttpRequestText("GET", "/metrics", "", Bearer(kToken))).status, 200);
}

TEST_F(RestTokenTest, ClientsShowItByBothFronts) {
  const std::string rest = absl::StrCat("127.0.0.1:", server_->rest_port());
  HttpAsk ask = {.target = "/v1/models/m", .deadline = absl::Now() + absl::Seconds(60)};
  ASSERT_OK_AND_ASSIGN(const HttpAnswer refused, HttpCall(rest, ask));
  EXPECT_EQ(refused.status, 401);
  ask.token = kToken;
  ASSERT_OK_AND_ASSIGN(const HttpAnswer answered, HttpCall(rest, ask));
  EXPECT_EQ(answered.status, 200);

  const std::string grpc = absl::StrCat("127.0.0.1:", server_->grpc_port());
  auto credentials = std::make_shared<Credentials>();
  credentials->token = kToken;
  ASSERT_OK_AND_ASSIGN(const auto member, ModelClient::Connect(grpc, {.credentials = credentials}));
  EXPECT_OK(member->GetModelStatus("m"));
  ASSERT_OK_AND_ASSIGN(
      const auto stranger,
      ModelClient::Connect(grpc, {.credentials = std::make_shared<Credentials>()}));
  EXPECT_STATUS(stranger->GetModelStatus("m").status(), absl::StatusCode::kUnauthenticated,
                "must show the token");
}

}  // namespace
}  // namespace millrace
