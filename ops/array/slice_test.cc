// SPDX-License-Identifier: Apache-2.0
#include "ops/array/slice.h"

#include <limits>
#include <string>
#include <vector>

#include "core/testing/tensor_testing.h"
#include "graph/node_builder.h"
#include "gtest/gtest.h"
#include "ops/array/concat.h"
#include "ops/array/constant.h"
#include "runtime/testing/op_test.h"

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

Tensor Ints(std::initializer_list<int32_t> values) { return Tensor::Vector<int32_t>(values); }

// [[0 1 2 3], [10 11 12 13], [20 21 22 23]]
Tensor Grid() { return TensorOf<float>({3, 4}, {0, 1, 2, 3, 10, 11, 12, 13, 20, 21, 22, 23}); }

OpCall SliceCall(Tensor x, Tensor begin, Tensor size) {
  return OpCall("Slice").Input(std::move(x)).Input(std::move(begin)).Input(std::move(size));
}

TEST(Slice, CutsABox) {
  ExpectTensorEqual(RunOp1(SliceCall(Grid(), Ints({1, 2}), Ints({2, 1}))),
                    TensorOf<float>({2, 1}, {12, 22}));
  ExpectTensorEqual(RunOp1(SliceCall(Grid(), Ints({0, 1}), Ints({1, -1}))),
                    TensorOf<float>({1, 3}, {1, 2, 3}));
  ExpectTensorEqual(RunOp1(SliceCall(Grid(), Ints({3, 4}), Ints({0, -1}))),
                    TensorOf<float>({0, 0}, {}));
  ExpectTensorEqual(RunOp1(SliceCall(Tensor::Scalar<float>(3), Ints({}), Ints({}))),
                    Tensor::Scalar<float>(3));
  ExpectTensorEqual(RunOp1(SliceCall(TensorOf<std::string>({2, 2}, {"a", "b", "c", "d"}),
                                     Ints({0, 1}), Ints({2, 1}))),
                    TensorOf<std::string>({2, 1}, {"b", "d"}));
}

TEST(Slice, WholeRowsShareMemory) {
  const Tensor x = Grid();
  const Tensor y = RunOp1(SliceCall(x, Ints({1, 0}), Ints({2, 4})));
  EXPECT_TRUE(y.SharesBufferWith(x));
  EXPECT_EQ(y.flat<float>()[0], 10);
}

TEST(Slice, RefusesBoxesOutsideOfTheTensor) {
  const struct {
    Tensor begin, size;
    const char* text;
  } cases[] = {
      {Ints({4, 0}), Ints({0, 1}), "begin[0] must be in [0, 3], got 4"},
      {Ints({-1, 0}), Ints({0, 1}), "begin[0] must be in [0, 3], got -1"},
      {Ints({1, 0}), Ints({3, 1}), "size[0] must be in [0, 2] (dimension 3, begin 1), got 3"},
      {Ints({1, 0}), Ints({-2, 1}), "size[0] must be >= -1, got -2"},
      {Ints({1}), Ints({1, 1}), "begin must have one element for each of the 2 dimensions, got 1"},
      {Ints({1, 0}), Ints({1}), "size must have one element for each of the 2 dimensions, got 1"},
  };
  for (const auto& c : cases) ExpectOpError(SliceCall(Grid(), c.begin, c.size), kInvalid, c.text);
}

TEST(Slice, ShapeFunctionUsesWhatIsConstant) {
  EXPECT_SHAPE("Slice", {}, {"[3,4]", Ints({1, 1}), Ints({2, -1})}, "[2,3]");
  EXPECT_SHAPE("Slice", {}, {"[?,4]", Ints({1, 1}), Ints({-1, -1})}, "[?,3]");
  EXPECT_SHAPE("Slice", {}, {"[3,4]", "[2]", Ints({2, -1})}, "[2,?]");
  EXPECT_SHAPE("Slice", {{"Index", DT_INT32}}, {"[3,4]", "[2]", "[2]"}, "[?,?]");
  EXPECT_SHAPE("Slice", {{"Index", DT_INT32}}, {"<unknown>", "[3]", "[?]"}, "[?,?,?]");
  EXPECT_SHAPE_ERROR("Slice", {}, {"[3,4]", Ints({1, 1}), Ints({3, 1})}, "size[0]");
}

