// SPDX-License-Identifier: Apache-2.0
//
// Functions on a cluster: two servers in this process, over loopback.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/tensor.h"
#include "core/testing/free_port.h"
#include "core/testing/tensor_testing.h"
#include "distributed/cluster/cluster.h"
#include "distributed/server.h"
#include "graph/function_builder.h"
#include "graph/function_library.h"
#include "graph/gradient.h"
#include "graph/graph.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "ops/ops.h"
#include "proto/attr_value.pb.h"
#include "proto/config.pb.h"
#include "proto/function.pb.h"
#include "proto/graph.pb.h"
#include "runtime/session.h"

// covers: graphs: on a cluster one function's nodes run on several tasks; a partition carries the
//   functions that it still calls, and no others

namespace millrace {
namespace {

using Outputs = std::vector<Output>;
constexpr char kPs[] = "/job:ps/task:0";
constexpr char kWorker[] = "/job:worker/task:0";

class FunctionsOnAClusterTest : public ::testing::Test {
 protected:
  FunctionsOnAClusterTest() {
    const std::vector<int> ports = FreePorts(2);
    for (const char* job : {"ps", "worker"}) {
      const auto config = ClusterConfig::Parse(absl::StrCat(
          "{\"cluster\": {\"ps\": [\"127.0.0.1:", ports[0], "\"], \"worker\": [\"127.0.0.1:",
          ports[1], "\"]}, \"task\": {\"type\": \"", job, "\", \"index\": 0}}"));
      EXPECT_OK(config.status());
      auto server = Server::Start(*config);
      EXPECT_OK(server.status());
      (job[0] == 'p' ? ps_ : worker_) = *std::move(server);
    }
  }
  std::unique_ptr<Session> NewSessionOn(Server* server) {
    EXPECT_OK(s_.status());
    SessionOptions options;
    options.target = server->target();
    options.creation_timeout = absl::Seconds(30);
    auto session = NewSession(options);
    EXPECT_OK(session.status());
    EXPECT_OK((*session)->Extend(s_));
    return *std::move(session);
  }

