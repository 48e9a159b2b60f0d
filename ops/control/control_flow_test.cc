// SPDX-License-Identifier: Apache-2.0
#include "ops/control/control_flow.h"

#include <vector>

#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "ops/array/constant.h"
#include "ops/array/identity.h"
#include "runtime/testing/op_test.h"

namespace millrace {
namespace {

TEST(Switch, GivesTheValueToOneOutputAndLeavesTheOtherDead) {
  const Tensor x = TensorOf<float>({2}, {1, 2});
  for (const bool pred : {false, true}) {
    ASSERT_OK_AND_ASSIGN(
        const std::vector<Tensor> out,
        RunOp(OpCall("Switch").Input(x).Input(Tensor::Scalar<bool>(pred)).AllowDeadOutputs()));
    ASSERT_EQ(out.size(), 2u);
    ExpectTensorEqual(out[pred ? 1 : 0], x);
    EXPECT_FALSE(out[pred ? 0 : 1].has_value());
  }
  ExpectOpError(OpCall("Switch").Input(x).Input(TensorOf<bool>({1}, {true})).AllowDeadOutputs(),
                absl::StatusCode::kInvalidArgument, "pred must be a scalar, got shape [1]");
  EXPECT_SHAPE("Switch", {}, {"[2,?]", "[]"}, "[2,?];[2,?]");
  EXPECT_SHAPE_ERROR("Switch", {}, {"[2]", "[2]"}, "rank 0");
}

TEST(Merge, TakesTheInputThatIsNotDead) {
  const Tensor x = TensorOf<float>({2}, {1, 2});
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out,
                       RunOp(OpCall("Merge").Inputs({OpInput::Dead(DT_FLOAT), x})));
  ExpectTensorEqual(out[0], x);
  ExpectTensorEqual(out[1], Tensor::Scalar<int32_t>(1));
  EXPECT_SHAPE("Merge", {}, {"[2,3]", "[2,4]"}, "[2,?];[]");
  EXPECT_SHAPE("Merge", {}, {"[2]", "[2,4]"}, "<unknown>;[]");
}

TEST(Merge, OfDeadInputsOnlyIsDead) {
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out,
                       RunOp(OpCall("Merge")
                                 .Inputs({OpInput::Dead(DT_FLOAT), OpInput::Dead(DT_FLOAT)})
                                 .AllowDeadOutputs()));
  EXPECT_FALSE(out[0].has_value());
}

TEST(RefSwitch, PassesTheVariableOn) {
  const auto variable = TestVariable("v", TensorOf<float>({1}, {5}));
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out, RunOp(OpCall("RefSwitch")
                                                                .InputRef(variable)
                                                                .Input(Tensor::Scalar<bool>(true))
                                                                .AllowDeadOutputs()));
  ExpectTensorEqual(out[1], TensorOf<float>({1}, {5}));
}

TEST(RefMerge, PassesTheVariableOn) {
  const auto variable = TestVariable("v", TensorOf<float>({1}, {5}));
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out,
                       RunOp(OpCall("RefMerge").Inputs({OpInput(variable)})));
  ExpectTensorEqual(out[0], TensorOf<float>({1}, {5}));
  ExpectTensorEqual(out[1], Tensor::Scalar<int32_t>(0));
}

TEST(Conditional, EvaluatesOneBranch) {
  Scope scope;
  const Output x = TestInput(scope, DT_FLOAT), pred = TestInput(scope, DT_BOOL);
  const SwitchOutputs ways = Switch(scope, x, pred);
  const Output merged =
      Merge(scope, {Identity(scope, ways.output_false), ZerosLike(scope, ways.output_true)}).output;
  const Tensor value = TensorOf<float>({2}, {3, 4});
  ASSERT_OK_AND_ASSIGN(
      std::vector<Tensor> out,
      EvaluateGraph(scope, {{x, value}, {pred, Tensor::Scalar<bool>(false)}}, {merged}));
  ExpectTensorEqual(out[0], value);
  ASSERT_OK_AND_ASSIGN(
      out, EvaluateGraph(scope, {{x, value}, {pred, Tensor::Scalar<bool>(true)}}, {merged}));
  ExpectTensorEqual(out[0], TensorOf<float>({2}, {0, 0}));
}

TEST(ConditionalGradients, FlowBackTheWayThatWasTaken) {
  for (const bool pred : {false, true}) {
    ExpectGradientsMatch(
        [pred](const Scope& s, const std::vector<Output>& in) {
          const SwitchOutputs ways = Switch(s, in[0], Const(s, pred));
          return Merge(s, {Identity(s, ways.output_false), ways.output_true}).output;
        },
        {TensorOf<double>({2}, {1, 2})});
    // One branch does not depend on the input.
    ExpectGradientsMatch(
        [pred](const Scope& s, const std::vector<Output>& in) {
          const Output p = Const(s, pred);
          const SwitchOutputs ways = Switch(s, in[0], p);
          const SwitchOutputs constant = Switch(s, Const(s, TensorOf<double>({2}, {7, 8})), p);
          return Merge(s, {constant.output_false, ways.output_true}).output;
        },
        {TensorOf<double>({2}, {1, 2})});
  }
}

TEST(ControlTrigger, HasNoOutputs) {
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out, RunOp(OpCall("ControlTrigger")));
  EXPECT_TRUE(out.empty());
}

}  // namespace
}  // namespace millrace