struct Strided {
  std::vector<int32_t> begin, end, strides;
  StridedSliceAttrs masks;
  Tensor want;
};
OpCall StridedCall(Tensor x, const Strided& c) {
  return OpCall("StridedSlice")
      .Input(std::move(x))
      .Input(Tensor::Vector<int32_t>(c.begin))
      .Input(Tensor::Vector<int32_t>(c.end))
      .Input(Tensor::Vector<int32_t>(c.strides))
      .Attr("begin_mask", c.masks.begin_mask)
      .Attr("end_mask", c.masks.end_mask)
      .Attr("ellipsis_mask", c.masks.ellipsis_mask)
      .Attr("new_axis_mask", c.masks.new_axis_mask)
      .Attr("shrink_axis_mask", c.masks.shrink_axis_mask);
}

// The expectations are what NumPy gives for the comment's expression.
TEST(StridedSlice, AgreesWithNumPy) {
  const Strided cases[] = {
      // x[1:3, 0:4:2]
      {{1, 0}, {3, 4}, {1, 2}, {}, TensorOf<float>({2, 2}, {10, 12, 20, 22})},
      // x[::-1, ::-2]
      {{0, 0},
       {0, 0},
       {-1, -2},
       {.begin_mask = 3, .end_mask = 3},
       TensorOf<float>({3, 2}, {23, 21, 13, 11, 3, 1})},
      // x[-1]
      {{-1}, {0}, {1}, {.shrink_axis_mask = 1}, TensorOf<float>({4}, {20, 21, 22, 23})},
      // x[..., 1]
      {{0, 1},
       {0, 2},
       {1, 1},
       {.ellipsis_mask = 1, .shrink_axis_mask = 2},
       TensorOf<float>({3}, {1, 11, 21})},
      // x[newaxis, 2, ..., newaxis]
      {{0, 2, 0, 0},
       {0, 3, 0, 0},
       {1, 1, 1, 1},
       {.ellipsis_mask = 4, .new_axis_mask = 9, .shrink_axis_mask = 2},
       TensorOf<float>({1, 4, 1}, {20, 21, 22, 23})},
      // x[0:100, -100:2]
      {{0, -100}, {100, 2}, {1, 1}, {}, TensorOf<float>({3, 2}, {0, 1, 10, 11, 20, 21})},
      // x[2:1]
      {{2}, {1}, {1}, {}, TensorOf<float>({0, 4}, {})},
      // x[:, 3:0:-2]
      {{0, 3},
       {0, 0},
       {1, -2},
       {.begin_mask = 1, .end_mask = 1},
       TensorOf<float>({3, 2}, {3, 1, 13, 11, 23, 21})},
      // x[1, 2]
      {{1, 2}, {2, 3}, {1, 1}, {.shrink_axis_mask = 3}, TensorOf<float>({}, {12})},
      // x[1:2]
      {{1}, {2}, {1}, {}, TensorOf<float>({1, 4}, {10, 11, 12, 13})},
      // x[::-2147483648]
      {{0},
       {0},
       {std::numeric_limits<int32_t>::min()},
       {.begin_mask = 1, .end_mask = 1},
       TensorOf<float>({1, 4}, {20, 21, 22, 23})},
      // x[...]
      {{0}, {0}, {1}, {.ellipsis_mask = 1}, Grid()},
      // x[newaxis]
      {{0},
       {0},
       {1},
       {.new_axis_mask = 1},
       TensorOf<float>({1, 3, 4}, {0, 1, 2, 3, 10, 11, 12, 13, 20, 21, 22, 23})},
  };
  for (const Strided& c : cases) ExpectTensorEqual(RunOp1(StridedCall(Grid(), c)), c.want);
}

