// SPDX-License-Identifier: Apache-2.0
//
// The front as a program, with real model servers: cold starts, a killed node, a killed front.
#include <signal.h>
#include <stdlib.h>

#include <atomic>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/file_system.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "layers/variable.h"
#include "net/http/testing/raw_http_client.h"
#include "nlohmann/json.hpp"
#include "ops/ops.h"
#include "runtime/session.h"
#include "saver/export_model.h"
#include "tests/cluster/process.h"

namespace millrace {
namespace {

using Json = nlohmann::json;

// For a front and its nodes to do what is waited for, on a busy machine.
constexpr absl::Duration kGuard = absl::Seconds(120);

// predictions = factor * instances.
Status ExportTimes(float factor, const std::string& directory) {
  const Scope root;
  const Output x = Placeholder(root.WithName("x"), DT_FLOAT, {-1});
  const Variable times = MakeVariable(root.WithName("times"), Const(root, factor));
  const Output y = Mul(root.WithName("y"), x, times.value);
  MR_RETURN_IF_ERROR(root.status());
  MR_ASSIGN_OR_RETURN(const auto session, NewSession());
  MR_RETURN_IF_ERROR(session->Extend(root));
  MR_RETURN_IF_ERROR(session->Run({}, {}, {times.initializer}).status());
  return ExportModel(session.get(), root, {{.inputs = {{"x", x}}, .outputs = {{"y", y}}}},
                     directory);
}

class FrontProgramTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/front_test_XXXXXX";  // a short path, for the socket
    ASSERT_NE(mkdtemp(name), nullptr);
    dir_ = name;
    ASSERT_OK(ExportTimes(2, absl::StrCat(dir_, "/twice")));
    ASSERT_OK(ExportTimes(3, absl::StrCat(dir_, "/thrice")));
    ASSERT_NO_FATAL_FAILURE(StartFront());
    ExpectOk("POST", "/v1/models", "{\"name\": \"times\"}");
  }
  void TearDown() override {
    if (front_ != nullptr && !front_->exit_code().has_value()) {
      ASSERT_OK(front_->Signal(SIGTERM));
      ASSERT_OK_AND_ASSIGN(const int code, front_->WaitForExit(kGuard));
      EXPECT_EQ(code, 0) << front_->output();
      // Nodes have process groups of their own; nothing of the front's is left.
      EXPECT_FALSE(front_->left_processes());
    }
    FileSystem::Posix()->RecursivelyDelete(dir_).IgnoreError();
  }
  void StartFront() {
    ASSERT_OK_AND_ASSIGN(
        front_, Process::Start({.name = "front",
                                .program = "tools/front",
                                .args = {absl::StrCat("--state_dir=", dir_, "/state"),
                                         absl::StrCat("--address=unix:", Socket()),
                                         "--model_server=tools/model_server", "--hold_seconds=100",
                                         "--drain_seconds=100"}}));
    ASSERT_OK(front_->WaitForLine("Serves at", kGuard).status());
  }
  std::string Socket() const { return absl::StrCat(dir_, "/rest"); }

  RawHttpReply Ask(const std::string& method, const std::string& path,
                   const std::string& body = "") const {
    RawHttpClient client(Socket());
    return client.Ask(HttpRequestText(method, path, body));
  }
  void ExpectOk(const std::string& method, const std::string& path,
                const std::string& body = "") const {
    const RawHttpReply reply = Ask(method, path, body);
    EXPECT_EQ(reply.status, 200) << method << " " << path << ": " << reply.body;
  }
  void MakeVersion(const std::string& name, const std::string& model,
                   const std::string& more = "") const {
    ExpectOk("POST", "/v1/models/times/versions",
             absl::StrCat("{\"name\": \"", name, "\", \"deploymentUri\": \"", dir_, "/", model,
                          "\"", more, "}"));
  }
  RawHttpReply Predict(const std::string& version = "") const {
    return Ask(
        "POST",
        absl::StrCat("/v1/models/times", version.empty() ? "" : "/versions/", version, ":predict"),
        "{\"instances\": [1, 2.5]}");
  }
  static Json Predictions(const RawHttpReply& reply) {
    const Json json = Json::parse(reply.body, nullptr, false);
    return json.is_object() && json.contains("predictions") ? json["predictions"]
                                                            : Json(reply.body);
  }
  // Of the nodes of the version that are ready.
  std::set<int> ReadyNodes(const std::string& version) const {
    std::set<int> pids;
    const Json json = Json::parse(
        Ask("GET", absl::StrCat("/v1/models/times/versions/", version)).body, nullptr, false);
    if (!json.is_object() || !json.contains("nodes")) return pids;
    for (const Json& node : json["nodes"]) {
      if (node.value("state", "") == "ready") pids.insert(node.value("pid", 0));
    }
    return pids;
  }
  // Asks the front again and again.
  bool Await(const std::function<bool()>& condition) const {
    const absl::Time deadline = absl::Now() + kGuard;
    while (absl::Now() < deadline) {
      if (condition()) return true;
    }
    return false;
  }

  std::string dir_;
  std::unique_ptr<Process> front_;
};

