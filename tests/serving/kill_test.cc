// SPDX-License-Identifier: Apache-2.0
//
// The server killed, and asked to end, and its clients killed, in the middle of requests.

#include <signal.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/file_system.h"
#include "core/record.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "net/http/testing/raw_http_client.h"
#include "proto/serving/predict.pb.h"
#include "proto/serving/prediction_log.pb.h"
#include "serving/warm_up.h"
#include "tests/cluster/process.h"
#include "tests/serving/loop_request.h"
#include "tests/serving/served_models.h"
#include "tests/serving/served_process.h"
#include "tests/serving/served_test.h"
#include "tests/serving/steady_load.h"

// covers: serving: a server that was killed is started again on its ports, and clients that waited
//   get through
// covers: serving: at SIGTERM probes hear that a server is not ready, and it serves on for
//   --not_ready_seconds
// covers: serving: at SIGTERM a server is no longer ready, lets requests end that run, within
//   --drain_seconds, and its exit code is 0; so it is while its first models load
// covers: serving: requests of clients that were killed stop, and harm nobody else

namespace millrace {
namespace {

// Some tenths of a second, or seconds: long enough to be seen, and waited for by these tests.
constexpr int32_t kLongTurns = 300'000;

class KillTest : public ServedProcessTest {
 protected:
  void SetUp() override {
    ServedProcessTest::SetUp();
    ASSERT_OK(ExportLooping(Version(1)));
  }
  static bool AwaitRunning(const ServedProcess& server, int64_t requests) {
    return AwaitServing([&] {
      const auto running = server.NumRunning();
      return running.ok() && *running == requests;
    });
  }
};

TEST_F(KillTest, AKilledServerComesAgainOnItsPorts) {
  ASSERT_OK_AND_ASSIGN(auto server, ServedProcess::Start({.args = Args()}));
  const std::unique_ptr<ServedProcess> first = std::move(server);
  RestAsker rest(first->rest_port(), "m", RestAsker::Api::kRest);
  std::vector<std::unique_ptr<ServedProcess>> lives;
  for (int kill = 0; kill < 3; ++kill) {
    SCOPED_TRACE(absl::StrCat("kill ", kill));
    EXPECT_OK(rest.Ask(3));
    EXPECT_OK(first->AskGrpc("m", 3));
    const ServedProcess& killed = lives.empty() ? *first : *lives.back();
    // In the middle of a request.
    std::thread client([&] {
      tensorflow::serving::PredictResponse response;
      EXPECT_EQ(killed.Predict(LoopRequest("m", kEndlessTurns), &response).code(),
                absl::StatusCode::kUnavailable);
    });
    EXPECT_TRUE(AwaitRunning(killed, 1));
    EXPECT_OK(killed.process()->Signal(SIGKILL));
    const auto code = killed.process()->WaitForExit(kServingHang);
    client.join();
    ASSERT_OK(code);
    EXPECT_EQ(*code, 128 + SIGKILL);
    EXPECT_FALSE(rest.Ask(3).ok());
    ASSERT_OK_AND_ASSIGN(auto again, ServedProcess::Start({.args = Args(),
                                                           .grpc_port = first->grpc_port(),
                                                           .rest_port = first->rest_port()}));
    lives.push_back(std::move(again));
    // Clients of the old one, over the channel that they had.
    EXPECT_TRUE(AwaitServing([&] { return first->AskGrpc("m", 3).ok(); }));
    EXPECT_TRUE(AwaitServing([&] { return rest.Ask(3).ok(); }));
  }
}

TEST_F(KillTest, RequestsThatRunAtSigtermEnd) {
  ASSERT_OK_AND_ASSIGN(const auto server,
                       ServedProcess::Start({.args = Args({"--drain_seconds=600"})}));
  EXPECT_EQ(server->Rest("GET", "/v2/health/ready").status, 200);
  std::atomic<int> has_ended{0};
  std::thread grpc([&] {
    tensorflow::serving::PredictResponse response;
    EXPECT_OK(server->Predict(LoopRequest("m", kLongTurns), &response));
    const auto steps = response.outputs().find("steps");
    if (steps == response.outputs().end() || steps->second.int_val_size() != 1) {
      ADD_FAILURE() << response.ShortDebugString();
    } else {
      EXPECT_EQ(steps->second.int_val(0), kLongTurns);
    }
    ++has_ended;
  });
  std::thread rest([&] {
    const RawHttpReply reply =
        server->Rest("POST", "/v1/models/m:predict", LoopRestBody(kLongTurns));
    EXPECT_EQ(reply.status, 200) << reply.body;
    EXPECT_TRUE(absl::StrContains(reply.body, absl::StrCat("\"outputs\": ", kLongTurns)))
        << reply.body;
    ++has_ended;
  });
  // On a machine that is quick one may be over before it was seen.
  EXPECT_TRUE(AwaitServing([&] {
    const auto running = server->NumRunning();
    return has_ended > 0 || (running.ok() && *running == 2);
  }));
  EXPECT_OK(server->process()->Signal(SIGTERM));
  // 503, or nobody listens.
  EXPECT_TRUE(AwaitServing([&] { return server->Rest("GET", "/v2/health/ready").status != 200; }));
  grpc.join();
  rest.join();
  ASSERT_OK_AND_ASSIGN(const int code, server->process()->WaitForExit(kServingHang));
  EXPECT_EQ(code, 0) << server->process()->output();
}

TEST_F(KillTest, AtSigtermProbesHearItFirst) {
  ASSERT_OK_AND_ASSIGN(const auto server,
                       ServedProcess::Start({.args = Args({"--not_ready_seconds=600"})}));
  RestAsker rest(server->rest_port(), "m", RestAsker::Api::kRest);
  EXPECT_OK(rest.Ask(3));
  EXPECT_OK(server->process()->Signal(SIGTERM));
  ASSERT_OK(server->process()->WaitForLine("Is not ready any more", kServingHang).status());
  EXPECT_EQ(server->Rest("GET", "/v2/health/ready").status, 503);
  EXPECT_OK(rest.Ask(3));
  EXPECT_OK(server->AskGrpc("m", 3));

  ASSERT_OK_AND_ASSIGN(const auto shortly,
                       ServedProcess::Start({.args = Args({"--not_ready_seconds=1"})}));
  ASSERT_OK_AND_ASSIGN(const int code, shortly->Terminate());
  EXPECT_EQ(code, 0) << shortly->process()->output();
}

// The warm-up of the only version takes years.
TEST_F(KillTest, SigtermDuringTheFirstLoadsEndsTheServerInOrder) {
  ASSERT_OK(ExportScaling(Version(2), {.scale = 3}));
  ASSERT_OK(files()->RecursivelyCreateDirectory(JoinPath(Version(2), "assets.extra")));
  tensorflow::serving::PredictionLog log;
  *log.mutable_predict_log()->mutable_request() = ScalingRequest("m", 1);
  ASSERT_OK_AND_ASSIGN(const auto writer,
                       RecordWriter::Open(files(), JoinPath(Version(2), kWarmUpFile)));
  ASSERT_OK(writer->Write(log.SerializeAsString()));
  ASSERT_OK(writer->Close());
  ASSERT_OK_AND_ASSIGN(
      const auto server,
      ServedProcess::Start({.args = Args({"--listen_early=true", "--drain_seconds=600",
                                          "--num_request_iterations_for_warmup=2000000000"})}));
  EXPECT_EQ(server->Rest("GET", "/v2/health/ready").status, 503);
  EXPECT_OK(server->process()->Signal(SIGTERM));
  // Nothing runs that could use up the drain.
  ASSERT_OK_AND_ASSIGN(const int code, server->process()->WaitForExit(kServingHang));
  EXPECT_EQ(code, 0) << server->process()->output();
}

TEST_F(KillTest, ThePatienceOfADrainIsBounded) {
  ASSERT_OK_AND_ASSIGN(const auto server,
                       ServedProcess::Start({.args = Args({"--drain_seconds=1"})}));
  std::thread grpc([&] {
    tensorflow::serving::PredictResponse response;
    EXPECT_FALSE(server->Predict(LoopRequest("m", kEndlessTurns), &response).ok());
  });
  std::thread rest([&] {
    EXPECT_NE(server->Rest("POST", "/v1/models/m:predict", LoopRestBody(kEndlessTurns)).status,
              200);
  });
  EXPECT_TRUE(AwaitRunning(*server, 2));
  EXPECT_OK(server->process()->Signal(SIGTERM));
  const auto code = server->process()->WaitForExit(kServingHang);
  grpc.join();
  rest.join();
  ASSERT_OK(code);
  EXPECT_EQ(*code, 0) << server->process()->output();
}

// Clients of all fronts that ask on and on: until the signal none fails, after it each is answered
// rightly or hears that the server goes.
TEST_F(KillTest, SigtermUnderLoadAnswersRightlyOrNot) {
  ASSERT_OK_AND_ASSIGN(const auto server, ServedProcess::Start({.args = Args()}));
  std::atomic<bool> ends{false};
  const auto until_the_end = [&](SteadyLoad::Client client) -> SteadyLoad::Client {
    return [&, client = std::move(client)](int i) -> Status {
      const Status status = client(i);
      if (status.ok() || !ends) return status;
      PauseServing();
      const bool may_be = absl::IsUnavailable(status) || absl::IsCancelled(status) ||
                          absl::StrContains(status.message(), "got status 503");
      return may_be ? absl::OkStatus() : status;
    };
  };
  SteadyLoad load({until_the_end(GrpcClient(*server, 1)),
                   until_the_end(RestClient(*server, RestAsker::Api::kRest, 1)),
                   until_the_end(RestClient(*server, RestAsker::Api::kV2, 1))});
  EXPECT_TRUE(load.AwaitMore(20));
  ends = true;
  ASSERT_OK_AND_ASSIGN(const int code, server->Terminate());
  EXPECT_EQ(code, 0) << server->process()->output();
  EXPECT_OK(load.Stop());
}

TEST_F(KillTest, RequestsOfKilledClientsStop) {
  ASSERT_OK_AND_ASSIGN(const auto server, ServedProcess::Start({.args = Args()}));
  // Over REST first: a request of a kind that is not known runs where it can be stopped.
  for (int i = 0; i < 2; ++i) {
    RawHttpClient client(server->rest_port());
    ASSERT_TRUE(client.connected());
    ASSERT_TRUE(
        client.Send(HttpRequestText("POST", "/v1/models/m:predict", LoopRestBody(kEndlessTurns))));
    EXPECT_TRUE(AwaitRunning(*server, 1));
    client.Close();
    EXPECT_TRUE(AwaitRunning(*server, 0)) << "of a client that closed its connection";
  }
  // In the middle of a head, and of a body.
  const std::string whole = HttpRequestText("POST", "/v1/models/m:predict", ScalingRestBody(1));
  for (const size_t sent : {size_t{1}, whole.size() / 2, whole.size() - 1}) {
    RawHttpClient client(server->rest_port());
    EXPECT_TRUE(client.Send(absl::string_view(whole).substr(0, sent)));
  }
  for (int i = 0; i < 3; ++i) {
    ASSERT_OK_AND_ASSIGN(
        const auto client,
        Process::Start({.name = "long_client",
                        .program = "tests/serving/long_client",
                        .args = {absl::StrCat(server->grpc_port()), absl::StrCat(kEndlessTurns)}}));
    EXPECT_TRUE(AwaitRunning(*server, 1)) << client->output();
    EXPECT_OK(server->AskGrpc("m", 3));
    EXPECT_OK(client->Signal(SIGKILL));
    EXPECT_TRUE(AwaitRunning(*server, 0)) << "of a client that was killed";
  }
  EXPECT_OK(server->AskGrpc("m", 3));
  RestAsker rest(server->rest_port(), "m", RestAsker::Api::kRest);
  EXPECT_OK(rest.Ask(3));
  ASSERT_OK_AND_ASSIGN(const int code, server->Terminate());
  EXPECT_EQ(code, 0);
}

}  // namespace
}  // namespace millrace