TEST(StridedSlice, StepsOf64BitsDoNotOverflow) {
  const int64_t min = std::numeric_limits<int64_t>::min(),
                max = std::numeric_limits<int64_t>::max();
  for (const int64_t step : {min, max}) {
    const Tensor y = RunOp1(OpCall("StridedSlice")
                                .Input(Grid())
                                .Input(Tensor::Vector<int64_t>({step == min ? max : min}))
                                .Input(Tensor::Vector<int64_t>({step}))
                                .Input(Tensor::Vector<int64_t>({step})));
    ExpectTensorEqual(y, step == min ? TensorOf<float>({1, 4}, {20, 21, 22, 23})
                                     : TensorOf<float>({1, 4}, {0, 1, 2, 3}));
  }
}

TEST(StridedSlice, GradientOpPutsValuesWhereTheSliceReads) {
  const Tensor y = RunOp1(OpCall("StridedSliceGrad")
                              .Input(Ints({3, 4}))
                              .Input(Ints({0, 3}))
                              .Input(Ints({3, 0}))
                              .Input(Ints({2, -2}))
                              .Input(TensorOf<float>({2, 2}, {1, 2, 3, 4})));
  ExpectTensorEqual(y, TensorOf<float>({3, 4}, {0, 2, 0, 1, 0, 0, 0, 0, 0, 4, 0, 3}));
  ExpectOpError(OpCall("StridedSliceGrad")
                    .Input(Ints({3}))
                    .Input(Ints({0}))
                    .Input(Ints({2}))
                    .Input(Ints({1}))
                    .Input(TensorOf<float>({3}, {1, 2, 3})),
                kInvalid, "dy must have the shape of the slice [2], got [3]");
}

TEST(StridedSlice, RefusesWhatIsNoSlice) {
  const struct {
    Strided slice;
    const char* text;
  } cases[] = {
      {{{0}, {1}, {0}, {}, {}}, "strides[0] must be non-zero"},
      {{{3}, {4}, {1}, {.shrink_axis_mask = 1}, {}}, "slice index 3 of dimension 0 out of bounds"},
      {{{-4}, {4}, {1}, {.shrink_axis_mask = 1}, {}},
       "slice index -4 of dimension 0 out of bounds"},
      {{{0}, {1}, {-1}, {.shrink_axis_mask = 1}, {}},
       "only stride 1 allowed on non-range indexing"},
      {{{0, 0, 0}, {1, 1, 1}, {1, 1, 1}, {}, {}}, "input has only 2 dims, got 3 slices"},
      {{{0, 0}, {1, 1}, {1, 1}, {.ellipsis_mask = 3}, {}}, "ellipsis_mask must have at most one"},
      {{{0, 0}, {1, 1}, {1}, {}, {}}, "begin, end and strides must have the same length"},
  };
  for (const auto& c : cases) ExpectOpError(StridedCall(Grid(), c.slice), kInvalid, c.text);
}

