// SPDX-License-Identifier: Apache-2.0
//
// Constants and handles of variables that a plan has bound: steps do not run their nodes, and
// nobody can tell.
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "graph/node_builder.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "ops/array/constant.h"
#include "ops/array/placeholder.h"
#include "ops/control/control_flow.h"
#include "ops/state/state.h"
#include "proto/config.pb.h"
#include "runtime/kernel.h"
#include "runtime/plan.h"
#include "runtime/session.h"
#include "runtime/session/direct_session.h"
#include "runtime/testing/step_ops.h"

namespace millrace {
namespace {

using testing::SetHook;

Output Probe(const ScopeAt& at, const std::string& hook, const std::vector<Output>& inputs) {
  return NodeBuilder(at, "TestProbe")
      .Input(absl::MakeConstSpan(inputs))
      .Attr("N", static_cast<int64_t>(inputs.size()))
      .Attr("M", int64_t{1})
      .Attr("hook", hook)
      .Finish()
      .output(0);
}

class BoundNodesTest : public ::testing::TestWithParam<int> {
 protected:
  BoundNodesTest() {
    SetHook("sum", [](KernelContext* ctx) -> Status {
      float sum = 0;
      for (int i = 0; i < ctx->num_inputs(); ++i) {
        for (const float value : ctx->input(i).flat<float>()) sum += value;
      }
      ctx->set_output(0, Tensor::Scalar<float>(sum));
      return absl::OkStatus();
    });
    // Takes all inputs.
    SetHook("take", [](KernelContext* ctx) -> Status {
      float sum = 0;
      for (int i = 0; i < ctx->num_inputs(); ++i) {
        const Tensor own = ctx->TakeInput(i);
        if (i == 2 && own.shape() != ShapeOf({2})) {
          return InvalidArgument("input 2 must have shape [2], got ", own.shape());
        }
        for (const float value : own.flat<float>()) sum += value;
      }
      ctx->set_output(0, Tensor::Scalar<float>(sum));
      return absl::OkStatus();
    });
    SetHook("fail_above_1", [](KernelContext* ctx) -> Status {
      if (ctx->input(0).scalar<float>() > 1) return absl::DataLossError("wanted");
      ctx->set_output(0, ctx->input(1));
      return absl::OkStatus();
    });
  }
  ~BoundNodesTest() override { testing::ClearHooks(); }

  Session* Make(const Scope& scope) {
    SessionOptions options;
    options.config.intra_op_parallelism_threads = GetParam();
    auto session = NewSession(options);
    EXPECT_OK(session);
    session_ = *std::move(session);
    EXPECT_OK(session_->Extend(scope));
    return session_.get();
  }
  StatusOr<float> Run(const std::vector<Feed>& feeds, const Output& fetch) {
    MR_ASSIGN_OR_RETURN(const std::vector<Tensor> out, session_->Run(feeds, {fetch}));
    return out[0].scalar<float>();
  }
  static Tensor Number(float value) { return Tensor::Scalar<float>(value); }

  std::unique_ptr<Session> session_;
};
INSTANTIATE_TEST_SUITE_P(Threads, BoundNodesTest, ::testing::Values(1, 2));

TEST_P(BoundNodesTest, EveryStepSeesTheSameConstants) {
  Scope root;
  const Output x = Placeholder(root.WithName("x"), DT_FLOAT, PartialShape::Scalar());
  const Output two = Const(root, 2.f), ten = Const(root, 10.f);
  const Output y = Probe(root, "sum", {two, x, ten, two});
  Make(root);
  for (int i = 0; i < 5; ++i) {
    const auto got = Run({{x, Number(static_cast<float>(i))}}, y);
    ASSERT_OK(got);
    EXPECT_EQ(*got, 14 + static_cast<float>(i));
  }
}

TEST_P(BoundNodesTest, AKernelMayTakeAnInputThatIsBound) {
  Scope root;
  const Output x = Placeholder(root.WithName("x"), DT_FLOAT, PartialShape::Scalar());
  const Output two = Const(root, 2.f);
  const Output pair = Const(root, {1.5f, 0.5f}), nothing = Const(root, Tensor::Vector<float>({}));
  const Output y = Probe(root, "sum", {Probe(root, "take", {two, x, pair, nothing}), pair});
  Make(root);
  for (int i = 0; i < 5; ++i) {
    const auto got = Run({{x, Number(static_cast<float>(i))}}, y);
    ASSERT_OK(got);
    EXPECT_EQ(*got, 6 + static_cast<float>(i));
  }
}

TEST_P(BoundNodesTest, AfterAStepThatFailedConstantsAreThereAgain) {
  Scope root;
  const Output x = Placeholder(root.WithName("x"), DT_FLOAT, PartialShape::Scalar());
  const Output y = Probe(root, "fail_above_1", {x, Const(root, 7.f)});
  Make(root);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(Run({{x, Number(2)}}, y).status().code(), absl::StatusCode::kDataLoss);
    const auto got = Run({{x, Number(0)}}, y);
    ASSERT_OK(got);
    EXPECT_EQ(*got, 7);
  }
}

TEST_P(BoundNodesTest, ADeadNodeKeepsWhatIsBound) {
  Scope root;
  const Output x = Placeholder(root.WithName("x"), DT_FLOAT, PartialShape::Scalar());
  const Output p = Placeholder(root.WithName("p"), DT_BOOL, PartialShape::Scalar());
  const auto sides = Switch(root, x, p);
  const Output on = Probe(root, "sum", {sides.output_true, Const(root, 100.f)});
  const Output off = Probe(root, "sum", {sides.output_false, Const(root, 200.f)});
  const Output y = Merge(root, {off, on}).output;
  Make(root);
  for (const bool side : {true, false, false, true, true, false}) {
    const auto got = Run({{x, Number(1)}, {p, Tensor::Scalar<bool>(side)}}, y);
    ASSERT_OK(got);
    EXPECT_EQ(*got, side ? 101 : 201);
  }
}

TEST_P(BoundNodesTest, AVariableThatWasDestroyedIsMadeAnew) {
  Scope root;
  const Output x = Placeholder(root.WithName("x"), DT_FLOAT, PartialShape::Scalar());
  const Output v = VarHandleOp(root.WithName("v"), DT_FLOAT, PartialShape::Scalar());
  const Operation assign = AssignVariableOp(root.WithName("assign"), v, x);
  const Operation destroy = DestroyResourceOp(root.WithName("destroy"), v);
  const Output y = Probe(root, "sum", {ReadVariableOp(root, v, DT_FLOAT), Const(root, 1.f)});
  Session* const session = Make(root);
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(absl::IsFailedPrecondition(Run({}, y).status()));
    for (const float value : {5.f, 6.f}) {
      ASSERT_OK(session->Run({{x, Number(value)}}, {}, {assign}));
      const auto got = Run({}, y);
      ASSERT_OK(got);
      EXPECT_EQ(*got, value + 1);
    }
    ASSERT_OK(session->Run({}, {}, {destroy}));
  }
}

