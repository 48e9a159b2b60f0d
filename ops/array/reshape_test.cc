// SPDX-License-Identifier: Apache-2.0
#include "ops/array/reshape.h"

#include <string>
#include <vector>

#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "ops/array/constant.h"
#include "runtime/testing/op_test.h"

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

Tensor Ints(std::initializer_list<int32_t> values) { return Tensor::Vector<int32_t>(values); }
Tensor Longs(std::initializer_list<int64_t> values) { return Tensor::Vector<int64_t>(values); }

TEST(Reshape, SharesElementsInAnotherShape) {
  const Tensor x = TensorOf<float>({2, 3}, {1, 2, 3, 4, 5, 6});
  const Tensor y = RunOp1(OpCall("Reshape").Input(x).Input(Ints({3, 2})));
  ExpectTensorEqual(y, TensorOf<float>({3, 2}, {1, 2, 3, 4, 5, 6}));
  EXPECT_TRUE(y.SharesBufferWith(x));
}

TEST(Reshape, InfersTheDimensionThatIsMinusOne) {
  const Tensor x = TensorOf<std::string>({2, 3}, {"a", "b", "c", "d", "e", "f"});
  EXPECT_EQ(RunOp1(OpCall("Reshape").Input(x).Input(Longs({-1}))).shape(), ShapeOf({6}));
  EXPECT_EQ(RunOp1(OpCall("Reshape").Input(x).Input(Longs({3, -1, 1}))).shape(),
            ShapeOf({3, 2, 1}));
}

TEST(Reshape, TensorsWithoutElementsAndScalarsWork) {
  const Tensor none = TensorOf<float>({0, 3}, {});
  EXPECT_EQ(RunOp1(OpCall("Reshape").Input(none).Input(Ints({3, -1}))).shape(), ShapeOf({3, 0}));
  EXPECT_EQ(RunOp1(OpCall("Reshape").Input(none).Input(Ints({7, 0}))).shape(), ShapeOf({7, 0}));
  const Tensor one = TensorOf<float>({1, 1}, {5});
  // The last batch of a model that flattens its rows.
  const Tensor batch = TensorOf<float>({0, 2, 3}, {});
  EXPECT_EQ(RunOp1(OpCall("Reshape").Input(batch).Input(Ints({0, -1}))).shape(), ShapeOf({0, 6}));
  EXPECT_EQ(RunOp1(OpCall("Reshape").Input(batch).Input(Ints({-1, 0, 3}))).shape(),
            ShapeOf({2, 0, 3}));
  EXPECT_EQ(RunOp1(OpCall("Reshape").Input(batch).Input(Ints({0, 4, -1}))).shape(),
            ShapeOf({0, 4, 1}));
  EXPECT_EQ(RunOp1(OpCall("Reshape").Input(one).Input(Ints({}))).shape(), ShapeOf({}));
}

TEST(Reshape, RefusesShapesThatDoNotFit) {
  const Tensor x = TensorOf<float>({2, 3}, {1, 2, 3, 4, 5, 6});
  const struct {
    Tensor input, shape;
    const char* text;
  } cases[] = {
      {x, Ints({4, 2}),
       "Input to reshape is a tensor with 6 values, but the requested shape [4,2] has 8"},
      {x, Ints({4, -1}),
       "Input to reshape is a tensor with 6 values, but the requested shape [4,?] requires a "
       "multiple of 4"},
      {x, Ints({-1, -1}), "shape must have at most one -1, got one at [0] and one at [1]"},
      {x, Ints({-2, 3}), "shape[0] must be >= -1, got -2"},
      {x, Longs({int64_t{1} << 40, int64_t{1} << 40}), "product of sizes"},
      // Their product is 2^64 when the 0 is not counted.
      {TensorOf<float>({0}, {}), Longs({0, int64_t{1} << 32, int64_t{1} << 32, -1}),
       "product of sizes"},
      {x, Ints({0, -1}),
       "Input to reshape is a tensor with 6 values, but the requested shape [0,?] requires a "
       "multiple of 0"},
      {x, TensorOf<int32_t>({1, 2}, {3, 2}), "shape must be a vector, got shape [1,2]"},
  };
  for (const auto& c : cases) {
    ExpectOpError(OpCall("Reshape").Input(c.input).Input(c.shape), kInvalid, c.text);
  }
}

TEST(Reshape, ShapeFunctionFollowsConstantsAndPartialShapes) {
  EXPECT_SHAPE("Reshape", {}, {"[2,3]", Ints({3, -1})}, "[3,2]");
  EXPECT_SHAPE("Reshape", {}, {"[?,3]", Ints({3, -1})}, "[3,?]");
  EXPECT_SHAPE("Reshape", {}, {"<unknown>", Ints({3, 4})}, "[3,4]");
  EXPECT_SHAPE("Reshape", {}, {"[2,3]", "[2]"}, "[?,?]");
  EXPECT_SHAPE("Reshape", {}, {"[0,2,3]", Ints({0, -1})}, "[0,6]");
  EXPECT_SHAPE("Reshape", {}, {"[?,2,3]", Ints({0, -1})}, "[0,?]");
  EXPECT_SHAPE("Reshape", {}, {"[2,3]", "<unknown>"}, "<unknown>");
  EXPECT_SHAPE_ERROR("Reshape", {}, {"[2,3]", Ints({4})}, "the requested shape [4] has 4");
  EXPECT_SHAPE_ERROR("Reshape", {}, {"[2,3]", "[2,2]"}, "shape must be a vector, got shape [2,2]");
}