TEST(StridedSlice, ShapeFunctionKnowsWhatConstantsTell) {
  EXPECT_SHAPE("StridedSlice", {}, {"[3,4]", Ints({1, 0}), Ints({3, 4}), Ints({1, 3})}, "[2,2]");
  EXPECT_SHAPE("StridedSlice", {}, {"[?,4]", Ints({1, 0}), Ints({3, 4}), Ints({1, 3})}, "[?,2]");
  EXPECT_SHAPE("StridedSlice", {{"shrink_axis_mask", int64_t{1}}},
               {"[?,4]", Ints({1}), Ints({2}), Ints({1})}, "[4]");
  EXPECT_SHAPE("StridedSlice", {{"shrink_axis_mask", int64_t{1}}},
               {"[3,4]", "[1]", "[1]", Ints({1})}, "[4]");
  EXPECT_SHAPE("StridedSlice", {{"begin_mask", int64_t{1}}, {"end_mask", int64_t{1}}},
               {"[3,4]", "[1]", "[1]", Ints({2})}, "[2,4]");
  EXPECT_SHAPE("StridedSlice", {{"Index", DT_INT32}}, {"[3]", "[1]", "[1]", "[1]"}, "[?]");
  EXPECT_SHAPE("StridedSlice", {}, {"[3,4]", Ints({1}), "[?]", "[?]"}, "[?,4]");
  EXPECT_SHAPE("StridedSlice", {{"Index", DT_INT32}}, {"[3]", "[?]", "[?]", "[?]"}, "<unknown>");
  EXPECT_SHAPE("StridedSliceGrad", {}, {Ints({3, 4}), "[1]", "[1]", "[1]", "<unknown>"}, "[3,4]");
}

TEST(SliceGradients, MatchFiniteDifferences) {
  const Tensor x = TensorOf<double>({2, 3}, {1, -2, 3, 4, 5, -6});
  const auto ints = [](const Scope& s, std::initializer_list<int32_t> v) {
    return Const<int32_t>(s, v);
  };
  const BuildOutput builds[] = {
      [=](const Scope& s, const std::vector<Output>& in) {
        return Slice(s, in[0], ints(s, {1, 1}), ints(s, {1, 2}));
      },
      [=](const Scope& s, const std::vector<Output>& in) {
        return StridedSlice(s, in[0], ints(s, {0, 2}), ints(s, {2, 0}), ints(s, {1, -2}),
                            {.end_mask = 2});
      },
      [=](const Scope& s, const std::vector<Output>& in) {
        return StridedSlice(s, in[0], ints(s, {0, -1}), ints(s, {0, 0}), ints(s, {1, 1}),
                            {.new_axis_mask = 1, .shrink_axis_mask = 2});
      },
      [=](const Scope& s, const std::vector<Output>& in) {
        return StridedSliceGrad(s, ints(s, {5, 3}), ints(s, {1, 0}), ints(s, {5, 3}),
                                ints(s, {2, 1}), in[0]);
      },
  };
  for (const BuildOutput& build : builds) ExpectGradientsMatch(build, {x});
}

// The number of its elements is known, its shape is not: ConcatV2 along an axis that only a step
// knows. (No evaluator: constants and shape arithmetic are all that is followed.)
Output OtherThanItsShape(const Scope& scope, std::initializer_list<int32_t> values) {
  const Output axis = NodeBuilder(scope, "Abs").Input(Const(scope, int32_t{0})).Finish().output(0);
  std::vector<Output> parts;
  for (const int32_t value : values) parts.push_back(Const<int32_t>(scope, {value}));
  return ConcatV2(scope, parts, axis);
}

// A value's length is its own, whatever its shape says: it must not reach beyond the input's rank.
TEST(Slice, ShapeFunctionChecksTheLengthOfValuesToo) {
  {
    Scope scope;
    const Output x = TestInput(scope, DT_FLOAT, {3, 4});
    Slice(scope, x, Const<int32_t>(scope, {0, 0}), OtherThanItsShape(scope, {1, 1, 1, 1, 1, 1}));
    EXPECT_STATUS(scope.status(), kInvalid,
                  "size must have one element for each of the 2 dimensions, got 6");
  }
  Scope scope;
  const Output x = TestInput(scope, DT_FLOAT, {3, 4, 5});
  Slice(scope, x, OtherThanItsShape(scope, {0, 0}), Const<int32_t>(scope, {1, 1, 1}));
  EXPECT_STATUS(scope.status(), kInvalid,
                "begin must have one element for each of the 3 dimensions, got 2");
}

}  // namespace
}  // namespace millrace
