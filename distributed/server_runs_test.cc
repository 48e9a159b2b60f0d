// SPDX-License-Identifier: Apache-2.0
//
// Training runs on the servers of a cluster in this process, over loopback: whose the variables
// are, and how servers leave when a run is over.
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/file_system.h"
#include "core/notification.h"
#include "core/random_bits.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "distributed/master/grpc_master.h"
#include "distributed/master/master_interface.h"
#include "distributed/server.h"
#include "distributed/testing/loopback_cluster.h"
#include "distributed/testing/small_model.h"
#include "distributed/transport/grpc_control.h"
#include "distributed/transport/session_terms.h"
#include "distributed/transport/worker_control.h"
#include "gtest/gtest.h"
#include "net/rpc_channel.h"
#include "run/run_file.h"
#include "run/run_session.h"
#include "run/training_run.h"
#include "runtime/session.h"

// covers: clusters: a second job on a used parameter server initialises and never sees the first
//   one's variables; a chief that returns adopts its own run's; the state of a run that is over is
//   freed
// covers: clusters: of two chiefs of a run the older one's steps are refused, on every server
//   alike, and it cannot come back
// covers: clusters: a task that starts after the end of a run, or waits for it, learns of the end;
//   the server then leaves, by message or by reading the logdir, and stays for a chief that trains
//   further
// covers: clusters: sessions of dead remote clients end
// covers: article 2-8: `Join` until a signal, exit code 0; leaves by itself when the run has ended