TEST(Reshape, UnknownBatchThroughShapeArithmeticIsKept) {
  Scope scope;
  const Output x = TestInput(scope, DT_FLOAT, {-1, 6});
  const Output shape = ShapeOf(scope, x);
  EXPECT_EQ(scope.shape(Reshape(scope, x, shape)).ToString(), "[?,6]");
}

TEST(ExpandDims, PutsADimensionOfOne) {
  const Tensor x = TensorOf<int64_t>({2, 3}, {1, 2, 3, 4, 5, 6});
  const struct {
    int32_t dim;
    Shape shape;
  } cases[] = {{0, ShapeOf({1, 2, 3})},
               {1, ShapeOf({2, 1, 3})},
               {2, ShapeOf({2, 3, 1})},
               {-1, ShapeOf({2, 3, 1})},
               {-3, ShapeOf({1, 2, 3})}};
  for (const auto& c : cases) {
    const Tensor y = RunOp1(OpCall("ExpandDims").Input(x).Input(Tensor::Scalar<int32_t>(c.dim)));
    EXPECT_EQ(y.shape(), c.shape) << c.dim;
  }
  EXPECT_SHAPE("ExpandDims", {}, {"[2,?]", Tensor::Scalar<int32_t>(-2)}, "[2,1,?]");
  EXPECT_SHAPE("ExpandDims", {}, {"[2,?]", "[]"}, "[?,?,?]");
  EXPECT_SHAPE("ExpandDims", {}, {"<unknown>", "[]"}, "<unknown>");
  ExpectOpError(OpCall("ExpandDims").Input(x).Input(Tensor::Scalar<int32_t>(3)), kInvalid,
                "dim must be in [-3, 2], got 3");
  ExpectOpError(OpCall("ExpandDims").Input(x).Input(Ints({0, 1})), kInvalid,
                "dim must have one element, got shape [2]");
}

TEST(Squeeze, TakesDimensionsOfOneAway) {
  const Tensor x = TensorOf<bool>({1, 2, 1}, {true, false});
  EXPECT_EQ(RunOp1(OpCall("Squeeze").Input(x)).shape(), ShapeOf({2}));
  EXPECT_EQ(
      RunOp1(OpCall("Squeeze").Input(x).Attr("squeeze_dims", std::vector<int64_t>{-1})).shape(),
      ShapeOf({1, 2}));
  ExpectOpError(OpCall("Squeeze").Input(x).Attr("squeeze_dims", std::vector<int64_t>{1}), kInvalid,
                "Can not squeeze dim[1], expected a dimension of 1, got 2");
  ExpectOpError(OpCall("Squeeze").Input(x).Attr("squeeze_dims", std::vector<int64_t>{3}), kInvalid,
                "squeeze_dims[0] must be in [-3, 3), got 3");
  EXPECT_SHAPE("Squeeze", {}, {"[1,3,1]"}, "[3]");
  EXPECT_SHAPE("Squeeze", {}, {"[1,?]"}, "<unknown>");
  EXPECT_SHAPE("Squeeze", {{"squeeze_dims", std::vector<int64_t>{0}}}, {"[1,?]"}, "[?]");
}

TEST(ShapeOps, TellDimensionsElementsAndRank) {
  const Tensor x = TensorOf<std::string>({2, 1}, {"a", "b"});
  ExpectTensorEqual(RunOp1(OpCall("Shape").Input(x)), Ints({2, 1}));
  ExpectTensorEqual(RunOp1(OpCall("Shape").Input(x).Attr("out_type", DT_INT64)), Longs({2, 1}));
  ExpectTensorEqual(RunOp1(OpCall("Shape").Input(Tensor::Scalar<float>(1))), Ints({}));
  ExpectTensorEqual(RunOp1(OpCall("Size").Input(x)), Tensor::Scalar<int32_t>(2));
  ExpectTensorEqual(RunOp1(OpCall("Size").Input(x).Attr("out_type", DT_INT64)),
                    Tensor::Scalar<int64_t>(2));
  ExpectTensorEqual(RunOp1(OpCall("Rank").Input(x)), Tensor::Scalar<int32_t>(2));
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> shapes,
                       RunOp(OpCall("ShapeN").Inputs({x, TensorOf<std::string>({0}, {})})));
  ASSERT_EQ(shapes.size(), 2u);
  ExpectTensorEqual(shapes[0], Ints({2, 1}));
  ExpectTensorEqual(shapes[1], Ints({0}));
  EXPECT_SHAPE("Shape", {}, {"[?,3]"}, "[2]");
  EXPECT_SHAPE("Shape", {}, {"<unknown>"}, "[?]");
  EXPECT_SHAPE("ShapeN", {}, {"[?,3]", "[]"}, "[2];[0]");
  EXPECT_SHAPE("Size", {}, {"<unknown>"}, "[]");
  EXPECT_SHAPE("Rank", {}, {"<unknown>"}, "[]");
}

TEST(ReshapeGradients, MatchFiniteDifferences) {
  const Tensor x = TensorOf<double>({2, 1, 3}, {1, -2, 3, 4, 5, -6});
  ExpectGradientsMatch(
      [](const Scope& s, const std::vector<Output>& in) {
        return Reshape(s, in[0], Const<int32_t>(s, {3, 2}));
      },
      {x});
  ExpectGradientsMatch(
      [](const Scope& s, const std::vector<Output>& in) {
        return ExpandDims(s, in[0], Const(s, int32_t{1}));
      },
      {x});
  ExpectGradientsMatch(
      [](const Scope& s, const std::vector<Output>& in) { return Squeeze(s, in[0]); }, {x});
}

}  // namespace
}  // namespace millrace
