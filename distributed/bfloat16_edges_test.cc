// SPDX-License-Identifier: Apache-2.0
//
// GraphOptions.enable_bfloat16_sendrecv on a cluster of two servers in this process, over loopback:
// what arrives of floats, what keeps all its bits, how many bytes travel, and that a model trains.
//
// Rounded values are worked out by hand: a bfloat16 is the upper half of a float, so 0.1 =
// 0x3dcccccd becomes 0x3dcd = 205/2048.
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/shape.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "distributed/server.h"
#include "distributed/server_counts.h"
#include "distributed/testing/loopback_cluster.h"
#include "distributed/testing/small_model.h"
#include "distributed/transport/peer_counts.h"
#include "graph/graph.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "ops/ops.h"
#include "proto/config.pb.h"
#include "runtime/session.h"

// covers: clusters: floats between tasks travel as bfloat16 where a session asks for it, rounded to
//   the nearest; other types, feeds, fetches and what files hold keep their bits
// covers: clusters: with bfloat16 between tasks a step moves half the bytes, and a linear model
//   trains alike

namespace millrace {
namespace {

constexpr char kPs[] = "/job:ps/task:0";
constexpr char kWorker[] = "/job:worker/task:0";
// 205/2048: what becomes of 0.1.
constexpr float kRoundedTenth = 0.10009765625f;

SessionConfig Config(bool bfloat16) {
  tensorflow::ConfigProto config;
  config.mutable_graph_options()->set_enable_bfloat16_sendrecv(bfloat16);
  return SessionConfigOf(std::move(config));
}

// On the worker's master, which is in this process, or reached over the network.
std::unique_ptr<Session> SessionOn(LoopbackCluster* cluster, const Scope& scope, bool bfloat16,
                                   bool over_network = false) {
  EXPECT_OK(scope.status());
  SessionOptions options;
  const Server& server = *cluster->server("worker", 0);
  options.target = over_network ? RemoteTarget(server) : server.target();
  options.creation_timeout = absl::Seconds(30);
  options.config = Config(bfloat16);
  auto session = NewSession(options);
  EXPECT_OK(session);
  if (!session.ok()) return nullptr;
  EXPECT_OK((*session)->Extend(scope));
  return *std::move(session);
}

// A feed is exact wherever it goes: x + 0 is computed on the worker, and travels to the ps, where
// another 0 is added.
struct ThereGraph {
  explicit ThereGraph(DType type)
      : x(Placeholder(root.WithDevice(kWorker), type)),
        zero(Placeholder(root.WithDevice(kWorker), type)),
        made(Add(root.WithDevice(kWorker), x, zero)),
        there(Add(root.WithDevice(kPs), made, zero)) {}
  Scope root;
  Output x, zero, made, there;
};

TEST(Bfloat16EdgesTest, FloatsArriveRoundedToTheNearestAndTiesToEven) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::vector<std::pair<float, float>> cases = {
      {0, 0},
      {1, 1},
      {-2.5f, -2.5f},
      {1.00390625f, 1},                                // 0x3f808000: a tie
      {1.01171875f, 1.015625f},                        // 0x3f818000: a tie
      {257, 256},                                      // 0x43808000: a tie
      {259, 260},                                      // 0x43818000: a tie
      {0.1f, kRoundedTenth},                           // 0x3dcccccd: up
      {-0.1f, -kRoundedTenth},                         //
      {3.14159274f, 3.140625f},                        // 0x40490fdb: down
      {kInfinity, kInfinity},                          //
      {-kInfinity, -kInfinity},                        //
      {std::numeric_limits<float>::max(), kInfinity},  // 0x7f7fffff: up
  };
  std::vector<float> values, rounded;
  for (const auto& [value, want] : cases) {
    values.push_back(value);
    rounded.push_back(want);
  }
  const Tensor x = Tensor::Vector<float>(values);
  const Tensor zeros = *Tensor::Zeros(DT_FLOAT, x.shape());
  LoopbackCluster cluster;
  for (const bool over_network : {false, true}) {
    for (const bool bfloat16 : {true, false}) {
      SCOPED_TRACE(
          absl::StrCat(bfloat16 ? "bfloat16" : "float", over_network ? ", remote client" : ""));
      ThereGraph graph(DT_FLOAT);
      // And back: from a variable of the ps.
      const Scope ps = graph.root.WithDevice(kPs);
      const Output v = VarHandleOp(ps.WithName("v"), DT_FLOAT, x.shape());
      const Operation init = AssignVariableOp(ps, v, graph.x);
      const Output back =
          Add(graph.root.WithDevice(kWorker), ReadVariableOp(ps, v, DT_FLOAT), graph.zero);
      const auto session = SessionOn(&cluster, graph.root, bfloat16, over_network);
      ASSERT_NE(session, nullptr);
      ASSERT_OK(session->Run({{graph.x, x}}, {}, {init}));
      ASSERT_OK_AND_ASSIGN(const auto out,
                           session->Run({{graph.x, x}, {graph.zero, zeros}}, {graph.there, back}));
      const Tensor want = Tensor::Vector<float>(bfloat16 ? rounded : values);
      ExpectTensorEqual(out[0], want);
      ExpectTensorEqual(out[1], want);
      ASSERT_OK(session->Close());
    }
  }
}

TEST(Bfloat16EdgesTest, NanStaysNan) {
  LoopbackCluster cluster;
  const ThereGraph graph(DT_FLOAT);
  const auto session = SessionOn(&cluster, graph.root, true);
  ASSERT_NE(session, nullptr);
  const Tensor nan = Tensor::Scalar(std::numeric_limits<float>::quiet_NaN());
  ASSERT_OK_AND_ASSIGN(
      const auto out,
      session->Run({{graph.x, nan}, {graph.zero, Tensor::Scalar(0.0f)}}, {graph.there}));
  EXPECT_TRUE(std::isnan(out[0].scalar<float>()));
}

TEST(Bfloat16EdgesTest, OtherTypesArriveAsTheyWereSent) {
  const std::vector<std::pair<Tensor, Tensor>> cases = {
      {Tensor::Scalar(0.1), Tensor::Scalar(0.0)},
      {Tensor::Scalar<int64_t>((int64_t{1} << 53) + 1), Tensor::Scalar<int64_t>(0)},
      {Tensor::Scalar<int32_t>(16777217), Tensor::Scalar<int32_t>(0)},
      {Tensor::Scalar<std::string>("0.1"), Tensor::Scalar<std::string>("")}};
  LoopbackCluster cluster;
  for (const auto& [x, zero] : cases) {
    SCOPED_TRACE(x.DebugString());
    const ThereGraph graph(x.dtype());
    const auto session = SessionOn(&cluster, graph.root, true);
    ASSERT_NE(session, nullptr);
    ASSERT_OK_AND_ASSIGN(const auto out,
                         session->Run({{graph.x, x}, {graph.zero, zero}}, {graph.there}));
    ExpectTensorEqual(out[0], x);
    ASSERT_OK(session->Close());
  }
}

// A variable on the ps takes a feed and is fetched; what is computed of it elsewhere is not its
// value, whether it is fetched in the same step or not.
TEST(Bfloat16EdgesTest, FeedsAndFetchesKeepAllTheirBits) {
  LoopbackCluster cluster;
  const Scope root;
  const Scope ps = root.WithDevice(kPs), worker = root.WithDevice(kWorker);
  const Output x = Placeholder(worker, DT_FLOAT, {});
  const Output zero = Placeholder(worker, DT_FLOAT, {});
  const Output v = VarHandleOp(ps.WithName("v"), DT_FLOAT, PartialShape::Scalar());
  const Operation init = AssignVariableOp(ps, v, x);
  const Output value = ReadVariableOp(ps, v, DT_FLOAT);
  const Output used = Add(worker, value, zero);
  const auto session = SessionOn(&cluster, root, true);
  ASSERT_NE(session, nullptr);
  ASSERT_OK(session->Run({{x, Tensor::Scalar(0.1f)}}, {}, {init}));
  ASSERT_OK_AND_ASSIGN(const auto alone, session->Run({}, {value}));
  EXPECT_EQ(alone[0].scalar<float>(), 0.1f);
  ASSERT_OK_AND_ASSIGN(const auto both,
                       session->Run({{zero, Tensor::Scalar(0.0f)}}, {value, used}));
  EXPECT_EQ(both[0].scalar<float>(), 0.1f);
  EXPECT_EQ(both[1].scalar<float>(), kRoundedTenth);
  ASSERT_OK(session->Close());
}

// The branch that is not taken is dead on the ps and on its way back.
TEST(Bfloat16EdgesTest, DeadTensorsArriveDead) {
  LoopbackCluster cluster;
  const Scope root;
  const Scope ps = root.WithDevice(kPs), worker = root.WithDevice(kWorker);
  const Output x = Placeholder(worker, DT_FLOAT, {});
  const Output zero = Placeholder(worker, DT_FLOAT, {});
  const Output pred = Placeholder(worker, DT_BOOL, {});
  const SwitchOutputs ways = Switch(worker, Add(worker, x, zero), pred);
  const Output no = Add(ps, ways.output_false, Const(ps, 2.0f));
  const Output yes = Add(ps, ways.output_true, Const(ps, 1.0f));
  const MergeOutputs merged = Merge(worker, {no, yes});
  const Output result = Add(worker, merged.output, zero);
  const auto session = SessionOn(&cluster, root, true);
  ASSERT_NE(session, nullptr);
  for (const bool taken : {true, false, true}) {
    SCOPED_TRACE(taken);
    ASSERT_OK_AND_ASSIGN(const auto out, session->Run({{x, Tensor::Scalar(0.1f)},
                                                       {zero, Tensor::Scalar(0.0f)},
                                                       {pred, Tensor::Scalar(taken)}},
                                                      {result, merged.value_index}));
    // 2253/2048 in steps of 1/128; 4301/2048 in steps of 1/64.
    EXPECT_EQ(out[0].scalar<float>(), taken ? 1.1015625f : 2.09375f);
    EXPECT_EQ(out[1].scalar<int32_t>(), taken ? 1 : 0);
  }
  ASSERT_OK(session->Close());
}

// x is doubled on the ps three times. Rounding is seen once: later values have few bits.
TEST(Bfloat16EdgesTest, ALoopOnTwoTasksSendsBfloat16InEachIteration) {
  LoopbackCluster cluster;
  for (const bool bfloat16 : {true, false}) {
    SCOPED_TRACE(bfloat16);
    const Scope root;
    const Scope ps = root.WithDevice(kPs), worker = root.WithDevice(kWorker);
    const Output x = Placeholder(worker, DT_FLOAT, {});
    const auto enter = [&](Output data, bool is_constant) {
      return Enter(worker, data, "loop", {.is_constant = is_constant});
    };
    const Output first_x = enter(x, false);
    const Output first_i = enter(Const<int32_t>(worker, 0), false);
    const Output merged_x = Merge(worker, {first_x, first_x}).output;
    const Output merged_i = Merge(worker, {first_i, first_i}).output;
    const Output go_on =
        LoopCond(worker, Less(worker, merged_i, enter(Const<int32_t>(worker, 3), true)));
    const SwitchOutputs ways_x = Switch(worker, merged_x, go_on);
    const SwitchOutputs ways_i = Switch(worker, merged_i, go_on);
    const Output doubled = Add(ps, ways_x.output_true, ways_x.output_true);
    const Output counted = Add(worker, ways_i.output_true, enter(Const<int32_t>(worker, 1), true));
    const Output next_x = NextIteration(worker, doubled);
    const Output next_i = NextIteration(worker, counted);
    ASSERT_OK(root.graph()->UpdateInput(merged_x.node(), 1, next_x.node(), 0));
    ASSERT_OK(root.graph()->UpdateInput(merged_i.node(), 1, next_i.node(), 0));
    const Output result = Exit(worker, ways_x.output_false);
    const auto session = SessionOn(&cluster, root, bfloat16);
    ASSERT_NE(session, nullptr);
    ASSERT_OK_AND_ASSIGN(const auto out, session->Run({{x, Tensor::Scalar(0.1f)}}, {result}));
    EXPECT_EQ(out[0].scalar<float>(), 8 * (bfloat16 ? kRoundedTenth : 0.1f));
    ASSERT_OK(session->Close());
  }
}

// 100,000 floats each way in each step.
TEST(Bfloat16EdgesTest, AStepMovesHalfTheBytes) {
  constexpr int64_t kFloats = 100000, kSteps = 5;
  ServerOptions options;
  options.limits.max_kept_bytes = 0;  // the variable stays what it is, and travels in each step
  LoopbackCluster cluster(1, 1, options);
  for (const bool bfloat16 : {false, true}) {
    SCOPED_TRACE(bfloat16);
    const Scope root;
    const Scope ps = root.WithDevice(kPs), worker = root.WithDevice(kWorker);
    const Output v = VarHandleOp(ps.WithName("v"), DT_FLOAT, {kFloats});
    const Output initial = Placeholder(worker, DT_FLOAT, {kFloats});
    const Operation init = AssignVariableOp(ps, v, initial);
    const Output scale = Placeholder(worker, DT_FLOAT, {});
    const Output scaled = Mul(worker, ReadVariableOp(ps, v, DT_FLOAT), scale);
    const Output sum = Sum(ps, scaled, Const<int32_t>(ps, {0}));
    const auto session = SessionOn(&cluster, root, bfloat16);
    ASSERT_NE(session, nullptr);
    std::vector<float> ones(static_cast<size_t>(kFloats), 1.0f);
    ASSERT_OK(session->Run({{initial, Tensor::Vector<float>(ones)}}, {}, {init}));
    const auto peers = [&] {
      return CountsOf(*cluster.server("ps", 0)).peers["/job:worker/replica:0/task:0"];
    };
    const PeerCounts before = peers();
    for (int i = 0; i < kSteps; ++i) {
      ASSERT_OK_AND_ASSIGN(const auto out, session->Run({{scale, Tensor::Scalar(0.5f)}}, {sum}));
      EXPECT_EQ(out[0].scalar<float>(), 50000.0f);
    }
    const PeerCounts after = peers();
    const int64_t least = kSteps * kFloats * (bfloat16 ? 2 : 4);
    // Names, shapes and the sum itself take less than 500 bytes a step.
    const int64_t most = least + 500 * kSteps;
    EXPECT_GE(after.bytes_sent - before.bytes_sent, least);
    EXPECT_LE(after.bytes_sent - before.bytes_sent, most);
    EXPECT_GE(after.bytes_received - before.bytes_received, least);
    EXPECT_LE(after.bytes_received - before.bytes_received, most);
    // As many tensors: a rounded one is sent in place of the float, not next to it.
    EXPECT_EQ(after.tensors_sent - before.tensors_sent, 2 * kSteps);
    EXPECT_EQ(after.tensors_received - before.tensors_received, kSteps);
    ASSERT_OK(session->Close());
  }
}

// y = 3 x + 1. The worker stops when the weights that it sees are 3 and 1, whose neighbours are
// 1/64 and 1/128 away: the variables are then within half of that. The ps adds up floats.
TEST(Bfloat16EdgesTest, ALinearModelTrainsAlike) {
  LoopbackCluster cluster;
  for (const bool bfloat16 : {false, true}) {
    SCOPED_TRACE(bfloat16);
    const SmallModel model = MakeSmallModel();
    const auto session = SessionOn(&cluster, model.root, bfloat16);
    ASSERT_NE(session, nullptr);
    ASSERT_OK(session->Run({}, {}, {model.init}));
    for (int i = 0; i < 200; ++i) {
      ASSERT_OK(session->Run(SmallModelBatch(model), {}, {model.train}));
    }
    std::vector<FetchName> fetches = {model.loss, model.w.value, model.b.value};
    ASSERT_OK_AND_ASSIGN(const auto out, session->Run(SmallModelBatch(model), fetches));
    const double tolerance = bfloat16 ? 1.0 / 128 : 1e-5;
    EXPECT_NEAR(out[0].scalar<float>(), 0, 1e-9);
    EXPECT_NEAR(out[1].scalar<float>(), 3, tolerance);
    EXPECT_NEAR(out[2].scalar<float>(), 1, tolerance);
    ASSERT_OK(session->Close());
  }
}

TEST(Bfloat16EdgesTest, ASessionOfThisProcessRoundsNothingBetweenItsDevices) {
  tensorflow::ConfigProto config;
  config.mutable_graph_options()->set_enable_bfloat16_sendrecv(true);
  (*config.mutable_device_count())["CPU"] = 2;
  SessionOptions options;
  options.config = SessionConfigOf(std::move(config));
  const Scope root;
  const Scope first = root.WithDevice("/device:CPU:0"), second = root.WithDevice("/device:CPU:1");
  const Output x = Placeholder(first, DT_FLOAT, {});
  const Output y = Add(first, Add(second, Add(first, x, x), x), x);
  ASSERT_OK_AND_ASSIGN(const auto session, NewSession(options));
  ASSERT_OK(session->Extend(root));
  ASSERT_OK_AND_ASSIGN(const auto out, session->Run({{x, Tensor::Scalar(0.1f)}}, {y}));
  EXPECT_EQ(out[0].scalar<float>(), ((0.1f + 0.1f) + 0.1f) + 0.1f);
  ASSERT_OK(session->Close());
}

}  // namespace
}  // namespace millrace
