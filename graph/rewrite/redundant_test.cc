// SPDX-License-Identifier: Apache-2.0
#include "graph/rewrite/redundant.h"

#include "core/dtype.h"
#include "core/shape.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "graph/rewrite/testing/rewrite_test.h"
#include "graph/scope.h"
#include "graph/signature.h"
#include "ops/array/constant.h"
#include "ops/array/placeholder.h"
#include "ops/array/reshape.h"
#include "ops/array/transpose.h"
#include "ops/math/cast.h"
#include "ops/math/cwise_unary.h"

namespace millrace {
namespace {

class RedundantTest : public testing::RewriteTest {
 protected:
  std::string After(const RunSignature& signature) {
    return RewriteTest::After("redundant", signature);
  }
  // y = Neg(value)
  void Read(Output value) { Neg(root_.WithName("y"), value); }

  const RunSignature signature_ = {{"x"}, {"y"}, {}};
  const std::string only_neg_ =
      "_arg_x_0_0 = _Arg()\n"
      "_retval_y_0_0 = _Retval(y)\n"
      "y = Neg(_arg_x_0_0)\n";
};

TEST_F(RedundantTest, ACastToTheSameTypeGoes) {
  const Output x = Placeholder(root_.WithName("x"), DT_FLOAT, {-1});
  Read(Cast(root_.WithName("cast"), x, DT_FLOAT));
  EXPECT_EQ(Before(signature_),
            "_arg_x_0_0 = _Arg()\n"
            "_retval_y_0_0 = _Retval(y)\n"
            "cast = Cast(_arg_x_0_0)\n"
            "y = Neg(cast)\n");
  EXPECT_EQ(After(signature_), only_neg_);
}

TEST_F(RedundantTest, ThereAndBackGoesWhenEveryValueSurvives) {
  const Output x = Placeholder(root_.WithName("x"), DT_INT32, {-1});
  Read(Cast(root_.WithName("back"), Cast(root_.WithName("there"), x, DT_INT64), DT_INT32));
  EXPECT_EQ(After(signature_), only_neg_);
}

TEST_F(RedundantTest, CastsThatLoseValuesStay) {
  for (const auto& [from, to] : std::vector<std::pair<DType, DType>>{
           {DT_INT64, DT_INT32}, {DT_FLOAT, DT_DOUBLE}, {DT_INT32, DT_FLOAT}}) {
    Scope scope;
    std::swap(scope, root_);
    const Output x = Placeholder(root_.WithName("x"), from, {-1});
    Read(Cast(root_.WithName("back"), Cast(root_.WithName("there"), x, to), from));
    EXPECT_EQ(After(signature_), Before(signature_));
  }
}

TEST_F(RedundantTest, TransposesThatCancelGo) {
  const Output x = Placeholder(root_.WithName("x"), DT_FLOAT, {2, -1, 4});
  const Output there = Transpose(root_.WithName("there"), x, Const(root_.WithName("p"), {2, 0, 1}));
  Read(Transpose(root_.WithName("back"), there, Const(root_.WithName("q"), {1, 2, 0})));
  EXPECT_EQ(After(signature_), only_neg_);
  Tensor value = TensorOf<float>({2, 1, 4}, {1, 2, 3, 4, 5, 6, 7, 8});
  ASSERT_OK(ExpectSameResults({{"x", value}}, {"y"}).status());
}

TEST_F(RedundantTest, ATransposeInOrderGoesAndAnotherStays) {
  const Output x = Placeholder(root_.WithName("x"), DT_FLOAT, {2, 3});
  const Output same = Transpose(root_.WithName("same"), x, Const(root_.WithName("p"), {0, 1}));
  Read(Transpose(root_.WithName("other"), same, Const(root_.WithName("q"), {1, 0})));
  EXPECT_EQ(After(signature_),
            "_arg_x_0_0 = _Arg()\n"
            "_retval_y_0_0 = _Retval(y)\n"
            "other = Transpose(_arg_x_0_0, q)\n"
            "q = Const() int32[2]: 1 0\n"
            "y = Neg(other)\n");
}

// Of another rank it would fail.
TEST_F(RedundantTest, ATransposeOfUnknownRankStays) {
  const Output x = Placeholder(root_.WithName("x"), DT_FLOAT);
  Read(Transpose(root_.WithName("same"), x, Const(root_.WithName("p"), {0, 1})));
  EXPECT_EQ(After(signature_), Before(signature_));
  EXPECT_FALSE(ExpectSameResults({{"x", TensorOf<float>({2}, {1, 2})}}, {"y"}).ok());
}

TEST_F(RedundantTest, AReshapeToTheSameShapeGoes) {
  const Output x = Placeholder(root_.WithName("x"), DT_FLOAT, {-1, 3});
  Read(Reshape(root_.WithName("same"), x, Const(root_.WithName("shape"), {-1, 3})));
  EXPECT_EQ(After(signature_), only_neg_);
}

TEST_F(RedundantTest, AReshapeThatMayFailOrChangeStays) {
  const struct {
    PartialShape from;
    std::initializer_list<int32_t> to;
  } cases[] = {{{-1, 3}, {2, 3}},
               {{-1, -1}, {-1, 3}},
               {{-1, 0}, {-1, 0}},
               {{6}, {2, 3}},
               {PartialShape(), {-1, 3}}};
  for (const auto& c : cases) {
    Scope scope;
    std::swap(scope, root_);
    const Output x = Placeholder(root_.WithName("x"), DT_FLOAT, c.from);
    Read(Reshape(root_.WithName("same"), x, Const(root_.WithName("shape"), c.to)));
    EXPECT_EQ(After(signature_), Before(signature_));
  }
}

TEST_F(RedundantTest, OfTwoReshapesTheLastOneCounts) {
  const Output x = Placeholder(root_.WithName("x"), DT_FLOAT, {6});
  const Output inner = Reshape(root_.WithName("inner"), x, Const(root_.WithName("p"), {2, 3}));
  Read(Reshape(root_.WithName("outer"), inner, Const(root_.WithName("q"), {3, 2})));
  EXPECT_EQ(After(signature_),
            "_arg_x_0_0 = _Arg()\n"
            "_retval_y_0_0 = _Retval(y)\n"
            "outer = Reshape(_arg_x_0_0, q)\n"
            "q = Const() int32[2]: 3 2\n"
            "y = Neg(outer)\n");
}

TEST_F(RedundantTest, AnInnerReshapeThatMayFailStays) {
  const Output x = Placeholder(root_.WithName("x"), DT_FLOAT, {-1});
  const Output inner = Reshape(root_.WithName("inner"), x, Const(root_.WithName("p"), {2, -1}));
  Read(Reshape(root_.WithName("outer"), inner, Const(root_.WithName("q"), {-1})));
  EXPECT_EQ(After(signature_), Before(signature_));
  EXPECT_FALSE(ExpectSameResults({{"x", TensorOf<float>({3}, {1, 2, 3})}}, {"y"}).ok());
}

}  // namespace
}  // namespace millrace
