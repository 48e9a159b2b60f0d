// SPDX-License-Identifier: Apache-2.0
#include "ops/slice.h"

#include <limits>
#include <string>
#include <vector>

#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "ops/constant.h"
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
  EXPECT_SHAPE("StridedSlice", {{"Index", DT_INT32}}, {"[3]", "[1]", "[1]", "[1]"}, "<unknown>");
  EXPECT_SHAPE("StridedSliceGrad", {}, {Ints({3, 4}), "[1]", "[1]", "[1]", "<unknown>"}, "[3,4]");
}

TEST(Pad, SurroundsWithZerosOrAValue) {
  const Tensor x = TensorOf<float>({1, 2}, {1, 2});
  const Tensor paddings = TensorOf<int32_t>({2, 2}, {1, 0, 0, 2});
  ExpectTensorEqual(RunOp1(OpCall("Pad").Input(x).Input(paddings)),
                    TensorOf<float>({2, 4}, {0, 0, 0, 0, 1, 2, 0, 0}));
  ExpectTensorEqual(
      RunOp1(OpCall("PadV2").Input(x).Input(paddings).Input(Tensor::Scalar<float>(9))),
      TensorOf<float>({2, 4}, {9, 9, 9, 9, 1, 2, 9, 9}));
  ExpectTensorEqual(
      RunOp1(
          OpCall("Pad").Input(TensorOf<float>({0}, {})).Input(TensorOf<int64_t>({1, 2}, {1, 1}))),
      TensorOf<float>({2}, {0, 0}));
  EXPECT_SHAPE("Pad", {}, {"[1,?]", paddings}, "[2,?]");
  EXPECT_SHAPE("Pad", {}, {"<unknown>", "[3,2]"}, "[?,?,?]");
  ExpectOpError(OpCall("Pad").Input(x).Input(TensorOf<int32_t>({2, 2}, {0, -1, 0, 0})), kInvalid,
                "paddings[0,1] must be >= 0, got -1");
  ExpectOpError(OpCall("Pad").Input(x).Input(TensorOf<int32_t>({1, 2}, {0, 0})), kInvalid,
                "paddings must have one element for each of the 2 dimensions, got 1");
  ExpectOpError(OpCall("Pad").Input(x).Input(Ints({1, 2})), kInvalid,
                "paddings must have shape [rank,2], got [2]");
}

TEST(MirrorPad, MirrorsAtTheBorder) {
  const Tensor x = Ints({1, 2, 3});
  const auto call = [&](std::initializer_list<int32_t> paddings, const std::string& mode) {
    return OpCall("MirrorPad")
        .Input(x)
        .Input(TensorOf<int32_t>({1, 2}, paddings))
        .Attr("mode", mode);
  };
  ExpectTensorEqual(RunOp1(call({2, 1}, "REFLECT")), Ints({3, 2, 1, 2, 3, 2}));
  ExpectTensorEqual(RunOp1(call({2, 3}, "SYMMETRIC")), Ints({2, 1, 1, 2, 3, 3, 2, 1}));
  ExpectOpError(call({3, 0}, "REFLECT"), kInvalid,
                "paddings[0,0] must be <= 2 to mirror a dimension of 3, got 3");
  ExpectTensorEqual(RunOp1(OpCall("MirrorPadGrad")
                               .Input(TensorOf<float>({6}, {1, 10, 100, 1000, 10000, 100000}))
                               .Input(TensorOf<int32_t>({1, 2}, {2, 1}))
                               .Attr("mode", std::string("REFLECT"))),
                    TensorOf<float>({3}, {100, 101010, 10001}));
  EXPECT_SHAPE("MirrorPad", {{"mode", "REFLECT"}}, {"[3]", TensorOf<int32_t>({1, 2}, {2, 1})},
               "[6]");
}

