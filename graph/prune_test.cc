// SPDX-License-Identifier: Apache-2.0
#include "graph/prune.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/shape.h"
#include "core/tensor.h"
#include "graph/attr.h"
#include "graph/copy.h"
#include "graph/node_builder.h"
#include "graph/scope.h"
#include "graph/shape_inference.h"
#include "graph/testing/tiny_ops.h"
#include "proto/node_def.pb.h"

namespace millrace {
namespace {

using testing::Call;
using testing::Constant;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::Input;
using testing::NoOp;

std::set<std::string> Names(const Graph& graph) {
  std::set<std::string> names;
  for (const auto& node : graph.nodes()) {
    if (node != nullptr) names.insert(node->name());
  }
  return names;
}

std::vector<std::string> InputsOf(const Graph& graph, const std::string& name) {
  const Node* node = graph.FindNode(name);
  EXPECT_NE(node, nullptr) << name;
  if (node == nullptr) return {};
  const tensorflow::NodeDef def = graph.NodeToDef(*node);
  return std::vector<std::string>(def.input().begin(), def.input().end());
}

// x -> square -> sum(square, w) with init, a node after x, and an unrelated part.
class PruneTest : public ::testing::Test {
 protected:
  PruneTest() {
    x_ = Input(root_.WithName("x"), DT_FLOAT, {-1, 3});
    w_ = Constant(root_.WithName("w"), Tensor::Scalar<float>(2));
    square_ = Call(root_.WithName("square"), "Mul", {x_, x_});
    sum_ = Call(root_.WithName("sum"), "Add", {square_, w_});
    const Scope after_x = root_.WithControlDependencies({x_.op()});
    after_ = Constant(after_x.WithName("after"), Tensor::Scalar<float>(1));
    const Scope after_square = root_.WithControlDependencies({square_.op()});
    late_ = Call(after_square.WithName("late"), "Identity", {w_});
    NoOp(root_.WithName("init"));
    Call(root_.WithName("unrelated"), "Identity", {w_});
    EXPECT_TRUE(root_.ok()) << root_.status();
  }
  const Graph& graph() const { return *root_.graph(); }

  Scope root_;
  Output x_, w_, square_, sum_, after_, late_;
};

TEST_F(PruneTest, OnlyWhatFetchesAndTargetsNeedRemains) {
  StatusOr<RunGraph> run = BuildRunGraph(graph(), {{}, {"sum"}, {"init"}});
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(Names(*run->graph),
            (std::set<std::string>{"x", "square", "w", "sum", "init", "_retval_sum_0_0"}));
  EXPECT_THAT(run->signature.fetch_types, ElementsAre(DT_FLOAT));
  EXPECT_EQ(run->signature.target_nodes[0], run->graph->FindNode("init"));
  EXPECT_EQ(graph().num_nodes(), 8);
}

TEST_F(PruneTest, AFedTensorIsReplacedForAllConsumersAndCutsWhatIsBefore) {
  StatusOr<RunGraph> run = BuildRunGraph(graph(), {{"square:0"}, {"sum:0"}, {}});
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(Names(*run->graph),
            (std::set<std::string>{"_arg_square_0_0", "w", "sum", "_retval_sum_0_0"}));
  EXPECT_THAT(InputsOf(*run->graph, "sum"), ElementsAre("_arg_square_0_0", "w"));
  EXPECT_THAT(InputsOf(*run->graph, "_retval_sum_0_0"), ElementsAre("sum"));
  const Node* arg = run->signature.feed_nodes[0];
  EXPECT_EQ(arg->op(), "_Arg");
  EXPECT_EQ(*GetAttr<int64_t>(arg->def(), "index"), 0);
  EXPECT_EQ(*GetAttr<DType>(arg->def(), "T"), DT_FLOAT);
}

TEST_F(PruneTest, ControlEdgesMoveFromAFedPlaceholderOnly) {
  StatusOr<RunGraph> run = BuildRunGraph(graph(), {{"x"}, {"after"}, {}});
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_THAT(InputsOf(*run->graph, "after"), ElementsAre("^_arg_x_0_0"));
  EXPECT_EQ(run->graph->FindNode("x"), nullptr);

  run = BuildRunGraph(graph(), {{"square"}, {"late"}, {}});
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_THAT(InputsOf(*run->graph, "late"), ElementsAre("w", "^square"));
  EXPECT_EQ(run->signature.feed_nodes[0], nullptr);
}

TEST_F(PruneTest, AFedConstantAndAFedTargetWork) {
  StatusOr<RunGraph> run = BuildRunGraph(graph(), {{"w:0", "x"}, {"sum"}, {"x"}});
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_THAT(InputsOf(*run->graph, "sum"), ElementsAre("square", "_arg_w_0_0"));
  EXPECT_THAT(InputsOf(*run->graph, "square"), ElementsAre("_arg_x_0_1", "_arg_x_0_1"));
  EXPECT_EQ(run->signature.target_nodes[0], run->signature.feed_nodes[1]);
}

TEST_F(PruneTest, UnneededFeedsHaveNoNodeButAType) {
  StatusOr<RunGraph> run = BuildRunGraph(graph(), {{"x", "square"}, {"sum"}, {}});
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->signature.feed_nodes[0], nullptr);
  EXPECT_NE(run->signature.feed_nodes[1], nullptr);
  EXPECT_THAT(run->signature.feed_types, ElementsAre(DT_FLOAT, DT_FLOAT));
}

TEST_F(PruneTest, FeedsAndFetchesAreWhereTheirCallerIs) {
  RunGraphOptions options;
  options.device = "/job:worker/replica:0/task:0/device:CPU:0";
  StatusOr<RunGraph> run = BuildRunGraph(graph(), {{"x"}, {"after", "sum"}, {}}, options);
  ASSERT_TRUE(run.ok()) << run.status();
  const Node* arg = run->graph->FindNode("_arg_x_0_0");
  ASSERT_NE(arg, nullptr);
  EXPECT_EQ(*GetAttr<int64_t>(arg->def(), "index"), 0);
  EXPECT_EQ(*GetAttr<DType>(arg->def(), "T"), DT_FLOAT);
  const Node* retval = run->graph->FindNode("_retval_sum_0_1");
  ASSERT_NE(retval, nullptr);
  EXPECT_EQ(*GetAttr<int64_t>(retval->def(), "index"), 1);
  for (const Node* node : {arg, retval}) {
    EXPECT_EQ(node->requested_device(), options.device);
    EXPECT_EQ(node->assigned_device(), options.device);
  }
  EXPECT_THAT(InputsOf(*run->graph, "after"), ElementsAre("^_arg_x_0_0"));
}

TEST_F(PruneTest, TheShapeOfAFedPlaceholderIsKept) {
  StatusOr<RunGraph> run = BuildRunGraph(graph(), {{"x"}, {"sum"}, {}});
  ASSERT_TRUE(run.ok()) << run.status();
  ShapeRefiner refiner;
  ASSERT_TRUE(refiner.AddNode(*run->signature.feed_nodes[0]).ok());
  EXPECT_EQ(refiner.OutputShape(*run->signature.feed_nodes[0], 0).ToString(), "[?,3]");
}

TEST_F(PruneTest, FetchingTwiceGivesTwoResults) {
  StatusOr<RunGraph> run = BuildRunGraph(graph(), {{}, {"w", "w:0"}, {}});
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->signature.fetch_nodes[0]->name(), "_retval_w_0_0");
  EXPECT_EQ(run->signature.fetch_nodes[1]->name(), "_retval_w_0_1");
}

