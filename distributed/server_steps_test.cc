// SPDX-License-Identifier: Apache-2.0
//
// Steps of a cluster in this process, over loopback: their calls, errors, limits and ends.
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "distributed/testing/loopback_cluster.h"
#include "distributed/testing/small_model.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "net/rpc_channel.h"
#include "nlohmann/json.hpp"
#include "ops/array/identity.h"
#include "ops/array/placeholder.h"
#include "proto/config.pb.h"
#include "proto/device_attributes.pb.h"
#include "runtime/session.h"
#include "runtime/step_stats.h"
#include "runtime/transfer_trace.h"

// covers: steps: a kernel that never answers holds up no step of a cluster beyond its time, and is
//   named, on a worker, a ps, by name and prepared
// covers: clusters: a trace of two tasks is in the master's time, each tensor leaves before it
//   arrives, and arrows join both ends
// covers: clusters: a training step costs no call

namespace millrace {
namespace {

TEST(ServerTest, TrainsOverProcessBordersWithoutACallForAStep) {
  LoopbackCluster cluster(/*num_ps=*/2);
  const SmallModel model =
      MakeSmallModel("/job:worker/task:0", {"/job:ps/task:0", "/job:ps/task:1"});
  const auto session = cluster.NewSession(model.root);
  ASSERT_NE(session, nullptr);
  ASSERT_OK(session->Run({}, {}, {model.init}));
  const std::vector<FetchName> fetches = {model.loss}, targets = {model.train};
  ASSERT_OK(session->Run(SmallModelBatch(model), fetches, targets));
  const auto before = RpcCallsBegun();
  constexpr int kSteps = 200;
  float loss = 1;
  for (int i = 0; i < kSteps; ++i) {
    ASSERT_OK_AND_ASSIGN(const auto out, session->Run(SmallModelBatch(model), fetches, targets));
    loss = out[0].scalar<float>();
  }
  EXPECT_LT(loss, 1e-6f);
  const std::map<std::string, int64_t> calls = CallsSince(before);
  int64_t total = 0;
  for (const auto& [method, count] : calls) total += count;
  EXPECT_EQ(calls.count("/tensorflow.grpc.WorkerService/RunGraph"), 0u);
  EXPECT_LE(total, 10) << "renewals: " << ::testing::PrintToString(calls);
  ASSERT_OK_AND_ASSIGN(const auto values, session->Run({}, {model.w.value, model.b.value}));
  ExpectTensorNear(values[0], Tensor::Scalar(3.0f), 0, 1e-2);
  ExpectTensorNear(values[1], Tensor::Scalar(1.0f), 0, 1e-2);
  ASSERT_OK(session->Close());
  EXPECT_STATUS(session->Run({}, {model.loss}), absl::StatusCode::kCancelled,
                "Session has been closed.");
}

TEST(ServerTest, ClientsOfAnotherProcessReachTheMasterOverTheNetwork) {
  LoopbackCluster cluster;
  const SmallModel model = MakeSmallModel();
  SessionOptions options;
  options.target = RemoteTarget(*cluster.server("worker", 0));
  options.creation_timeout = absl::Seconds(30);
  const auto before = RpcCallsBegun();
  ASSERT_OK_AND_ASSIGN(const auto session, NewSession(options));
  ASSERT_OK(session->Extend(model.root));
  ASSERT_OK(session->Run({}, {}, {model.init}));
  tensorflow::RunMetadata metadata;
  tensorflow::RunOptions traced;
  traced.set_trace_level(tensorflow::RunOptions::FULL_TRACE);
  const std::vector<Feed> feeds = SmallModelBatch(model);
  // Fetching an operation runs it; what was fed comes back.
  const std::vector<FetchName> fetches = {model.train, model.loss, model.x};
  ASSERT_OK_AND_ASSIGN(const auto out, session->Run(traced, feeds, fetches, {}, &metadata));
  ASSERT_EQ(out.size(), 2u);
  EXPECT_GT(out[0].scalar<float>(), 0);
  ExpectTensorEqual(out[1], feeds[0].value);
  EXPECT_EQ(metadata.step_stats().dev_stats_size(), 2);
  ASSERT_OK_AND_ASSIGN(const auto step, session->Prepare({{"y", "x"}, {"loss"}, {}}));
  ASSERT_OK_AND_ASSIGN(const auto loss, step->Run({feeds[1].value, feeds[0].value}));
  EXPECT_LT(loss[0].scalar<float>(), out[0].scalar<float>());
  ASSERT_OK_AND_ASSIGN(const auto devices, session->ListDevices());
  EXPECT_EQ(devices.size(), 2u);
  EXPECT_STATUS(session->Run({}, {"nothing"}), absl::StatusCode::kNotFound, "nothing");
  const auto calls = CallsSince(before);
  EXPECT_GE(calls.at("/tensorflow.grpc.MasterService/RunStep"), 2);
  EXPECT_EQ(calls.at("/tensorflow.grpc.MasterService/RunCallable"), 1);
  ASSERT_OK(session->Close());
}

// Both servers have one clock: what is taken for its offset is an error, which has its bound.
TEST(ServerTest, ATraceOfTwoTasksShowsEachTensorLeaveBeforeItArrives) {
  LoopbackCluster cluster;
  const SmallModel model = MakeSmallModel();
  const auto session = cluster.NewSession(model.root);
  ASSERT_NE(session, nullptr);
  ASSERT_OK(session->Run({}, {}, {model.init}));
  tensorflow::RunOptions traced;
  traced.set_trace_level(tensorflow::RunOptions::FULL_TRACE);
  const std::vector<FetchName> fetches = {model.train, model.loss};
  for (int step = 0; step < 3; ++step) {
    SCOPED_TRACE(step);
    tensorflow::RunMetadata metadata;
    ASSERT_OK(session->Run(traced, SmallModelBatch(model), fetches, {}, &metadata));
    struct Crossing {
      const tensorflow::NodeExecStats *send = nullptr, *recv = nullptr;
    };
    std::map<std::string, Crossing> crossings;
    int offsets = 0;
    for (const auto& device : metadata.step_stats().dev_stats()) {
      for (const auto& line : device.node_stats()) {
        const TransferParts parts = ParseTransferLabel(line.timeline_label());
        if (const auto side = TransferSideOf(line)) {
          const bool is_send = *side == TransferSide::kSender;
          EXPECT_EQ(is_send ? parts.from : parts.to, device.device()) << line.timeline_label();
          Crossing& crossing = crossings[line.timeline_label()];
          const auto*& end = is_send ? crossing.send : crossing.recv;
          EXPECT_EQ(end, nullptr) << line.timeline_label();
          end = &line;
        } else if (IsClockStats(line)) {
          ++offsets;
          EXPECT_TRUE(absl::StartsWith(device.device(), "/job:ps/")) << device.device();
          const std::optional<ClockOffset> offset = ClockOffsetOf(line);
          ASSERT_TRUE(offset.has_value()) << line.timeline_label();
          EXPECT_LE(std::abs(offset->ahead_ns), offset->bound_ns);
          EXPECT_LT(offset->bound_ns, absl::ToInt64Nanoseconds(absl::Seconds(30)));
        }
      }
    }
    EXPECT_EQ(offsets, 1);
    // At least both variables, and what they are changed by.
    EXPECT_GE(crossings.size(), 4u);
    const auto end_of = [](const tensorflow::NodeExecStats& line) {
      return line.all_start_nanos() + line.all_end_rel_nanos();
    };
    for (const auto& [label, crossing] : crossings) {
      ASSERT_NE(crossing.send, nullptr) << label;
      ASSERT_NE(crossing.recv, nullptr) << label;
      EXPECT_LE(end_of(*crossing.send), end_of(*crossing.recv)) << label;
    }
    const auto trace = nlohmann::json::parse(WriteChromeTrace(metadata.step_stats()));
    std::map<int64_t, int64_t> left, arrived;  // by arrow
    for (const auto& event : trace["traceEvents"]) {
      if (event.value("cat", "") != "Transfer" || event["ph"] == "X") continue;
      auto& times = event["ph"] == "s" ? left : arrived;
      EXPECT_TRUE(times.emplace(event["id"].get<int64_t>(), event["ts"].get<int64_t>()).second);
    }
    EXPECT_EQ(left.size(), crossings.size());
    ASSERT_EQ(arrived.size(), left.size());
    for (const auto& [id, at] : left) {
      ASSERT_EQ(arrived.count(id), 1u);
      EXPECT_LE(at, arrived.at(id));
    }
  }
  ASSERT_OK(session->Close());
}

TEST(ServerTest, TwoWorkersTrainOneModelAtTheSameTime) {
  LoopbackCluster cluster(/*num_ps=*/1, /*num_workers=*/2);
  const SmallModel model0 = MakeSmallModel("/job:worker/task:0");
  const SmallModel model1 = MakeSmallModel("/job:worker/task:1");
  const auto session0 = cluster.NewSession(model0.root, 0);
  const auto session1 = cluster.NewSession(model1.root, 1);
  ASSERT_NE(session0, nullptr);
  ASSERT_NE(session1, nullptr);
  ASSERT_OK(session0->Run({}, {}, {model0.init}));
  const auto train = [](Session* session, const SmallModel& model) {
    for (int i = 0; i < 150; ++i)
      EXPECT_OK(session->Run(SmallModelBatch(model), {}, {model.train}));
  };
  std::thread other([&] { train(session1.get(), model1); });
  train(session0.get(), model0);
  other.join();
  ASSERT_OK_AND_ASSIGN(const auto values, session1->Run({}, {model1.w.value}));
  ExpectTensorNear(values[0], Tensor::Scalar(3.0f), 0, 5e-2);
}

TEST(ServerTest, ErrorsNameTaskNodeAndSourceLine) {
  LoopbackCluster cluster;
  SmallModel model = MakeSmallModel();
  const Output bad =
      TestFail(model.root.WithDevice("/job:ps/task:0").WithName("bad"), model.w.value);
  const Output after = Identity(model.root.WithDevice("/job:worker/task:0"), bad);
  const auto session = cluster.NewSession(model.root);
  ASSERT_NE(session, nullptr);
  ASSERT_OK(session->Run({}, {}, {model.init}));
  const auto failed = session->Run({}, {after});
  EXPECT_STATUS(failed, absl::StatusCode::kInvalidArgument,
                "From /job:ps/replica:0/task:0:\nTestFail 'bad': value must be better");
  EXPECT_TRUE(absl::StrContains(failed.status().message(), "{{node bad}}"));
  EXPECT_TRUE(
      absl::StrContains(failed.status().message(), "; built at distributed/server_steps_test.cc"))
      << failed.status();
  EXPECT_OK(session->Run(SmallModelBatch(model), {model.loss}));
}

TEST(ServerTest, LosingATaskDuringAStepIsUnavailableAtOnce) {
  LoopbackCluster cluster;
  SmallModel model = MakeSmallModel();
  const Output wait = TestWait(model.root.WithDevice("/job:ps/task:0"));
  const auto session = cluster.NewSession(model.root);
  ASSERT_NE(session, nullptr);
  ASSERT_OK(session->Run({}, {}, {model.init}));
  const int64_t before = TestWaitsBegun();
  Status status;
  std::thread step([&] { status = session->Run({}, {wait}).status(); });
  while (TestWaitsBegun() == before) std::this_thread::yield();
  const absl::Time start = absl::Now();
  cluster.Kill("ps", 0);
  step.join();
  EXPECT_LT(absl::Now() - start, absl::Seconds(10));
  // Stopped in good order it still says Aborted; cut off it is Unavailable.
  EXPECT_TRUE(absl::IsUnavailable(status) || absl::IsAborted(status)) << status;
  EXPECT_STATUS(session->Run({}, {model.w.value}), absl::StatusCode::kUnavailable,
                "From /job:ps/replica:0/task:0:\nTask at 127.0.0.1:");
}

TEST(ServerTest, ARestartedTaskIsNoticedAndANewSessionWorks) {
  LoopbackCluster cluster;
  const SmallModel model = MakeSmallModel();
  auto session = cluster.NewSession(model.root);
  ASSERT_NE(session, nullptr);
  ASSERT_OK(session->Run({}, {}, {model.init}));
  ASSERT_OK(session->Run(SmallModelBatch(model), {model.loss}, {model.train}));
  cluster.Kill("ps", 0);
  cluster.Start("ps", 0);
  // The first calls may still meet the old connection.
  Status status;
  for (int i = 0; i < 100; ++i) {
    status = session->Run(SmallModelBatch(model), {model.loss}, {model.train}).status();
    if (!absl::IsUnavailable(status)) break;
    absl::SleepFor(absl::Milliseconds(50));
  }
  EXPECT_STATUS(status, absl::StatusCode::kAborted, "restarted");
  EXPECT_STATUS(session->Run({}, {model.w.value}), absl::StatusCode::kAborted,
                "variables there are lost, restore from a checkpoint");
  session = cluster.NewSession(model.root);
  ASSERT_NE(session, nullptr);
  EXPECT_STATUS(session->Run({}, {model.w.value}), absl::StatusCode::kFailedPrecondition,
                "uninitialized");
  ASSERT_OK(session->Run({}, {}, {model.init}));
  EXPECT_OK(session->Run(SmallModelBatch(model), {model.loss}, {model.train}));
}

TEST(ServerTest, TimeLimitsAndCloseEndStepsThatWait) {
  LoopbackCluster cluster;
  SmallModel model = MakeSmallModel();
  const Output wait = TestWait(model.root.WithDevice("/job:ps/task:0"));
  const auto session = cluster.NewSession(model.root);
  ASSERT_NE(session, nullptr);
  tensorflow::RunOptions options;
  options.set_timeout_in_ms(100);
  const std::vector<FetchName> fetches = {wait};
  EXPECT_STATUS(session->Run(options, {}, fetches, {}, nullptr),
                absl::StatusCode::kDeadlineExceeded, "Timed out waiting for notification");
  const int64_t before = TestWaitsBegun();
  Status status;
  std::thread step([&] { status = session->Run({}, {wait}).status(); });
  while (TestWaitsBegun() == before) std::this_thread::yield();
  EXPECT_OK(session->Close());
  step.join();
  EXPECT_STATUS(status, absl::StatusCode::kCancelled, "Session has been closed.");
}

TEST(ServerTest, APreparedStepsTimeLimitHoldsOverTheNetwork) {
  LoopbackCluster cluster;
  Scope root;
  const Output wait = TestWait(root.WithDevice("/job:ps/task:0").WithName("wait"));
  SessionOptions options;
  options.target = RemoteTarget(*cluster.server("worker", 0));
  ASSERT_OK_AND_ASSIGN(const auto session, NewSession(options));
  ASSERT_OK(session->Extend(root));
  ASSERT_OK_AND_ASSIGN(const auto step, session->Prepare({{}, {wait.name()}, {}}));
  tensorflow::RunOptions limit;
  limit.set_timeout_in_ms(200);
  Status ended;
  std::thread run([&] { ended = step->Run(limit, {}, nullptr).status(); });
  run.join();
  EXPECT_STATUS(ended, absl::StatusCode::kDeadlineExceeded, "Timed out waiting for notification");
}

// A session in this process, with its master in this process, and behind a network; nodes here and
// elsewhere; steps by name and prepared: one promise.
TEST(ServerTest, AKernelThatNeverAnswersHoldsUpNoStepBeyondItsTimeAndIsNamed) {
  enum Kind { kLocal, kOwnMaster, kNetwork };
  for (const Kind kind : {kLocal, kOwnMaster, kNetwork}) {
    struct Place {
      const char* device;
      bool taken_along;  // the silent part waits for the own one, whose time is over first
    };
    for (const Place& place : {Place{"/job:worker/task:0", false}, Place{"/job:ps/task:0", false},
                               Place{"/job:ps/task:0", true}}) {
      const auto& [device, taken_along] = place;
      if (kind == kLocal && absl::StrContains(device, "ps")) continue;
      SCOPED_TRACE(absl::StrCat("kind ", kind, ", ", device, ", ", taken_along));
      LoopbackCluster cluster;
      Scope root;
      const Output x = Placeholder(root.WithName("x"), DT_FLOAT, {});
      const Scope there = kind == kLocal ? root : root.WithDevice(device);
      const Output beside = taken_along ? Identity(there.WithName("beside"), TestWait(root))
                                        : Identity(there.WithName("beside"), x);
      const Output silent = TestSilent(there.WithName("silent"));
      const Output y = Identity(root.WithName("y"), silent);
      const Output z = Identity(root.WithName("z"), beside);
      const Output ok = Identity(there.WithName("ok"), x);
      SessionOptions options;
      if (kind == kOwnMaster) options.target = cluster.server("worker", 0)->target();
      if (kind == kNetwork) options.target = RemoteTarget(*cluster.server("worker", 0));
      ASSERT_OK_AND_ASSIGN(const auto session, NewSession(options));
      ASSERT_OK(session->Extend(root));
      const Tensor one = Tensor::Scalar(1.0f);
      // Compiled and connected: what follows is the step alone.
      ASSERT_OK(session->Run({{x, one}}, {ok}));
      ASSERT_OK_AND_ASSIGN(const auto step,
                           session->Prepare({{x.name()}, {y.name(), z.name()}, {}}));
      tensorflow::RunOptions limit;
      limit.set_timeout_in_ms(200);
      const std::vector<Feed> feeds = {{x, one}};
      const std::vector<FetchName> fetches = {y, z};
      const std::vector<Tensor> values = {one};
      for (const bool prepared : {false, true}) {
        const absl::Time start = absl::Now();
        const Status status = prepared ? step->Run(limit, values, nullptr).status()
                                       : session->Run(limit, feeds, fetches, {}, nullptr).status();
        const absl::Duration took = absl::Now() - start;
        EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
        EXPECT_TRUE(absl::StartsWith(status.message(),
                                     "Timed out waiting for notification; the "
                                     "step waited for "))
            << status;
        EXPECT_TRUE(absl::StrContains(status.message(), "TestSilent 'silent'")) << status;
        if (kind != kLocal && absl::StrContains(device, "ps")) {
          EXPECT_TRUE(absl::StrContains(status.message(), " on /job:ps/replica:0/task:0"))
              << status;
        }
        EXPECT_GE(took, absl::Milliseconds(200));
        EXPECT_LT(took, absl::Seconds(3)) << "prepared " << prepared;
      }
      // Neither the session nor the servers wait for it.
      EXPECT_OK(session->Run({{x, one}}, {ok}));
      EXPECT_OK(session->Close());
      if (taken_along) EndSilentKernels();
    }
  }
  EndSilentKernels();
}

}  // namespace
}  // namespace millrace
