// SPDX-License-Identifier: Apache-2.0
#include "graph/rewrite/dead_branches.h"

#include "absl/strings/match.h"
#include "core/shape.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "graph/rewrite/testing/rewrite_test.h"
#include "graph/scope.h"
#include "graph/signature.h"
#include "ops/array/constant.h"
#include "ops/array/identity.h"
#include "ops/array/placeholder.h"
#include "ops/control/asserts.h"
#include "ops/control/control_flow.h"
#include "ops/math/cwise_binary.h"
#include "ops/math/cwise_unary.h"
#include "ops/random/random.h"

namespace millrace {
namespace {

class DeadBranchesTest : public testing::RewriteTest {
 protected:
  // pred ? exp(x) : -x, as TensorFlow's cond makes it.
  MergeOutputs Cond(Output pred) {
    const SwitchOutputs sides = Switch(root_.WithName("switch"), x_, pred);
    const Output yes = Exp(root_.WithName("yes"), sides.output_true);
    const Output no = Neg(root_.WithName("no"), sides.output_false);
    return Merge(root_.WithName("merge"), {no, yes});
  }
  std::string After(const RunSignature& signature) {
    return RewriteTest::After("dead_branches", signature);
  }

  Output x_ = Placeholder(root_.WithName("x"), DT_FLOAT, {2});
  Output true_ = Const(root_.WithName("true"), true);
};

TEST_F(DeadBranchesTest, AConstantPredicateLeavesOneBranch) {
  Identity(root_.WithName("y"), Cond(true_).output);
  const RunSignature signature = {{"x"}, {"y"}, {}};
  EXPECT_EQ(Before(signature),
            "_arg_x_0_0 = _Arg()\n"
            "_retval_y_0_0 = _Retval(y)\n"
            "merge = Merge(no, yes)\n"
            "no = Neg(switch)\n"
            "switch = Switch(_arg_x_0_0, true)\n"
            "true = Const() bool[]: true\n"
            "y = Identity(merge)\n"
            "yes = Exp(switch:1)\n");
  EXPECT_EQ(After(signature),
            "_arg_x_0_0 = _Arg()\n"
            "_retval_y_0_0 = _Retval(y)\n"
            "merge = Identity(yes)\n"
            "switch = Identity(_arg_x_0_0)\n"
            "y = Identity(merge)\n"
            "yes = Exp(switch)\n");
  ASSERT_OK(ExpectSameResults({{"x", TensorOf<float>({2}, {1, 2})}}, {"y"}).status());
}

TEST_F(DeadBranchesTest, TheIndexOfTheBranchIsAConstant) {
  const MergeOutputs merged = Cond(true_);
  Identity(root_.WithName("index"), merged.value_index);
  EXPECT_EQ(After({{"x"}, {"index"}, {}}),
            "_arg_x_0_0 = _Arg()\n"
            "_retval_index_0_0 = _Retval(index)\n"
            "index = Identity(merge/value_index)\n"
            "merge = Identity(yes)\n"
            "merge/value_index = Const(^merge) int32[]: 1\n"
            "switch = Identity(_arg_x_0_0)\n"
            "yes = Exp(switch)\n");
  ASSERT_OK(ExpectSameResults({{"x", TensorOf<float>({2}, {1, 2})}}, {"index"}).status());
}

TEST_F(DeadBranchesTest, APredicateThatIsFedDecidesInTheStep) {
  Cond(Placeholder(root_.WithName("pred"), DT_BOOL, PartialShape::Scalar()));
  const RunSignature signature = {{"x", "pred"}, {"merge"}, {}};
  EXPECT_EQ(After(signature), Before(signature));
}

// The fetch of a dead tensor fails in the step, as it does without rewrites.
TEST_F(DeadBranchesTest, ADeadFetchStaysDead) {
  Cond(true_);
  const RunSignature signature = {{"x"}, {"no"}, {}};
  EXPECT_EQ(After(signature), Before(signature));
  EXPECT_FALSE(ExpectSameResults({{"x", TensorOf<float>({2}, {1, 2})}}, {"no"}).ok());
  ASSERT_OK(ExpectSameResults({{"x", TensorOf<float>({2}, {1, 2})}}, {"merge"}, {"no"}).status());
}

// What only the dead branch needs is computed without rewrites, too: its error must not vanish.
TEST_F(DeadBranchesTest, WhatFailsBeforeADeadBranchFails) {
  const Output n = Placeholder(root_.WithName("n"), DT_INT32, PartialShape::Scalar());
  const Output bad = FloorDiv(root_.WithName("bad"), n, Const(root_.WithName("zero"), 0));
  const SwitchOutputs sides = Switch(root_.WithName("switch"), bad, true_);
  const Output no = Neg(root_.WithName("no"), sides.output_false);
  const Output yes = Const(root_.WithName("yes"), 1);
  Merge(root_.WithName("merge"), {no, yes});
  const StatusOr<std::vector<Tensor>> result =
      ExpectSameResults({{"n", TensorOf<int32_t>({}, {1})}}, {"merge"});
  EXPECT_TRUE(absl::StrContains(result.status().message(), "Integer division by zero"));
}

TEST_F(DeadBranchesTest, WhatNeverRunsGoesEvenWithAState) {
  const Output shape = Const(root_.WithName("shape"), {2});
  const SwitchOutputs sides = Switch(root_.WithName("switch"), shape, true_);
  const Output no = RandomUniform(root_.WithName("no"), sides.output_false, DT_FLOAT);
  Merge(root_.WithName("merge"), {no, x_});
  EXPECT_EQ(After({{"x"}, {"merge"}, {}}),
            "_arg_x_0_0 = _Arg()\n"
            "_retval_merge_0_0 = _Retval(merge)\n"
            "merge = Identity(_arg_x_0_0)\n");
}

// A Merge does not mind dead control inputs; an Identity would.
TEST_F(DeadBranchesTest, AMergeWithControlInputsStays) {
  const Output pred = Placeholder(root_.WithName("pred"), DT_BOOL, PartialShape::Scalar());
  const SwitchOutputs outer = Switch(root_.WithName("outer"), x_, pred);
  const Output side = Neg(root_.WithName("side"), outer.output_true);
  const SwitchOutputs sides = Switch(root_.WithName("switch"), x_, true_);
  Merge(root_.WithControlDependencies({side.op()}).WithName("merge"),
        {Neg(root_.WithName("no"), sides.output_false),
         Exp(root_.WithName("yes"), sides.output_true)});
  const RunSignature signature = {{"x", "pred"}, {"merge"}, {}};
  EXPECT_EQ(After(signature), Before(signature));
  for (const bool value : {false, true}) {
    ASSERT_OK(ExpectSameResults(
                  {{"x", TensorOf<float>({2}, {1, 2})}, {"pred", Tensor::Scalar(value)}}, {"merge"})
                  .status());
  }
}

TEST_F(DeadBranchesTest, BranchesInBranches) {
  const Output pred = Placeholder(root_.WithName("pred"), DT_BOOL, PartialShape::Scalar());
  const SwitchOutputs outer = Switch(root_.WithName("outer"), x_, pred);
  const Output inner_pred = Const(
      root_.WithControlDependencies({Identity(root_.WithName("pivot"), outer.output_true).op()})
          .WithName("inner_pred"),
      false);
  const SwitchOutputs inner = Switch(root_.WithName("inner"), outer.output_true, inner_pred);
  const MergeOutputs in = Merge(
      root_.WithName("in"),
      {Neg(root_.WithName("a"), inner.output_false), Exp(root_.WithName("b"), inner.output_true)});
  Merge(root_.WithName("out"), {Abs(root_.WithName("c"), outer.output_false), in.output});
  EXPECT_EQ(After({{"x", "pred"}, {"out"}, {}}),
            "_arg_pred_0_1 = _Arg()\n"
            "_arg_x_0_0 = _Arg()\n"
            "_retval_out_0_0 = _Retval(out)\n"
            "a = Neg(inner)\n"
            "c = Abs(outer)\n"
            "in = Identity(a)\n"
            "inner = Identity(outer:1, ^pivot)\n"
            "out = Merge(c, in)\n"
            "outer = Switch(_arg_x_0_0, _arg_pred_0_1)\n"
            "pivot = Identity(outer:1)\n");
  for (const bool value : {false, true}) {
    ASSERT_OK(ExpectSameResults(
                  {{"x", TensorOf<float>({2}, {1, 2})}, {"pred", Tensor::Scalar(value)}}, {"out"})
                  .status());
  }
}

}  // namespace
}  // namespace millrace
