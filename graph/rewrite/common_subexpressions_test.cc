// SPDX-License-Identifier: Apache-2.0
#include "graph/rewrite/common_subexpressions.h"

#include "core/testing/tensor_testing.h"
#include "graph/rewrite/testing/rewrite_test.h"
#include "graph/scope.h"
#include "graph/signature.h"
#include "ops/array/constant.h"
#include "ops/array/identity.h"
#include "ops/array/placeholder.h"
#include "ops/math/cwise_binary.h"
#include "ops/math/cwise_unary.h"
#include "ops/random/random.h"
#include "ops/strings/files.h"

namespace millrace {
namespace {

class CommonSubexpressionsTest : public testing::RewriteTest {
 protected:
  Output x_ = Placeholder(root_.WithName("x"), DT_FLOAT, {2});
  std::string After(const RunSignature& signature) {
    return RewriteTest::After("common_subexpressions", signature);
  }
};

TEST_F(CommonSubexpressionsTest, EqualNodesAreOne) {
  const Output a = Neg(root_.WithName("a"), x_), b = Neg(root_.WithName("b"), x_);
  const Output c = Exp(root_.WithName("c"), a), d = Exp(root_.WithName("d"), b);
  Add(root_.WithName("y"), c, d);
  const RunSignature signature = {{"x"}, {"y"}, {}};
  EXPECT_EQ(Before(signature),
            "_arg_x_0_0 = _Arg()\n"
            "_retval_y_0_0 = _Retval(y)\n"
            "a = Neg(_arg_x_0_0)\n"
            "b = Neg(_arg_x_0_0)\n"
            "c = Exp(a)\n"
            "d = Exp(b)\n"
            "y = Add(c, d)\n");
  EXPECT_EQ(After(signature),
            "_arg_x_0_0 = _Arg()\n"
            "_retval_y_0_0 = _Retval(y)\n"
            "a = Neg(_arg_x_0_0)\n"
            "c = Exp(a)\n"
            "y = Add(c, c)\n");
}

TEST_F(CommonSubexpressionsTest, ConstantsAreComparedByTheirBits) {
  Add(root_.WithName("p"), x_, Const(root_.WithName("zero"), 0.f));
  Add(root_.WithName("q"), x_, Const(root_.WithName("minus_zero"), -0.f));
  Add(root_.WithName("r"), x_, Const(root_.WithName("zero_again"), 0.f));
  EXPECT_EQ(After({{"x"}, {"p", "q", "r"}, {}}),
            "_arg_x_0_0 = _Arg()\n"
            "_retval_p_0_0 = _Retval(p)\n"
            "_retval_q_0_1 = _Retval(q)\n"
            "_retval_r_0_2 = _Retval(p)\n"
            "minus_zero = Const() float[]: -0\n"
            "p = Add(_arg_x_0_0, zero)\n"
            "q = Add(_arg_x_0_0, minus_zero)\n"
            "zero = Const() float[]: 0\n");
}

TEST_F(CommonSubexpressionsTest, WhatDiffersStaysApart) {
  const Output y = Placeholder(root_.WithName("y"), DT_FLOAT, {2});
  const Operation first = Neg(root_.WithName("first"), x_).op();
  Add(root_.WithName("a"), x_, y);
  Add(root_.WithName("swapped"), y, x_);
  Add(root_.WithControlDependencies({first}).WithName("later"), x_, y);
  Add(root_.WithDevice("/device:CPU:1").WithName("elsewhere"), x_, y);
  AddV2(root_.WithName("other_op"), x_, y);
  const RunSignature signature = {
      {"x", "y"}, {"a", "swapped", "later", "elsewhere", "other_op"}, {}};
  EXPECT_EQ(After(signature), Before(signature));
}

TEST_F(CommonSubexpressionsTest, RandomOpsAndTargetsStayApart) {
  const Output shape = Const(root_.WithName("shape"), {2});
  RandomUniform(root_.WithName("a"), shape, DT_FLOAT, {.seed = 1});
  RandomUniform(root_.WithName("b"), shape, DT_FLOAT, {.seed = 1});
  Neg(root_.WithName("c"), x_);
  Neg(root_.WithName("d"), x_);
  const RunSignature signature = {{"x"}, {"a", "b"}, {"c", "d"}};
  EXPECT_EQ(After(signature), Before(signature));
}

TEST_F(CommonSubexpressionsTest, EachReadOfAFileStays) {
  const Output name = Const(root_.WithName("name"), "words.txt");
  ReadFile(root_.WithName("a"), name);
  ReadFile(root_.WithName("b"), name);
  const RunSignature signature = {{}, {"a", "b"}, {}};
  EXPECT_EQ(After(signature), Before(signature));
}

TEST_F(CommonSubexpressionsTest, WhatRanAfterTheOneRunsAfterTheOther) {
  Neg(root_.WithName("a"), x_);
  const Operation b = Neg(root_.WithName("b"), x_).op();
  Exp(root_.WithControlDependencies({b}).WithName("y"), x_);
  EXPECT_EQ(After({{"x"}, {"y", "a"}, {}}),
            "_arg_x_0_0 = _Arg()\n"
            "_retval_a_0_1 = _Retval(a)\n"
            "_retval_y_0_0 = _Retval(y)\n"
            "a = Neg(_arg_x_0_0)\n"
            "y = Exp(_arg_x_0_0, ^a)\n");
}

// Two placeholders that nobody fed are two errors.
TEST_F(CommonSubexpressionsTest, ValuesThatAreFedAreNotMerged) {
  const Output p = Placeholder(root_.WithName("p"), DT_FLOAT),
               q = Placeholder(root_.WithName("q"), DT_FLOAT);
  Add(root_.WithName("y"), p, q);
  const RunSignature signature = {{}, {"y"}, {}};
  EXPECT_EQ(After(signature), Before(signature));
}

}  // namespace
}  // namespace millrace