TEST_F(PruneTest, BadSignaturesAreRefused) {
  using absl::StatusCode;
  const struct {
    RunSignature signature;
    StatusCode code;
    const char* message;
  } kCases[] = {
      {{{}, {}, {}},
       StatusCode::kInvalidArgument,
       "Must specify at least one target to fetch or execute."},
      {{{"x"}, {}, {}},
       StatusCode::kInvalidArgument,
       "Must specify at least one target to fetch or execute."},
      {{{"nope"}, {"sum"}, {}},
       StatusCode::kNotFound,
       "FeedInputs: unable to find feed output nope"},
      {{{"x:1"}, {"sum"}, {}},
       StatusCode::kInvalidArgument,
       "FeedInputs: x:1 should have output index < 1"},
      {{{"x", "x:0"}, {"sum"}, {}},
       StatusCode::kInvalidArgument,
       "Endpoint \"x:0\" fed more than once."},
      {{{"^x"}, {"sum"}, {}}, StatusCode::kInvalidArgument, "Feed '^x' must name a tensor"},
      {{{"init"}, {"sum"}, {}}, StatusCode::kInvalidArgument, "should have output index < 0"},
      {{{"x"}, {"x:0"}, {}}, StatusCode::kInvalidArgument, "x:0 is both fed and fetched."},
      {{{}, {"nope:0"}, {}}, StatusCode::kNotFound, "FetchOutputs node nope:0: not found"},
      {{{}, {"sum:1"}, {}},
       StatusCode::kInvalidArgument,
       "FetchOutputs sum:1: output index too large, must be < 1"},
      {{{}, {"init"}, {}},
       StatusCode::kInvalidArgument,
       "Tried to fetch data for 'init', which produces no output.  To run to a node but not fetch "
       "any data, pass 'init' as a target"},
      {{{}, {"^sum"}, {}}, StatusCode::kInvalidArgument, "Fetch '^sum' must name a tensor"},
      {{{}, {}, {"nope", "init", "gone"}},
       StatusCode::kNotFound,
       "PruneForTargets: Some target nodes not found: nope, gone"},
      {{{}, {}, {"sum:0"}},
       StatusCode::kNotFound,
       "PruneForTargets: Some target nodes not found: sum:0"},
  };
  for (const auto& c : kCases) {
    const Status status = BuildRunGraph(graph(), c.signature).status();
    EXPECT_EQ(status.code(), c.code) << c.message;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.message));
  }
}

