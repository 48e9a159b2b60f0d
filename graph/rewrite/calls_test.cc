// SPDX-License-Identifier: Apache-2.0
#include "graph/rewrite/calls.h"

#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "graph/copy.h"
#include "graph/function_body.h"
#include "graph/function_builder.h"
#include "graph/function_library.h"
#include "graph/graph.h"
#include "graph/node_builder.h"
#include "graph/prune.h"
#include "graph/rewrite/testing/rewrite_test.h"
#include "graph/scope.h"
#include "graph/signature.h"
#include "graph/verify.h"
#include "gtest/gtest.h"
#include "ops/ops.h"
#include "proto/attr_value.pb.h"
#include "proto/config.pb.h"
#include "proto/function.pb.h"
#include "proto/node_def.pb.h"
#include "runtime/session.h"
#include "runtime/session_config.h"

// covers: graphs: a call's nodes take its place: effects after its inputs and before its results,
//   dead where it is dead, on its device, under its name; state keeps its place; calls that would
//   fill the graph stay calls

namespace millrace {
namespace {

using Outputs = std::vector<Output>;
using testing::NodesAsText;

class CallsTest : public ::testing::Test {
 protected:
  // The run graph with its calls prepared.
  std::string Prepared(const RunSignature& signature, const CallOptions& options = {}) {
    EXPECT_OK(root_.status());
    StatusOr<RunGraph> run = BuildRunGraph(*root_.graph(), signature);
    EXPECT_OK(run.status());
    if (!run.ok()) return "";
    EXPECT_OK(PrepareCalls(&*run, options));
    EXPECT_OK(VerifyGraph(*run->graph));
    for (const Node* const target : run->signature.target_nodes) {
      EXPECT_EQ(run->graph->FindNode(target->name()), target);
    }
    run_ = *std::move(run);
    return NodesAsText(*run_.graph);
  }
  // What sessions give that put calls into the graph, and that do not.
  std::vector<std::vector<Tensor>> InlinedAndCalled(const std::vector<Feed>& feeds,
                                                    const std::vector<FetchName>& fetches) {
    std::vector<std::vector<Tensor>> results;
    for (const bool inlined : {true, false}) {
      SessionOptions options;
      if (!inlined) {
        tensorflow::ConfigProto config;
        config.mutable_graph_options()->mutable_rewrite_options()->set_function_optimization(
            tensorflow::RewriterConfig::OFF);
        options.config = SessionConfigOf(config);
      }
      auto session = NewSession(options);
      EXPECT_OK(session.status());
      EXPECT_OK((*session)->Extend(root_));
      auto out = (*session)->Run(feeds, fetches);
      EXPECT_OK(out.status());
      results.push_back(out.ok() ? *std::move(out) : std::vector<Tensor>(fetches.size()));
    }
    return results;
  }