  std::unique_ptr<Server> ps_, worker_;
  Scope s_;
};

TEST_F(FunctionsOnAClusterTest, NodesOfOneFunctionRunOnBothTasks) {
  const Output v = VarHandleOp(s_.WithName("v").WithDevice(kPs), DT_FLOAT, {2});
  const Operation init = AssignVariableOp(s_, v, Const(s_, TensorOf<float>({2}, {1, 2})));
  const DefinedFunction f =
      DefineFunction(s_, "f", {DT_FLOAT}, [&](const Scope& t, const Outputs& x) {
        return Outputs{Square(t, Mul(t, ReadVariableOp(t, v, DT_FLOAT), x[0]))};
      });
  const Output x = Placeholder(s_, DT_FLOAT, {2});
  const Output y = Call(s_.WithName("call").WithDevice(kWorker), f, {x})[0];
  ASSERT_OK_AND_ASSIGN(const auto gradients, AddGradients(s_, {{y}}, {{v}}));
  const Output dv = DenseGradient(s_, gradients[0]);
  const auto session = NewSessionOn(worker_.get());
  ASSERT_OK(session->Run({}, {}, {init}));
  tensorflow::RunOptions options;
  options.set_output_partition_graphs(true);
  tensorflow::RunMetadata metadata;
  const std::vector<Feed> feeds = {{x, TensorOf<float>({2}, {3, 4})}};
  const std::vector<FetchName> fetches = {y, dv}, none;
  ASSERT_OK_AND_ASSIGN(const auto out, session->Run(options, feeds, fetches, none, &metadata));
  ExpectTensorEqual(out[0], TensorOf<float>({2}, {9, 64}));
  ExpectTensorEqual(out[1], TensorOf<float>({2}, {18, 64}));
  EXPECT_EQ(metadata.partition_graphs_size(), 2);
}

TEST_F(FunctionsOnAClusterTest, TravelWithThePartitionThatCallsThem) {
  const FunctionOptions called = {.no_inline = true};
  const DefinedFunction inner = DefineFunction(
      s_, "inner", {DT_FLOAT},
      [](const Scope& t, const Outputs& x) {
        return Outputs{
            Add(t, x[0], RandomUniform(t, Const<int32_t>(t, {2}), DT_FLOAT, {.seed = 3}))};
      },
      called);
  const DefinedFunction outer = DefineFunction(
      s_, "outer", {DT_FLOAT},
      [&](const Scope& t, const Outputs& x) { return Call(t, inner, Call(t, inner, x)); }, called);
  DefineFunction(
      s_, "unused", {DT_FLOAT}, [](const Scope&, const Outputs& x) { return x; }, called);
  const Output x = Placeholder(s_, DT_FLOAT, {2});
  const Output y = Call(s_.WithName("y").WithDevice(kPs), outer, {x})[0];
  const Output z = Neg(s_.WithName("z").WithDevice(kWorker), y);

  std::vector<std::vector<Tensor>> seen;
  const auto session = NewSessionOn(worker_.get());
  tensorflow::RunOptions options;
  options.set_output_partition_graphs(true);
  const std::vector<Feed> feeds = {{x, TensorOf<float>({2}, {0, 0})}};
  const std::vector<FetchName> fetches = {z}, none;
  for (int step = 0; step < 2; ++step) {
    tensorflow::RunMetadata metadata;
    ASSERT_OK_AND_ASSIGN(seen.emplace_back(),
                         session->Run(options, feeds, fetches, none, &metadata));
    for (const tensorflow::GraphDef& graph : metadata.partition_graphs()) {
      const bool calls = std::any_of(graph.node().begin(), graph.node().end(),
                                     [](const auto& node) { return node.name() == "y"; });
      EXPECT_EQ(graph.library().function_size(), calls ? 2 : 0);
    }
  }
  // The generators have gone on.
  EXPECT_NE(seen[0][0].flat<float>()[0], seen[1][0].flat<float>()[0]);
  // Another session has its own.
  const auto other = NewSessionOn(worker_.get());
  ASSERT_OK_AND_ASSIGN(const auto again, other->Run(feeds, fetches));
  ExpectTensorEqual(again[0], seen[0][0]);
}

TEST_F(FunctionsOnAClusterTest, ErrorsNameTheFunctionAndTheNextStepRuns) {
  const DefinedFunction f =
      DefineFunction(s_, "f", {DT_FLOAT, DT_INT32},
                     [](const Scope& t, const Outputs& x) {
                       return Outputs{Reshape(t.WithName("wrong"), x[0], x[1])};
                     },
                     {.no_inline = true});
  const Output shape = Placeholder(s_, DT_INT32);
  const Output y = Call(s_.WithName("call").WithDevice(kPs), f,
                        {Const(s_, TensorOf<float>({2}, {1, 2})), shape})[0];
  const auto session = NewSessionOn(worker_.get());
  for (int i = 0; i < 2; ++i) {
    EXPECT_STATUS(session->Run({{shape, Tensor::Vector<int32_t>({3})}}, {y}).status(),
                  absl::StatusCode::kInvalidArgument, "Reshape 'wrong'");
    ASSERT_OK_AND_ASSIGN(const auto out,
                         session->Run({{shape, Tensor::Vector<int32_t>({2, 1})}}, {y}));
    ExpectTensorEqual(out[0], TensorOf<float>({2, 1}, {1, 2}));
  }
  // A session without the function.
  tensorflow::GraphDef def = *s_.ToGraphDef();
  def.clear_library();
  SessionOptions options;
  options.target = worker_->target();
  ASSERT_OK_AND_ASSIGN(const auto bare, NewSession(options));
  ASSERT_OK(bare->Extend(def));
  EXPECT_STATUS(bare->Run({{shape.name(), Tensor::Vector<int32_t>({2})}}, {y.name()}).status(),
                absl::StatusCode::kNotFound, "Function 'f': must be in the graph's library");
}

}  // namespace
}  // namespace millrace