TEST_F(PruneTest, MalformedNamesAreRefused) {
  for (const char* text : {"", ":0", "x:", "x:-1", "x:y", "x:99999999999999999999", "a:0:1"}) {
    EXPECT_FALSE(BuildRunGraph(graph(), {{text}, {"sum"}, {}}).ok()) << text;
    EXPECT_FALSE(BuildRunGraph(graph(), {{}, {text}, {}}).ok()) << text;
    EXPECT_FALSE(BuildRunGraph(graph(), {{}, {}, {text}}).ok()) << text;
  }
}

TEST_F(PruneTest, AFedReferenceThatSomebodyAssignsIsRefused) {
  const Output ref = NodeBuilder(root_.WithName("v"), "VariableV2")
                         .Attr("shape", PartialShape({}))
                         .Attr("dtype", DT_FLOAT)
                         .Finish()
                         .output(0);
  Call(root_.WithName("assign"), "Assign", {ref, w_});
  Call(root_.WithName("read"), "Identity", {ref});
  ASSERT_TRUE(root_.ok()) << root_.status();
  EXPECT_TRUE(BuildRunGraph(graph(), {{"v"}, {"read"}, {}}).ok());
  const Status status = BuildRunGraph(graph(), {{"v"}, {}, {"assign"}}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(
      std::string(status.message()),
      HasSubstr("Feed 'v' must not be needed as a reference, got consumer Assign 'assign'"));
}

TEST_F(PruneTest, PruneForTargetsKeepsWhatTheyNeed) {
  StatusOr<std::unique_ptr<Graph>> copy = CopyGraph(graph());
  ASSERT_TRUE(copy.ok()) << copy.status();
  EXPECT_EQ(Names(**copy), Names(graph()));
  EXPECT_THAT(InputsOf(**copy, "late"), ElementsAre("w", "^square"));
  Node* after = (*copy)->FindNode("after");
  ASSERT_TRUE(PruneForTargets(copy->get(), {after}).ok());
  EXPECT_EQ(Names(**copy), (std::set<std::string>{"x", "after"}));
  EXPECT_FALSE(PruneForTargets(copy->get(), {sum_.node()}).ok());
  EXPECT_EQ((*copy)->num_nodes(), 2);
}

// x -> FromAnotherWorld (2 outputs) -> y
TEST(PruneUnknownOpTest, FeedsGoAroundAnOpThatNobodyKnows) {
  Graph graph;
  tensorflow::NodeDef mystery, y;
  mystery.set_name("mystery");
  mystery.set_op("FromAnotherWorld");
  y.set_name("y");
  y.set_op("Identity");
  SetAttr(DT_FLOAT, &(*y.mutable_attr())["T"]);
  Node* m = *graph.AddNode(mystery);
  Node* id = *graph.AddNode(y);
  ASSERT_TRUE(graph.AddEdge(m, 1, id, 0).ok());
  StatusOr<RunGraph> run = BuildRunGraph(graph, {{"mystery:1"}, {"y"}, {}});
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_THAT(run->signature.feed_types, ElementsAre(DT_FLOAT));
  EXPECT_EQ(run->graph->FindNode("mystery"), nullptr);
  // Without the feed the node is kept; running it is the runtime's error.
  run = BuildRunGraph(graph, {{}, {"y"}, {}});
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_THAT(InputsOf(*run->graph, "y"), ElementsAre("mystery:1"));
  const Status status = BuildRunGraph(graph, {{}, {"mystery:0"}, {}}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), HasSubstr("op kind 'FromAnotherWorld'"));
}

TEST(PruneLoopTest, CyclesThroughNextIterationAreKept) {
  Graph graph;
  const auto add = [&](const char* name, const char* op) {
    tensorflow::NodeDef def;
    def.set_name(name);
    def.set_op(op);
    SetAttr(DT_FLOAT, &(*def.mutable_attr())[op == std::string("Placeholder") ? "dtype" : "T"]);
    if (op == std::string("Merge")) SetAttr(int64_t{2}, &(*def.mutable_attr())["N"]);
    return *graph.AddNode(def);
  };
  Node* x = add("x", "Placeholder");
  Node* merge = add("merge", "Merge");
  Node* next = add("next", "NextIteration");
  ASSERT_TRUE(graph.AddEdge(x, 0, merge, 0).ok());
  ASSERT_TRUE(graph.AddEdge(next, 0, merge, 1).ok());
  ASSERT_TRUE(graph.AddEdge(merge, 0, next, 0).ok());
  StatusOr<RunGraph> run = BuildRunGraph(graph, {{}, {"merge"}, {}});
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_THAT(InputsOf(*run->graph, "merge"), ElementsAre("x", "next"));
}

}  // namespace
}  // namespace millrace
