// SPDX-License-Identifier: Apache-2.0
#include "graph/rewrite/rewrite.h"

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/dtype.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "graph/attr.h"
#include "graph/rewrite/testing/rewrite_test.h"
#include "graph/scope.h"
#include "ops/array/constant.h"
#include "ops/array/identity.h"
#include "ops/array/placeholder.h"
#include "ops/array/reshape.h"
#include "ops/math/cwise_binary.h"
#include "ops/math/cwise_unary.h"
#include "proto/config.pb.h"
#include "runtime/constant_evaluator.h"

// covers: steps: rewrites leave results as they are, bit for bit, and failing graphs failing

namespace millrace {
namespace {

using tensorflow::GraphOptions;
using tensorflow::OptimizerOptions;
using tensorflow::RewriterConfig;

std::string PassesFor(const GraphOptions& options) {
  const StatusOr<RewriteOptions> rewrites = RewriteOptionsFor(options);
  return rewrites.ok() ? absl::StrJoin(rewrites->passes, ",")
                       : std::string(rewrites.status().message());
}

constexpr char kAll[] =
    "shapes,constant_folding,dead_branches,arithmetic,redundant,identities,common_subexpressions";

TEST(RewriteOptionsTest, TheLevelSwitchesAllPasses) {
  GraphOptions options;
  EXPECT_EQ(PassesFor(options), kAll);
  OptimizerOptions* optimizer = options.mutable_optimizer_options();
  optimizer->set_opt_level(OptimizerOptions::L0);
  EXPECT_EQ(PassesFor(options), "");
  optimizer->set_do_constant_folding(true);
  EXPECT_EQ(PassesFor(options), "constant_folding");
  optimizer->set_do_common_subexpression_elimination(true);
  EXPECT_EQ(PassesFor(options), "constant_folding,common_subexpressions");
}

TEST(RewriteOptionsTest, EachPassHasASwitch) {
  const struct {
    void (RewriterConfig::*set)(RewriterConfig::Toggle);
    const char* off;  // what is left
    const char* on;   // what runs at level L0
  } cases[] = {
      {&RewriterConfig::set_constant_folding,
       "shapes,dead_branches,arithmetic,redundant,identities,common_subexpressions",
       "constant_folding"},
      {&RewriterConfig::set_shape_optimization,
       "constant_folding,dead_branches,arithmetic,redundant,identities,common_subexpressions",
       "shapes"},
      {&RewriterConfig::set_arithmetic_optimization,
       "shapes,constant_folding,dead_branches,identities,common_subexpressions",
       "arithmetic,redundant"},
      {&RewriterConfig::set_dependency_optimization,
       "shapes,constant_folding,dead_branches,arithmetic,redundant,common_subexpressions",
       "identities"},
      {&RewriterConfig::set_loop_optimization,
       "shapes,constant_folding,arithmetic,redundant,identities,common_subexpressions",
       "dead_branches"},
  };
  for (const auto& c : cases) {
    GraphOptions options;
    (options.mutable_rewrite_options()->*c.set)(RewriterConfig::OFF);
    EXPECT_EQ(PassesFor(options), c.off);
    options.mutable_optimizer_options()->set_opt_level(OptimizerOptions::L0);
    (options.mutable_rewrite_options()->*c.set)(RewriterConfig::ON);
    EXPECT_EQ(PassesFor(options), c.on);
  }
}

TEST(RewriteOptionsTest, OptimizersAreExactlyThePassesThatRun) {
  GraphOptions options;
  RewriterConfig* config = options.mutable_rewrite_options();
  for (const char* name : {"identities", "pruning", "constfold"}) config->add_optimizers(name);
  EXPECT_EQ(PassesFor(options), "identities,shapes,constant_folding");
  config->add_optimizers("constant_foldin");
  EXPECT_EQ(PassesFor(options),
            "ConfigProto.graph_options.rewrite_options: optimizers must name passes (shapes, "
            "constant_folding, dead_branches, arithmetic, redundant, identities, "
            "common_subexpressions, or TensorFlow's names), got 'constant_foldin'");
}

class RewritesTest : public testing::RewriteTest {};

TEST_F(RewritesTest, PassesWorkHandInHand) {
  // (x * x.shape[0]) where the shape is known: one multiplication by a constant is left, once.
  const Output x = Placeholder(root_.WithName("x"), DT_INT32, {3});
  const Output n = Size(root_.WithName("n"), x);
  const Output two = Const(root_.WithName("two"), 2);
  const Output a = Mul(root_.WithName("a"), x, Mul(root_.WithName("factor"), n, two));
  const Output b = Mul(root_.WithName("b"), Identity(root_.WithName("same"), x),
                       Const(root_.WithName("six"), 6));
  Add(root_.WithName("y"), a, b);
  EXPECT_EQ(After("", {{"x"}, {"y"}, {}}),
            "_arg_x_0_0 = _Arg()\n"
            "_retval_y_0_0 = _Retval(y)\n"
            "a = Mul(_arg_x_0_0, six)\n"
            "six = Const() int32[]: 6\n"
            "y = Add(a, a)\n");
  ASSERT_OK(ExpectSameResults({{"x", TensorOf<int32_t>({3}, {1, 2, 3})}}, {"y"}).status());
}

TEST_F(RewritesTest, GraphsAreDumpedAfterThePassesThatAreNamed) {
  const Output x = Placeholder(root_.WithName("x"), DT_FLOAT, {3});
  Neg(root_.WithName("y"), Identity(root_.WithName("same"), x));
  StatusOr<RunGraph> run = BuildRunGraph(*root_.graph(), {{"x"}, {"y"}, {}});
  ASSERT_OK(run.status());
  RewriteOptions options;
  options.passes = {"arithmetic", "identities"};
  options.dump_after = {"place", "identities"};
  std::string dumped;
  options.dump = [&](absl::string_view pass, const std::string& text) {
    absl::StrAppend(&dumped, pass,
                    text.find("same") == std::string::npos ? " without; " : " with; ");
  };
  ASSERT_OK(RunRewrites(run->graph.get(), {run->signature.fetch_nodes}, nullptr, options).status());
  EXPECT_EQ(dumped, "place with; identities without; identities without; ");
}

TEST_F(RewritesTest, TheEnvironmentNamesThePassesToDumpAfter) {
  ASSERT_EQ(setenv("MILLRACE_DUMP_GRAPH_AFTER", "shapes,all", 1), 0);
  const StatusOr<RewriteOptions> options = RewriteOptionsFor(GraphOptions());
  ASSERT_OK(options.status());
  EXPECT_EQ(options->dump_after, (std::vector<std::string>{"shapes", "all"}));
  ASSERT_EQ(setenv("MILLRACE_DUMP_GRAPH_AFTER", "shape", 1), 0);
  EXPECT_STATUS(RewriteOptionsFor(GraphOptions()), absl::StatusCode::kInvalidArgument,
                "MILLRACE_DUMP_GRAPH_AFTER must name passes (place, shapes, ");
  ASSERT_EQ(unsetenv("MILLRACE_DUMP_GRAPH_AFTER"), 0);
}

// Chains of a hundred thousand nodes for each pass: none recurses, none looks back all the way.
TEST_F(RewritesTest, LongChainsAreRewritten) {
  constexpr int kLength = 100000;
  Graph graph;
  const auto add = [&](const char* op, const std::string& name, std::vector<Node*> inputs,
                       DType type) {
    tensorflow::NodeDef def;
    def.set_name(name);
    def.set_op(op);
    SetAttr(type, &(*def.mutable_attr())["T"]);
    Node* node = *graph.AddNode(def);
    for (size_t i = 0; i < inputs.size(); ++i) {
      EXPECT_OK(graph.AddEdge(inputs[i], 0, node, static_cast<int>(i)));
    }
    return node;
  };
  const auto constant = [&](const char* name, int32_t value) {
    tensorflow::NodeDef def;
    def.set_name(name);
    def.set_op("Const");
    SetAttr(DT_INT32, &(*def.mutable_attr())["dtype"]);
    SetAttr(Tensor::Scalar<int32_t>(value), &(*def.mutable_attr())["value"]);
    return *graph.AddNode(def);
  };
  tensorflow::NodeDef arg;
  arg.set_name("arg");
  arg.set_op("_Arg");
  SetAttr(DT_INT32, &(*arg.mutable_attr())["T"]);
  SetAttr(0, &(*arg.mutable_attr())["index"]);
  Node* const x = *graph.AddNode(arg);
  Node* const zero = constant("zero", 0);
  Node* const one = constant("one", 1);
  std::vector<Node*> ends = {x, x, one, x, x};
  for (int i = 0; i < kLength; ++i) {
    ends[0] = add("Identity", absl::StrCat("identity", i), {ends[0]}, DT_INT32);
    ends[1] = add("AddV2", absl::StrCat("plus_zero", i), {ends[1], zero}, DT_INT32);
    ends[2] = add("AddV2", absl::StrCat("folded", i), {ends[2], one}, DT_INT32);
    ends[3] = add("Neg", absl::StrCat("left", i), {ends[3]}, DT_INT32);
    ends[4] = add("Neg", absl::StrCat("right", i), {ends[4]}, DT_INT32);
  }
  std::vector<Node*> keep = {x};
  for (size_t i = 0; i < ends.size(); ++i) {
    tensorflow::NodeDef def;
    def.set_name(absl::StrCat("retval", i));
    def.set_op("_Retval");
    SetAttr(DT_INT32, &(*def.mutable_attr())["T"]);
    SetAttr(static_cast<int64_t>(i), &(*def.mutable_attr())["index"]);
    keep.push_back(*graph.AddNode(def));
    ASSERT_OK(graph.AddEdge(ends[i], 0, keep.back(), 0));
  }
  RewriteOptions options;
  for (const RewritePass& pass : RewritePasses()) options.passes.emplace_back(pass.name);
  KernelEvaluator evaluator;
  ASSERT_OK(RunRewrites(&graph, keep, &evaluator, options).status());
  EXPECT_EQ(testing::NodesAsText(graph),
            "arg = _Arg()\n"
            "folded99999 = Const() int32[]: 100001\n"
            "retval0 = _Retval(arg)\n"
            "retval1 = _Retval(arg)\n"
            "retval2 = _Retval(folded99999)\n"
            "retval3 = _Retval(arg)\n"
            "retval4 = _Retval(arg)\n");
}

}  // namespace
}  // namespace millrace