// covers: article 0-40, 0-41: a model's versions are asked by name and by default through the front
TEST_F(FrontProgramTest, VersionsAreAskedByNameAndByDefault) {
  MakeVersion("v1", "twice");
  MakeVersion("v2", "thrice");
  EXPECT_EQ(Predictions(Predict()), Json({2.0, 5.0}));
  EXPECT_EQ(Predictions(Predict("v2")), Json({3.0, 7.5}));
  ExpectOk("POST", "/v1/models/times/versions/v2:setDefault");
  EXPECT_EQ(Predictions(Predict()), Json({3.0, 7.5}));
  // The node's own errors come through.
  const RawHttpReply wrong = Ask("POST", "/v1/models/times:predict", "{\"instances\": [\"a\"]}");
  EXPECT_EQ(wrong.status, 400) << wrong.body;
  EXPECT_TRUE(absl::StrContains(wrong.body, "\"error\"")) << wrong.body;
}

// covers: serving: requests that find no node of the front wait for one: none is dropped
TEST_F(FrontProgramTest, NoRequestIsDroppedOnAColdStart) {
  MakeVersion("v1", "twice", ", \"maxNodes\": 2, \"concurrencyTarget\": 4");
  EXPECT_EQ(ReadyNodes("v1").size(), 0u);
  constexpr size_t kClients = 20;
  std::vector<RawHttpReply> replies(kClients);
  std::vector<std::thread> clients;
  for (RawHttpReply& reply : replies) {
    clients.emplace_back([this, &reply] { reply = Predict(); });
  }
  for (std::thread& client : clients) client.join();
  for (const RawHttpReply& reply : replies) {
    EXPECT_EQ(reply.status, 200) << reply.body;
    EXPECT_EQ(Predictions(reply), Json({2.0, 5.0}));
  }
  EXPECT_LE(ReadyNodes("v1").size(), 2u);
}

// covers: serving: a version of the front without requests has no nodes after its time, and gets
//   one with the next request
TEST_F(FrontProgramTest, AnIdleVersionScalesToZeroAndBack) {
  MakeVersion("v1", "twice", ", \"idleSeconds\": 1");
  EXPECT_EQ(Predictions(Predict()), Json({2.0, 5.0}));
  EXPECT_TRUE(Await([this] { return ReadyNodes("v1").empty(); })) << front_->output();
  EXPECT_EQ(Predictions(Predict()), Json({2.0, 5.0}));
}

// covers: serving: kill -9 of a node under load fails only what it was running, with a reason; the
//   requests after it are answered by its successor
TEST_F(FrontProgramTest, AKilledNodeFailsOnlyWhatItWasRunning) {
  MakeVersion("v1", "twice", ", \"minNodes\": 1, \"maxNodes\": 1");
  ASSERT_TRUE(Await([this] { return ReadyNodes("v1").size() == 1; })) << front_->output();
  const int killed = *ReadyNodes("v1").begin();
  std::atomic<bool> stop{false};
  std::atomic<int> num_good{0};
  std::vector<std::thread> clients;
  std::vector<std::vector<RawHttpReply>> failed(4);
  for (std::vector<RawHttpReply>& bad : failed) {
    clients.emplace_back([&] {
      while (!stop) {
        const RawHttpReply reply = Predict();
        if (reply.status == 200 && Predictions(reply) == Json({2.0, 5.0})) {
          ++num_good;
        } else {
          bad.push_back(reply);
        }
      }
    });
  }
  // The front's state is asked for between two looks, which gives the clients their turn.
  EXPECT_TRUE(Await([&] { return ReadyNodes("v1").size() == 1 && num_good >= 20; }))
      << front_->output();
  EXPECT_EQ(kill(killed, SIGKILL), 0);
  EXPECT_TRUE(Await([&] {
    const std::set<int> ready = ReadyNodes("v1");
    return ready.size() == 1 && ready.count(killed) == 0;
  })) << front_->output();
  const int before = num_good;
  EXPECT_TRUE(Await([&] { return ReadyNodes("v1").size() == 1 && num_good >= before + 20; }))
      << front_->output();
  stop = true;
  for (std::thread& client : clients) client.join();
  for (const std::vector<RawHttpReply>& bad : failed) {
    for (const RawHttpReply& reply : bad) {
      EXPECT_EQ(reply.status, 502) << reply.body;
      EXPECT_TRUE(absl::StrContains(reply.body, "it was not sent again")) << reply.body;
    }
  }
  // The successor fails nothing.
  EXPECT_EQ(Predictions(Predict()), Json({2.0, 5.0}));
}

// covers: serving: kill -9 of the front loses no model and no default version, and leaves no node
TEST_F(FrontProgramTest, AKilledFrontFindsItsModelsAgain) {
  MakeVersion("v1", "twice");
  MakeVersion("v2", "thrice");
  ExpectOk("POST", "/v1/models/times/versions/v2:setDefault");
  EXPECT_EQ(Predictions(Predict()), Json({3.0, 7.5}));
  const std::set<int> nodes = ReadyNodes("v2");
  ASSERT_EQ(nodes.size(), 1u);
  ASSERT_OK(front_->Signal(SIGKILL));
  ASSERT_OK_AND_ASSIGN(const int code, front_->WaitForExit(kGuard));
  EXPECT_EQ(code, 128 + SIGKILL);
  ASSERT_NO_FATAL_FAILURE(StartFront());
  EXPECT_EQ(Predictions(Predict()), Json({3.0, 7.5}));
  EXPECT_EQ(Predictions(Predict("v1")), Json({2.0, 5.0}));
  EXPECT_EQ(ReadyNodes("v2").count(*nodes.begin()), 0u);
}

}  // namespace
}  // namespace millrace