TEST(Tile, RepeatsAlongEachDimension) {
  const Tensor x = TensorOf<int32_t>({1, 2}, {1, 2});
  ExpectTensorEqual(RunOp1(OpCall("Tile").Input(x).Input(Ints({2, 2}))),
                    TensorOf<int32_t>({2, 4}, {1, 2, 1, 2, 1, 2, 1, 2}));
  ExpectTensorEqual(RunOp1(OpCall("Tile").Input(x).Input(Ints({0, 1}))),
                    TensorOf<int32_t>({0, 2}, {}));
  ExpectTensorEqual(
      RunOp1(OpCall("Tile").Input(TensorOf<std::string>({2}, {"a", "b"})).Input(Ints({2}))),
      TensorOf<std::string>({4}, {"a", "b", "a", "b"}));
  EXPECT_SHAPE("Tile", {}, {"[2,?]", Ints({3, 3})}, "[6,?]");
  EXPECT_SHAPE("Tile", {}, {"<unknown>", "[2]"}, "[?,?]");
  ExpectOpError(OpCall("Tile").Input(x).Input(Ints({1, -3})), kInvalid,
                "multiples[1] must be >= 0, got -3");
  ExpectOpError(OpCall("Tile").Input(x).Input(Ints({1})), kInvalid,
                "multiples must have one element for each of the 2 dimensions, got 1");
  ExpectOpError(
      OpCall("Tile").Input(x).Input(Tensor::Vector<int64_t>({int64_t{1} << 40, int64_t{1} << 40})),
      kInvalid, "product of sizes");
}

TEST(Reverse, TurnsDimensionsAround) {
  ExpectTensorEqual(RunOp1(OpCall("ReverseV2").Input(Grid()).Input(Ints({1}))),
                    TensorOf<float>({3, 4}, {3, 2, 1, 0, 13, 12, 11, 10, 23, 22, 21, 20}));
  ExpectTensorEqual(RunOp1(OpCall("ReverseV2").Input(Grid()).Input(Ints({-2, 1}))),
                    TensorOf<float>({3, 4}, {23, 22, 21, 20, 13, 12, 11, 10, 3, 2, 1, 0}));
  ExpectOpError(OpCall("ReverseV2").Input(Grid()).Input(Ints({2})), kInvalid,
                "axis[0] must be in [-2, 2), got 2");
  ExpectOpError(OpCall("ReverseV2").Input(Grid()).Input(Ints({1, -1})), kInvalid,
                "axis must name a dimension once, got 1 twice");
  EXPECT_SHAPE("ReverseV2", {}, {"[2,?]", Ints({0})}, "[2,?]");
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
      [=](const Scope& s, const std::vector<Output>& in) {
        return Pad(s, in[0], Const(s, TensorOf<int32_t>({2, 2}, {1, 0, 2, 1})));
      },
      [=](const Scope& s, const std::vector<Output>& in) {
        return MirrorPad(s, in[0], Const(s, TensorOf<int32_t>({2, 2}, {1, 0, 2, 1})), "REFLECT");
      },
      [=](const Scope& s, const std::vector<Output>& in) {
        return MirrorPadGrad(s, in[0], Const(s, TensorOf<int32_t>({2, 2}, {0, 0, 1, 0})),
                             "SYMMETRIC");
      },
      [=](const Scope& s, const std::vector<Output>& in) {
        return Tile(s, in[0], ints(s, {2, 3}));
      },
      [=](const Scope& s, const std::vector<Output>& in) {
        return ReverseV2(s, in[0], ints(s, {1}));
      },
  };
  for (const BuildOutput& build : builds) ExpectGradientsMatch(build, {x});
  ExpectGradientsMatch(
      [](const Scope& s, const std::vector<Output>& in) {
        return PadV2(s, in[0], Const(s, TensorOf<int32_t>({2, 2}, {1, 0, 2, 1})), in[1]);
      },
      {x, Tensor::Scalar<double>(4)});
}

}  // namespace
}  // namespace millrace