TEST_P(BoundNodesTest, ATraceShowsEveryNode) {
  Scope root;
  const Output x = Placeholder(root.WithName("x"), DT_FLOAT, PartialShape::Scalar());
  const Output y = Probe(root.WithName("y"), "sum", {Const(root.WithName("c"), 2.f), x});
  Session* const session = Make(root);
  for (const auto level : {tensorflow::RunOptions::NO_TRACE, tensorflow::RunOptions::FULL_TRACE,
                           tensorflow::RunOptions::NO_TRACE, tensorflow::RunOptions::FULL_TRACE}) {
    tensorflow::RunOptions options;
    options.set_trace_level(level);
    tensorflow::RunMetadata metadata;
    const auto out = session->Run(options, {{x, Number(1)}}, {y}, {}, &metadata);
    ASSERT_OK(out);
    EXPECT_EQ((*out)[0].scalar<float>(), 3);
    if (level == tensorflow::RunOptions::NO_TRACE) continue;
    std::map<std::string, int> times;
    for (const auto& node : metadata.step_stats().dev_stats(0).node_stats()) {
      ++times[node.node_name()];
    }
    EXPECT_EQ(times["c"], 1);
    EXPECT_EQ(times["y"], 1);
  }
}

// Which nodes are bound, by name.
std::string BoundOf(const Scope& scope) {
  testing::TestStep step;
  EXPECT_OK(scope.status());
  SetHook("sum", [](KernelContext*) -> Status { return absl::OkStatus(); });
  testing::SetAsyncHook("later", [](KernelContext*, AsyncKernel::DoneCallback) {});
  const auto plan = Plan::Build(*scope.graph(), &step.device, nullptr);
  EXPECT_OK(plan);
  std::string names;
  for (const uint32_t index : (*plan)->bound()) {
    names += *(*plan)->nodes()[index].name + " ";
    for (const uint32_t root : (*plan)->roots()) EXPECT_NE(root, index);
  }
  return names;
}

TEST(BoundPlanTest, ReadersThatHandOnOrAnswerLaterKeepANodeFromBeingBound) {
  Scope root;
  const Output bound = Const(root.WithName("bound"), 1.f);
  const Output v = VarHandleOp(root.WithName("v"), DT_FLOAT, PartialShape::Scalar());
  ReadVariableOp(root.WithName("read"), v, DT_FLOAT);
  Probe(root.WithName("probe"), "sum", {bound});
  const Output waits = Const(root.WithName("waits"), 1.f);
  NodeBuilder(root.WithName("async"), "TestProbeAsync")
      .Input(absl::MakeConstSpan({waits}))
      .Attr("N", int64_t{1})
      .Attr("M", int64_t{1})
      .Attr("hook", "later")
      .Finish();
  const Output merged = Const(root.WithName("merged"), 1.f);
  Merge(root.WithName("merge"), {merged, bound});
  PlaceholderWithDefault(root.WithName("passes"), Const(root.WithName("passed"), 1.f), {});
  Const(root.WithName("unread"), 1.f);
  const Output after = Const(root.WithName("after").WithControlDependencies({merged.op()}), 1.f);
  Probe(root.WithName("reads_after"), "sum", {after});
  EXPECT_EQ(BoundOf(root), "v ");
}

TEST(BoundPlanTest, ConstantsAndHandlesAreBound) {
  Scope root;
  const Output c = Const(root.WithName("c"), 1.f);
  const Output v = VarHandleOp(root.WithName("v"), DT_FLOAT, PartialShape::Scalar());
  Probe(root.WithName("probe"), "sum", {c, ReadVariableOp(root.WithName("read"), v, DT_FLOAT), c});
  EXPECT_EQ(BoundOf(root), "c v ");
}

}  // namespace
}  // namespace millrace
