// SPDX-License-Identifier: Apache-2.0
#include "graph/rewrite/shapes.h"

#include "core/shape.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "graph/node_builder.h"
#include "graph/rewrite/testing/rewrite_test.h"
#include "graph/scope.h"
#include "graph/signature.h"
#include "ops/array/concat.h"
#include "ops/array/constant.h"
#include "ops/array/identity.h"
#include "ops/array/placeholder.h"
#include "ops/array/reshape.h"
#include "ops/array/slice.h"
#include "ops/control/control_flow.h"
#include "ops/math/cwise_binary.h"
#include "ops/math/cwise_unary.h"
#include "proto/versions.pb.h"

namespace millrace {
namespace {

class ShapesTest : public testing::RewriteTest {
 protected:
  std::string After(const RunSignature& signature) {
    return RewriteTest::After("shapes", signature);
  }
};

TEST_F(ShapesTest, KnownShapesBecomeConstants) {
  const Output x = Placeholder(root_.WithName("x"), DT_FLOAT, {2, 3});
  Neg(root_.WithName("a"), ShapeOf(root_.WithName("shape"), x));
  Neg(root_.WithName("b"), Size(root_.WithName("size"), x));
  Neg(root_.WithName("c"), Rank(root_.WithName("rank"), x));
  const RunSignature signature = {{"x"}, {"a", "b", "c"}, {}};
  EXPECT_EQ(Before(signature),
            "_arg_x_0_0 = _Arg()\n"
            "_retval_a_0_0 = _Retval(a)\n"
            "_retval_b_0_1 = _Retval(b)\n"
            "_retval_c_0_2 = _Retval(c)\n"
            "a = Neg(shape)\n"
            "b = Neg(size)\n"
            "c = Neg(rank)\n"
            "rank = Rank(_arg_x_0_0)\n"
            "shape = Shape(_arg_x_0_0)\n"
            "size = Size(_arg_x_0_0)\n");
  EXPECT_EQ(After(signature),
            "_arg_x_0_0 = _Arg()\n"
            "_retval_a_0_0 = _Retval(a)\n"
            "_retval_b_0_1 = _Retval(b)\n"
            "_retval_c_0_2 = _Retval(c)\n"
            "a = Neg(shape)\n"
            "b = Neg(size)\n"
            "c = Neg(rank)\n"
            "rank = Const() int32[]: 2\n"
            "shape = Const() int32[2]: 2 3\n"
            "size = Const() int32[]: 6\n");
}

// x.shape[1] of [?,784] is known, x.shape[0] is not. What is computed may fail, so it still comes
// first.
TEST_F(ShapesTest, SingleElementsAreKnown) {
  const Output x = Placeholder(root_.WithName("x"), DT_FLOAT, {-1, 784});
  const Output e = Exp(root_.WithName("e"), x);
  const Output shape = ShapeOf(root_.WithName("shape"), e);
  const Output begin = Const(root_.WithName("begin"), {1}), end = Const(root_.WithName("end"), {2});
  const Output width =
      StridedSlice(root_.WithName("width"), shape, begin, end, begin, {.shrink_axis_mask = 1});
  Neg(root_.WithName("y"), width);
  EXPECT_EQ(After({{"x"}, {"y"}, {}}),
            "_arg_x_0_0 = _Arg()\n"
            "_retval_y_0_0 = _Retval(y)\n"
            "e = Exp(_arg_x_0_0)\n"
            "shape = Shape(e)\n"
            "width = Const(^shape) int32[]: 784\n"
            "y = Neg(width)\n");
  ASSERT_OK(ExpectSameResults({{"x", *Tensor::Zeros(DT_FLOAT, millrace::ShapeOf({3, 784}))}}, {"y"})
                .status());
}

TEST_F(ShapesTest, WhatIsNotKnownStays) {
  const Output x = Placeholder(root_.WithName("x"), DT_FLOAT, {-1, 2});
  Neg(root_.WithName("y"), ShapeOf(root_.WithName("shape"), x));
  const RunSignature signature = {{"x"}, {"y"}, {}};
  EXPECT_EQ(After(signature), Before(signature));
}

// A variable may hold another shape than it declares; a default may be fed over.
TEST_F(ShapesTest, ShapesThatNoKernelEnforcesAreNotTrusted) {
  const Output v = NodeBuilder(root_.WithName("v"), "VariableV2")
                       .Attr("shape", PartialShape({2}))
                       .Attr("dtype", DT_FLOAT)
                       .Finish()
                       .output(0);
  Neg(root_.WithName("y"), ShapeOf(root_.WithName("shape"), v));
  const Output d = PlaceholderWithDefault(root_.WithName("d"), Const(root_.WithName("c"), {1.f}),
                                          PartialShape({1}));
  Neg(root_.WithName("z"), ShapeOf(root_.WithName("default_shape"), d));
  const RunSignature signature = {{}, {"y", "z"}, {}};
  EXPECT_EQ(After(signature), Before(signature));
}

// In old graphs the shape [] of a placeholder means that nothing is known.
TEST_F(ShapesTest, ScalarPlaceholdersOfOldGraphsAreUnknown) {
  root_.graph()->mutable_versions()->set_producer(21);
  const Output x = Placeholder(root_.WithName("x"), DT_FLOAT, PartialShape::Scalar());
  Neg(root_.WithName("y"), Rank(root_.WithName("rank"), x));
  const RunSignature signature = {{"x"}, {"y"}, {}};
  const std::string before = Before(signature);
  EXPECT_NE(before.find("rank = Rank(_arg_x_0_0)"), std::string::npos);
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> y,
                       ExpectSameResults({{"x", TensorOf<float>({2}, {1, 2})}}, {"y"}));
  EXPECT_EQ(y[0], TensorOf<int32_t>({}, {-1}));
}

TEST_F(ShapesTest, TheOutputOfASwitchMayBeDead) {
  const Output x = Placeholder(root_.WithName("x"), DT_FLOAT, {2});
  const Output pred = Placeholder(root_.WithName("pred"), DT_BOOL, PartialShape::Scalar());
  const SwitchOutputs sides = Switch(root_.WithName("switch"), x, pred);
  const Output yes =
      Neg(root_.WithName("yes"), ShapeOf(root_.WithName("shape"), sides.output_true));
  Merge(
      root_.WithName("y"),
      {yes,
       Const(
           root_.WithControlDependencies({Identity(root_.WithName("no"), sides.output_false).op()})
               .WithName("c"),
           {7})});
  const RunSignature signature = {{"x", "pred"}, {"y"}, {}};
  EXPECT_EQ(After(signature), Before(signature));
  for (const bool value : {false, true}) {
    ASSERT_OK(ExpectSameResults(
                  {{"x", TensorOf<float>({2}, {1, 2})}, {"pred", Tensor::Scalar(value)}}, {"y"})
                  .status());
  }
}

// An element of a shape that does not exist is an error of the step.
TEST_F(ShapesTest, SlicesOutOfRangeStillFail) {
  const Output x = Placeholder(root_.WithName("x"), DT_FLOAT, {2, 3});
  const Output shape = ShapeOf(root_.WithName("shape"), x);
  Neg(root_.WithName("y"),
      Slice(root_.WithName("slice"), shape, Placeholder(root_.WithName("b"), DT_INT32, {1}),
            Const(root_.WithName("size"), {1})));
  EXPECT_FALSE(ExpectSameResults({{"x", *Tensor::Zeros(DT_FLOAT, millrace::ShapeOf({2, 3}))},
                                  {"b", TensorOf<int32_t>({1}, {5})}},
                                 {"y"})
                   .ok());
}

}  // namespace
}  // namespace millrace