namespace millrace {
namespace {

TrainingRun Chief(const std::string& name, const std::string& id, int64_t epoch = 1) {
  return {.name = name,
          .id = id,
          .is_chief = true,
          .chief = absl::StrCat("chief ", epoch),
          .epoch = epoch};
}

StatusOr<std::unique_ptr<Session>> NewRunSession(const std::string& target, const TrainingRun& run,
                                                 const SmallModel& model,
                                                 absl::Duration lease = absl::Seconds(60)) {
  MR_ASSIGN_OR_RETURN(
      auto session,
      NewSession(
          {.target = target, .creation_timeout = absl::Seconds(30), .run = run, .lease = lease}));
  MR_RETURN_IF_ERROR(session->Extend(model.root));
  return session;
}

// The client is in the process of its master, and in another one.
TEST(ServerRunTest, RunsAreKeptApartFencedAndEndedOverTheWire) {
  for (const bool remote : {false, true}) {
    LoopbackCluster cluster(/*num_ps=*/2, /*num_workers=*/2);
    const auto target = [&](int worker) {
      const Server& server = *cluster.server("worker", worker);
      return remote ? RemoteTarget(server) : server.target();
    };
    const SmallModel model =
        MakeSmallModel("/job:worker/task:0", {"/job:ps/task:0", "/job:ps/task:1"});
    const SmallModel model1 =
        MakeSmallModel("/job:worker/task:1", {"/job:ps/task:0", "/job:ps/task:1"});
    ASSERT_OK_AND_ASSIGN(const auto chief, NewRunSession(target(0), Chief("/a", "a1"), model));
    EXPECT_EQ(chief->run_session()->run_id(), "a1");
    ASSERT_OK(chief->Run({}, {}, {model.init}));
    ASSERT_OK(chief->Run(SmallModelBatch(model), {}, {model.train}));
    ASSERT_OK_AND_ASSIGN(const auto w, chief->Run({}, {model.w.value}));

    // A second job on the same servers.
    ASSERT_OK_AND_ASSIGN(const auto other, NewRunSession(target(0), Chief("/b", "b1"), model));
    EXPECT_STATUS(other->Run({}, {model.w.value}).status(), absl::StatusCode::kFailedPrecondition,
                  "w");
    ASSERT_OK(other->Run({}, {}, {model.init}));
    EXPECT_STATUS(other->run_session()->EndRun({}), absl::StatusCode::kOk, "");

    ASSERT_OK_AND_ASSIGN(const auto trainer, NewRunSession(target(1), {.name = "/a"}, model1));
    EXPECT_EQ(trainer->run_session()->run_id(), "a1");
    ASSERT_OK_AND_ASSIGN(const auto same_w, trainer->Run({}, {model1.w.value}));
    ExpectTensorEqual(same_w[0], w[0]);
    EXPECT_STATUS(trainer->run_session()->EndRun({}), absl::StatusCode::kFailedPrecondition,
                  "got another trainer's");

    // A newer chief: what the older one prepared is refused, too.
    ASSERT_OK_AND_ASSIGN(const auto prepared,
                         chief->Prepare({model.x, model.y}, {model.loss}, {model.train}));
    ASSERT_OK_AND_ASSIGN(const auto newer, NewRunSession(target(1), Chief("/a", "a1", 2), model1));
    const Status refused = chief->Run(SmallModelBatch(model), {}, {model.train}).status();
    EXPECT_TRUE(IsFenced(refused)) << refused;
    const auto batch = SmallModelBatch(model);
    const Status prepared_refused = prepared->Run({batch[0].value, batch[1].value}).status();
    EXPECT_TRUE(IsFenced(prepared_refused)) << prepared_refused;
    const Status again = NewRunSession(target(0), Chief("/a", "a1"), model).status();
    EXPECT_TRUE(IsFenced(again)) << again;
    ASSERT_OK(newer->Run(SmallModelBatch(model1), {}, {model1.train}));

    const RunEnd end = {.global_step = 2, .checkpoint = "/a/ckpt-2", .reason = "reached step 2"};
    ASSERT_OK(newer->run_session()->EndRun(end));
    const Status late = NewRunSession(target(1), {.name = "/a"}, model1).status();
    EXPECT_EQ(RunEndOf(late), end) << late;
  }
}

TEST(ServerRunTest, ATrainerHearsOfTheEndFromServersThatRestartedWhenOneStillKnows) {
  LoopbackCluster cluster(/*num_ps=*/2, /*num_workers=*/2);
  const SmallModel model = MakeSmallModel();
  {
    ASSERT_OK_AND_ASSIGN(const auto chief, NewRunSession(cluster.server("worker", 0)->target(),
                                                         Chief("/a", "a1"), model));
    ASSERT_OK(chief->run_session()->EndRun({.global_step = 3}));
  }
  cluster.Kill("ps", 1);
  cluster.Start("ps", 1);
  EXPECT_EQ(
      RunEndOf(
          NewRunSession(cluster.server("worker", 1)->target(), {.name = "/a"}, model).status()),
      (RunEnd{.global_step = 3}));
}

// A client that dies says nothing any more: here, one that never says it lives.
TEST(ServerRunTest, TheSessionOfARemoteClientThatDiedEndsOnAllTasks) {
  LoopbackCluster cluster;
  const SmallModel model = MakeSmallModel();
  // The shortest that a client which lives can keep on a busy machine.
  const absl::Duration lease = absl::Seconds(3);
  ASSERT_OK_AND_ASSIGN(const auto live,
                       NewRunSession(RemoteTarget(*cluster.server("worker", 0)), {}, model, lease));
  ASSERT_OK(live->Run({}, {}, {model.init}));
  const std::string address = absl::StrCat("127.0.0.1:", cluster.server("worker", 0)->port());
  const auto master = MakeGrpcMaster(RpcChannel::Make(address));
  tensorflow::CreateSessionRequest request;
  AddSessionTerms({.lease = lease}, &request);
  tensorflow::CreateSessionResponse dead;
  ASSERT_OK(master->CreateSession(request, absl::Seconds(30), 16, &dead));

  // All tasks know it by the handle of the attempt that opened it; to ask the ps for it is no sign
  // of life at its master.
  const auto ps = MakeGrpcControl(
      "/job:ps/replica:0/task:0",
      RpcChannel::Make(absl::StrCat("127.0.0.1:", cluster.server("ps", 0)->port())));
  const std::vector<std::string> handles = {dead.session_handle() + ".1"};
  const auto is_on_ps = [&] {
    CallOptions options;
    options.deadline = absl::Now() + absl::Seconds(10);
    std::vector<std::string> unknown;
    Status status;
    Notification answered;
    ps->RenewSessions(options, handles, &unknown, [&](const Status& answer) {
      status = answer;
      answered.Notify();
    });
    answered.Wait();
    EXPECT_OK(status);
    return unknown.empty();
  };
  EXPECT_TRUE(is_on_ps());
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  while (is_on_ps() && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(50));
  EXPECT_FALSE(is_on_ps());
  tensorflow::ListDevicesRequest devices;
  devices.set_session_handle(dead.session_handle());
  tensorflow::ListDevicesResponse listed;
  EXPECT_STATUS(master->ListDevices(devices, &listed), absl::StatusCode::kInvalidArgument,
                "is not found");
  // The older one has outlived its lease by now, and nobody has run a step in it meanwhile.
  EXPECT_OK(live->Run(SmallModelBatch(model), {}, {model.train}));
}

// --- Leaving when the run is over ----------------------------------------------------------------

class ExitWhenDoneTest : public ::testing::Test {
 protected:
  ExitWhenDoneTest() { EXPECT_OK(FileSystem::Posix()->RecursivelyCreateDirectory(logdir_)); }
  ~ExitWhenDoneTest() override {
    if (join_.joinable()) join_.join();
    FileSystem::Posix()->RecursivelyDelete(logdir_).IgnoreError();
  }
  void Join(const JoinOptions& options) {
    join_ = std::thread([this, options] {
      joined_ = cluster_.server("ps", 0)->Join(options);
      has_left_.Notify();
    });
  }
  std::string target(int worker = 0) { return cluster_.server("worker", worker)->target(); }

