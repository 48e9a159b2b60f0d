// SPDX-License-Identifier: Apache-2.0
#include "ops/array/pad.h"

#include <limits>
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

TEST(Pad, RefusesPaddingsBeyondAnyShape) {
  const Tensor x = TensorOf<float>({1}, {1});
  const int64_t max = std::numeric_limits<int64_t>::max(),
                min = std::numeric_limits<int64_t>::min();
  const struct {
    int64_t before, after;
    const char* text;
  } cases[] = {
      {max, 0, "paddings[0,0] must be <= 1099511627776, got 9223372036854775807"},
      {0, max, "paddings[0,1] must be <= 1099511627776, got 9223372036854775807"},
      {0, min, "paddings[0,1] must be >= 0, got -9223372036854775808"},
      {int64_t{1} << 40, int64_t{1} << 40, "must be at most 1099511627776"},
  };
  for (const auto& c : cases) {
    const Tensor paddings = TensorOf<int64_t>({1, 2}, {c.before, c.after});
    ExpectOpError(OpCall("Pad").Input(x).Input(paddings), kInvalid, c.text);
    EXPECT_SHAPE_ERROR("Pad", {}, {"[1]", paddings}, c.text);
  }
  ExpectOpError(OpCall("MirrorPadGrad")
                    .Input(x)
                    .Input(TensorOf<int64_t>({1, 2}, {0, max}))
                    .Attr("mode", std::string("SYMMETRIC")),
                kInvalid, "paddings[0,1] must be <= 1099511627776, got 9223372036854775807");
}

// A dimension that is as long as a shape allows costs nothing where there are no elements.
TEST(MirrorPad, OfATensorWithoutElementsAllocatesNothing) {
  const Tensor x = *Tensor::Zeros(DT_FLOAT, ShapeOf({0, int64_t{1} << 39}));
  for (const char* op : {"MirrorPad", "MirrorPadGrad"}) {
    for (const char* mode : {"SYMMETRIC", "REFLECT"}) {
      const Tensor y = RunOp1(OpCall(op)
                                  .Input(x)
                                  .Input(TensorOf<int32_t>({2, 2}, {0, 0, 0, 0}))
                                  .Attr("mode", std::string(mode)));
      EXPECT_EQ(y.shape().ToString(), "[0,549755813888]");
    }
  }
}

TEST(PadGradients, MatchFiniteDifferences) {
  const Tensor x = TensorOf<double>({2, 3}, {1, -2, 3, 4, 5, -6});
  const BuildOutput builds[] = {
      [](const Scope& s, const std::vector<Output>& in) {
        return Pad(s, in[0], Const(s, TensorOf<int32_t>({2, 2}, {1, 0, 2, 1})));
      },
      [](const Scope& s, const std::vector<Output>& in) {
        return MirrorPad(s, in[0], Const(s, TensorOf<int32_t>({2, 2}, {1, 0, 2, 1})), "REFLECT");
      },
      [](const Scope& s, const std::vector<Output>& in) {
        return MirrorPadGrad(s, in[0], Const(s, TensorOf<int32_t>({2, 2}, {0, 0, 1, 0})),
                             "SYMMETRIC");
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