  Scope root_;
  RunGraph run_;
  Output x_ = Placeholder(root_.WithName("x"), DT_FLOAT, {2});
};

TEST_F(CallsTest, NodesOfTheFunctionTakeThePlaceOfTheCall) {
  const DefinedFunction f =
      DefineFunction(root_, "f", {DT_FLOAT}, [](const Scope& s, const Outputs& x) {
        const Output two = Const(s.WithName("two"), 2.0f);
        return Outputs{Mul(s.WithName("twice"), x[0], two), x[0]};
      });
  const Outputs y = Call(root_.WithName("call"), f, {x_});
  Add(root_.WithName("sum"), y[0], y[1]);
  EXPECT_EQ(Prepared({{"x"}, {"sum"}, {}}),
            "_arg_x_0_0 = _Arg()\n"
            "_retval_sum_0_0 = _Retval(sum)\n"
            "call/twice = Mul(_arg_x_0_0, call/two)\n"
            "call/two = Const() float[]: 2\n"
            "sum = Add(call/twice, _arg_x_0_0)\n");
  EXPECT_EQ(Prepared({{"x"}, {"sum"}, {}}, {.inline_calls = false}),
            "_arg_x_0_0 = _Arg()\n"
            "_retval_sum_0_0 = _Retval(sum)\n"
            "call = PartitionedCall(_arg_x_0_0)\n"
            "sum = Add(call, call:1)\n");
}

TEST_F(CallsTest, CallsInCallsAreNamedByBoth) {
  const DefinedFunction inner = DefineFunction(
      root_, "inner", {DT_FLOAT},
      [](const Scope& s, const Outputs& x) { return Outputs{Neg(s.WithName("neg"), x[0])}; });
  const DefinedFunction outer =
      DefineFunction(root_, "outer", {DT_FLOAT}, [&](const Scope& s, const Outputs& x) {
        return Call(s.WithName("again"), inner, Call(s.WithName("once"), inner, x));
      });
  Identity(root_.WithName("y"), Call(root_.WithName("call"), outer, {x_})[0]);
  EXPECT_EQ(Prepared({{"x"}, {"y"}, {}}),
            "_arg_x_0_0 = _Arg()\n"
            "_retval_y_0_0 = _Retval(y)\n"
            "call/again/neg = Neg(call/once/neg)\n"
            "call/once/neg = Neg(_arg_x_0_0)\n"
            "y = Identity(call/again/neg)\n");
}

TEST_F(CallsTest, EffectsComeAfterTheInputsAndBeforeTheResults) {
  const Output v = VarHandleOp(root_.WithName("v"), DT_FLOAT, {2});
  const DefinedFunction f =
      DefineFunction(root_, "f", {DT_FLOAT}, [&](const Scope& s, const Outputs& x) {
        AssignAddVariableOp(s.WithName("add"), v,
                            Const(s.WithName("one"), TensorOf<float>({2}, {1, 1})));
        return Outputs{Neg(s.WithName("neg"), x[0])};
      });
  const Operation before = NoOp(root_.WithName("before"));
  const Outputs y = Call(root_.WithName("call").WithControlDependencies({before}), f, {x_});
  NoOp(root_.WithName("after").WithControlDependencies({y[0].op()}));
  EXPECT_EQ(Prepared({{"x"}, {"call"}, {"after"}}),
            "_arg_x_0_0 = _Arg()\n"
            "_retval_call_0_0 = _Retval(call/neg_1_RetVal)\n"
            "after = NoOp(^call)\n"
            "before = NoOp()\n"
            "call = NoOp(^call/neg_1_RetVal, ^call/start)\n"
            "call/add = AssignAddVariableOp(call/v, call/one, ^call/start)\n"
            "call/arg0 = Identity(_arg_x_0_0, ^before)\n"
            "call/effects = NoOp(^call/add)\n"
            "call/neg = Neg(call/arg0)\n"
            "call/neg_1_RetVal = Identity(call/neg, ^call/effects)\n"
            "call/one = Const() float[2]: 1 1\n"
            "call/start = NoOp(^before, ^call/arg0, ^call/v)\n"
            "call/v = Identity(v, ^before)\n"
            "v = VarHandleOp()\n");
  EXPECT_EQ(run_.signature.target_nodes[0]->name(), "after");
  // The call as a target.
  Prepared({{"x"}, {}, {"call"}});
  ASSERT_EQ(run_.signature.target_nodes.size(), 1u);
  EXPECT_EQ(run_.signature.target_nodes[0]->op(), "NoOp");
}

TEST_F(CallsTest, AnEffectThatIsNotTakenLeavesTheCallAlive) {
  const Output v = VarHandleOp(root_.WithName("v"), DT_FLOAT, PartialShape::Scalar());
  const DefinedFunction f =
      DefineFunction(root_, "f", {DT_FLOAT, DT_BOOL}, [&](const Scope& s, const Outputs& x) {
        const SwitchOutputs ways = Switch(s, x[0], x[1]);
        AssignVariableOp(s, v, ways.output_true);
        return Outputs{Neg(s, x[0])};
      });
  const DefinedFunction no_result = DefineFunction(root_, "no_result", {DT_FLOAT, DT_BOOL},
                                                   [&](const Scope& s, const Outputs& x) {
                                                     Call(s, f, x);
                                                     return Outputs{};
                                                   });
  const Output pred = Placeholder(root_.WithName("pred"), DT_BOOL, PartialShape::Scalar());
  const Output x = Placeholder(root_.WithName("one"), DT_FLOAT, PartialShape::Scalar());
  const Operation init = AssignVariableOp(root_, v, Const(root_, 1.0f));
  const Output y = Call(root_.WithControlDependencies({init}), f, {x, pred})[0];
  const Operation end =
      CallOperation(root_.WithControlDependencies({y.op()}), no_result, {x, pred});
  const Output after = ReadVariableOp(root_.WithControlDependencies({end}), v, DT_FLOAT);
  for (const bool taken : {true, false}) {
    SCOPED_TRACE(taken);
    const auto results = InlinedAndCalled(
        {{"one", Tensor::Scalar(5.0f)}, {"pred", Tensor::Scalar(taken)}}, {y, after});
    for (const auto& out : results) {
      ExpectTensorEqual(out[0], Tensor::Scalar(-5.0f));
      ExpectTensorEqual(out[1], Tensor::Scalar(taken ? 5.0f : 1.0f));
    }
  }
}

TEST_F(CallsTest, ADeadCallLeavesNothingAlive) {
  // Of the function's results one reads no argument, another only one of two.
  const DefinedFunction f =
      DefineFunction(root_, "f", {DT_FLOAT, DT_FLOAT}, [](const Scope& s, const Outputs& x) {
        return Outputs{Const(s.WithName("c"), TensorOf<float>({2}, {7, 8})), Neg(s, x[0]), x[1]};
      });
  const Output pred = Placeholder(root_.WithName("pred"), DT_BOOL, {});
  const SwitchOutputs ways = Switch(root_.WithName("switch"), x_, pred);
  const Outputs y = Call(root_.WithName("call"), f, {x_, ways.output_true});
  std::vector<FetchName> fetches;
  for (size_t i = 0; i < y.size(); ++i) {
    const Output other = Identity(root_, ways.output_false);
    fetches.emplace_back(Merge(root_, {y[i], other}).output);
    fetches.emplace_back(Merge(root_, {y[i], other}).value_index);
  }
  const Tensor x = TensorOf<float>({2}, {1, 2});
  for (const bool taken : {true, false}) {
    const auto results = InlinedAndCalled({{"x", x}, {"pred", Tensor::Scalar(taken)}}, fetches);
    for (size_t i = 0; i < fetches.size(); ++i) {
      ExpectTensorEqual(results[0][i], results[1][i]);
      if (i % 2 == 1) ExpectTensorEqual(results[0][i], Tensor::Scalar<int32_t>(taken ? 0 : 1));
    }
  }
}

TEST_F(CallsTest, FramesOfTwoCallsAreTwo) {
  const DefinedFunction f =
      DefineFunction(root_, "f", {DT_FLOAT}, [](const Scope& s, const Outputs& x) {
        const Output enter = NodeBuilder(s.WithName("enter"), "Enter")
                                 .Input(x[0])
                                 .Attr("frame_name", "loop")
                                 .Finish()
                                 .output(0);
        return Outputs{NodeBuilder(s.WithName("exit"), "Exit").Input(enter).Finish().output(0)};
      });
  if (!root_.ok()) GTEST_SKIP() << "loops are not there: " << root_.status();
  const Output a = Call(root_.WithName("a"), f, {x_})[0];
  const Output b = Call(root_.WithName("b"), f, {x_})[0];
  Add(root_.WithName("y"), a, b);
  Prepared({{"x"}, {"y"}, {}});
  const Node* const enter = run_.graph->FindNode("b/enter");
  ASSERT_NE(enter, nullptr);
  ASSERT_OK_AND_ASSIGN(const auto frame, GetAttr<std::string>(*enter, "frame_name"));
  EXPECT_EQ(frame, "b/loop");
}

TEST_F(CallsTest, DevicesOfTheCallFillInWhatTheFunctionLeavesOpen) {
  const DefinedFunction f =
      DefineFunction(root_, "f", {DT_FLOAT}, [](const Scope& s, const Outputs& x) {
        return Outputs{Neg(s.WithName("plain"), x[0]),
                       Neg(s.WithName("own").WithDevice("/cpu:1"), x[0])};
      });
  const Outputs y = Call(root_.WithName("call").WithDevice("/job:ps/task:3"), f, {x_});
  AddN(root_.WithName("y"), y);
  Prepared({{"x"}, {"y"}, {}});
  EXPECT_EQ(run_.graph->FindNode("call/plain")->requested_device(), "/job:ps/task:3");
  EXPECT_EQ(run_.graph->FindNode("call/own")->requested_device(), "/job:ps/task:3/device:CPU:1");
}

TEST_F(CallsTest, StatefulNodesKeepTheirIdentity) {
  const DefinedFunction inner =
      DefineFunction(root_, "inner", {}, [](const Scope& s, const Outputs&) {
        return Outputs{RandomUniform(s.WithName("dice"), Const<int32_t>(s, {2}), DT_FLOAT)};
      });
  const DefinedFunction outer = DefineFunction(
      root_, "outer", {},
      [&](const Scope& s, const Outputs&) { return Call(s.WithName("once"), inner, {}); });
  // A node that has the name already.
  NoOp(root_.WithName("call/once/dice"));
  const Outputs y = Call(root_.WithName("call"), outer, {});
  Identity(root_.WithName("y"), y[0]);
  Prepared({{}, {"y"}, {"call/once/dice"}});
  const Node* const dice = run_.graph->FindNode("call/once/dice_1");
  ASSERT_NE(dice, nullptr) << NodesAsText(*run_.graph);
  ASSERT_OK_AND_ASSIGN(const std::string identity, IdentityOf(dice->attrs()));
  EXPECT_EQ(identity, "call\nonce\ndice");
}

TEST_F(CallsTest, TheSameStateInlinedAndCalled) {
  const DefinedFunction inner =
      DefineFunction(root_, "inner", {DT_FLOAT}, [](const Scope& s, const Outputs& x) {
        return Outputs{
            Add(s, x[0], RandomUniform(s, Const<int32_t>(s, {2}), DT_FLOAT, {.seed = 7}))};
      });
  const DefinedFunction outer = DefineFunction(
      root_, "outer", {DT_FLOAT},
      [&](const Scope& s, const Outputs& x) { return Call(s, inner, Call(s, inner, x)); });
  std::vector<FetchName> fetches = {Call(root_, outer, {x_})[0], Call(root_, outer, {x_})[0],
                                    Call(root_, inner, {x_})[0]};
  const auto results = InlinedAndCalled({{"x", TensorOf<float>({2}, {1, 2})}}, fetches);
  for (size_t i = 0; i < fetches.size(); ++i) ExpectTensorEqual(results[0][i], results[1][i]);
}

TEST_F(CallsTest, CallsThatWouldFillTheGraphStayCalls) {
  // f30 calls f29 twice, which calls f28 twice ...
  DefinedFunction f = DefineFunction(root_, "f", {DT_FLOAT}, [](const Scope& s, const Outputs& x) {
    return Outputs{Neg(s, x[0])};
  });
  for (int i = 0; i < 30; ++i) {
    f = DefineFunction(root_, absl::StrCat("f", i), {DT_FLOAT},
                       [&](const Scope& s, const Outputs& x) { return Call(s, f, Call(s, f, x)); });
  }
  Identity(root_.WithName("y"), Call(root_, f, {x_})[0]);
  ASSERT_OK_AND_ASSIGN(RunGraph run, BuildRunGraph(*root_.graph(), {{"x"}, {"y"}, {}}));
  ASSERT_OK(PrepareCalls(&run, {}));
  EXPECT_LE(run.graph->num_nodes(), kMaxInlinedNodes + 10);
  EXPECT_GT(run.graph->num_nodes(), 1000);
  // And a chain that is too long.
  DefinedFunction g = DefineFunction(root_, "g", {DT_FLOAT}, [](const Scope& s, const Outputs& x) {
    return Outputs{Neg(s, x[0])};
  });
  for (int i = 0; i < 3 * kMaxInlineDepth; ++i) {
    g = DefineFunction(root_, "g", {DT_FLOAT},
                       [&](const Scope& s, const Outputs& x) { return Call(s, g, x); });
  }
  const Output z = Call(root_, g, {x_})[0];
  const auto results = InlinedAndCalled({{"x", TensorOf<float>({2}, {1, 2})}}, {z});
  for (const auto& out : results) ExpectTensorEqual(out[0], TensorOf<float>({2}, {-1, -2}));
}

TEST_F(CallsTest, OptionsAreThoseOfTheConfig) {
  using tensorflow::RewriterConfig;
  struct Case {
    tensorflow::OptimizerOptions::Level level;
    RewriterConfig::Toggle toggle;
    bool inlines;
  };
  constexpr auto kL0 = tensorflow::OptimizerOptions::L0, kL1 = tensorflow::OptimizerOptions::L1;
  for (const Case& c :
       {Case{kL1, RewriterConfig::DEFAULT, true}, Case{kL1, RewriterConfig::OFF, false},
        Case{kL0, RewriterConfig::DEFAULT, false}, Case{kL0, RewriterConfig::ON, true}}) {
    tensorflow::GraphOptions options;
    options.mutable_optimizer_options()->set_opt_level(c.level);
    options.mutable_rewrite_options()->set_function_optimization(c.toggle);
    EXPECT_EQ(CallOptionsFor(options).inline_calls, c.inlines);
    options.mutable_rewrite_options()->add_optimizers("constfold");
    EXPECT_FALSE(CallOptionsFor(options).inline_calls);
    options.mutable_rewrite_options()->add_optimizers("function");
    EXPECT_TRUE(CallOptionsFor(options).inline_calls);
  }
  tensorflow::GraphOptions options;
  options.mutable_rewrite_options()->set_disable_meta_optimizer(true);
  EXPECT_FALSE(CallOptionsFor(options).inline_calls);
}

TEST_F(CallsTest, ToolsInlineEverything) {
  const DefinedFunction f = DefineFunction(root_, "f", {DT_FLOAT},
                                           [](const Scope& s, const Outputs& x) {
                                             return Outputs{Neg(s.WithName("neg"), x[0]), x[0]};
                                           },
                                           {.no_inline = true});
  Call(root_.WithName("call"), f, {x_});
  Neg(root_.WithName("y"), Call(root_.WithName("other"), f, {x_})[1]);
  ASSERT_OK_AND_ASSIGN(const auto graph, CopyGraph(*root_.graph()));
  const std::vector<std::string> keep = {"call", "y"};
  ASSERT_OK(InlineAllCalls(graph.get(), keep));
  EXPECT_TRUE(graph->library().empty());
  EXPECT_EQ(NodesAsText(*graph),
            "call = IdentityN(call/neg, x)\n"
            "call/neg = Neg(x)\n"
            "other/neg = Neg(x)\n"
            "x = Placeholder()\n"
            "y = Neg(x)\n");
}

TEST_F(CallsTest, WrongCallsAreNamed) {
  DefineFunction(root_, "f", {DT_FLOAT}, [](const Scope&, const Outputs& x) { return x; });
  tensorflow::FunctionDefLibrary more;
  tensorflow::FunctionDef* const g = more.add_function();
  g->mutable_signature()->set_name("g");
  tensorflow::NodeDef* const node = g->add_node_def();
  node->set_name("u");
  node->set_op("NobodyKnowsThis");
  ASSERT_OK_AND_ASSIGN(const auto library, root_.graph()->library().With(more));
  root_.graph()->set_library(library);
  for (const auto& [name, code, message] :
       std::vector<std::tuple<const char*, absl::StatusCode, const char*>>{
           {"h", absl::StatusCode::kNotFound, "PartitionedCall 'call': Function 'h': must be"},
           {"g", absl::StatusCode::kUnimplemented,
            "PartitionedCall 'call': Function 'g': node[0] 'u': op kind 'NobodyKnowsThis' is not "
            "registered"}}) {
    tensorflow::NodeDef def;
    def.set_name("call");
    def.set_op("PartitionedCall");
    (*def.mutable_attr())["Tin"].mutable_list();
    (*def.mutable_attr())["Tout"].mutable_list();
    (*def.mutable_attr())["f"].mutable_func()->set_name(name);
    ASSERT_OK_AND_ASSIGN(Node* const call, root_.graph()->AddNode(def));
    ASSERT_OK_AND_ASSIGN(RunGraph run, BuildRunGraph(*root_.graph(), {{}, {}, {"call"}}));
    EXPECT_STATUS(PrepareCalls(&run, {}), code, message);
    root_.graph()->RemoveNode(call);
  }
}

}  // namespace
}  // namespace millrace