  const std::string logdir_ = absl::StrCat(::testing::TempDir(), "/exit_", RandomHexName());
  LoopbackCluster cluster_{1, 2};
  const SmallModel model_ = MakeSmallModel();
  Status joined_ = absl::UnknownError("not yet");
  Notification has_left_;
  std::thread join_;
};

TEST_F(ExitWhenDoneTest, WhoWaitsForTheRunStillHearsOfItsEndWhenItsSessionsHaveClosed) {
  Join({.exit_when_done = true});
  ASSERT_OK_AND_ASSIGN(auto chief, NewRunSession(target(), Chief("/a", "a1"), model_));
  ASSERT_OK(chief->run_session()->EndRun({.global_step = 1}));
  ASSERT_OK(chief->Close());
  EXPECT_TRUE(RunEndOf(NewRunSession(target(1), {.name = "/a"}, model_).status()).has_value());
  join_.join();
  EXPECT_OK(joined_);
}

TEST_F(ExitWhenDoneTest, ASessionThatStaysOpenIsToldAndDoesNotKeepTheServer) {
  Join({.exit_when_done = true, .grace = absl::Seconds(8)});
  ASSERT_OK_AND_ASSIGN(auto chief, NewRunSession(target(), Chief("/a", "a1"), model_));
  ASSERT_OK(chief->Run({}, {}, {model_.init}));
  ASSERT_OK_AND_ASSIGN(auto trainer, NewRunSession(target(1), {.name = "/a"}, model_));
  ASSERT_OK_AND_ASSIGN(auto slow, NewRunSession(target(1), {.name = "/a"}, model_));
  ASSERT_OK(slow->Run({}, {model_.w.value}));
  ASSERT_OK(chief->run_session()->EndRun({.global_step = 1}));
  ASSERT_OK(chief->Close());
  Status refused;
  while (refused.ok()) refused = trainer->Run({}, {model_.w.value}).status();
  EXPECT_TRUE(RunEndOf(refused).has_value()) << refused;
  // Who was between two steps hears it, too.
  refused = slow->Run({}, {model_.w.value}).status();
  EXPECT_TRUE(RunEndOf(refused).has_value()) << refused;
  join_.join();
  EXPECT_OK(joined_);
}

TEST_F(ExitWhenDoneTest, AServerThatCameUpAfterTheEndReadsItInTheLogdirAndTells) {
  FileSystem* const fs = FileSystem::Posix();
  ASSERT_OK(WriteRunFile(fs, logdir_, {.id = "a1", .name = "/a", .token = "t", .epoch = 1}));
  ASSERT_OK(
      WriteRunEnd(fs, logdir_, {.id = "a1", .token = "t", .global_step = 7, .reason = "done"}));
  Join({.exit_when_done = true,
        .logdir = logdir_,
        .grace = absl::Seconds(3),
        .stale_grace = absl::Seconds(1)});
  const Status late = NewRunSession(target(1), {.name = "/a"}, model_).status();
  const auto end = RunEndOf(late);
  ASSERT_TRUE(end.has_value()) << late;
  EXPECT_EQ(end->global_step, 7);
  join_.join();
  EXPECT_OK(joined_);
}

TEST_F(ExitWhenDoneTest, WithoutTheOptionAServerStays) {
  Join({.logdir = logdir_});
  ASSERT_OK_AND_ASSIGN(auto chief, NewRunSession(target(), Chief("/a", "a1"), model_));
  ASSERT_OK(chief->run_session()->EndRun({.global_step = 1}));
  ASSERT_OK(chief->Close());
  // Longer than a server asks.
  EXPECT_FALSE(has_left_.WaitFor(absl::Seconds(1)));
  cluster_.server("ps", 0)->Stop();
}

}  // namespace
}  // namespace millrace
