// SPDX-License-Identifier: Apache-2.0
#include "ops/array/concat.h"

#include <string>
#include <vector>

#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "ops/array/constant.h"
#include "ops/array/reshape.h"
#include "runtime/testing/op_test.h"

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

Tensor Int(int32_t v) { return Tensor::Scalar<int32_t>(v); }
Tensor Ints(std::initializer_list<int32_t> values) { return Tensor::Vector<int32_t>(values); }

TEST(Concat, PutsTensorsTogetherAlongAnyAxis) {
  const Tensor a = TensorOf<float>({2, 1}, {1, 2}), b = TensorOf<float>({2, 2}, {3, 4, 5, 6});
  const Tensor want = TensorOf<float>({2, 3}, {1, 3, 4, 2, 5, 6});
  ExpectTensorEqual(RunOp1(OpCall("ConcatV2").Inputs({a, b}).Input(Int(1))), want);
  ExpectTensorEqual(RunOp1(OpCall("ConcatV2").Inputs({a, b}).Input(Int(-1))), want);
  ExpectTensorEqual(RunOp1(OpCall("Concat").Input(Int(1)).Inputs({a, b})), want);
  const Tensor s = TensorOf<std::string>({1, 2}, {"x", "y"});
  ExpectTensorEqual(RunOp1(OpCall("ConcatV2").Inputs({s, s, s}).Input(Tensor::Scalar<int64_t>(0))),
                    TensorOf<std::string>({3, 2}, {"x", "y", "x", "y", "x", "y"}));
}

TEST(Concat, EmptyValuesAddNothing) {
  const Tensor a = TensorOf<int64_t>({0, 2}, {}), b = TensorOf<int64_t>({1, 2}, {3, 4});
  ExpectTensorEqual(RunOp1(OpCall("ConcatV2").Inputs({a, b}).Input(Int(0))), b);
  ExpectTensorEqual(RunOp1(OpCall("ConcatV2").Inputs({a, a}).Input(Int(1))),
                    TensorOf<int64_t>({0, 4}, {}));
}

TEST(Concat, LargeTensorsAreCopiedWholeByManyThreads) {
  std::vector<float> x(300000), y(300000);
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = static_cast<float>(i);
    y[i] = -static_cast<float>(i);
  }
  for (const bool rows : {true, false}) {
    const Shape shape = rows ? ShapeOf({300000}) : ShapeOf({3000, 100});
    ASSERT_OK_AND_ASSIGN(const Tensor a, Tensor::FromValues<float>(shape, x));
    ASSERT_OK_AND_ASSIGN(const Tensor b, Tensor::FromValues<float>(shape, y));
    const Tensor c = RunOp1(OpCall("ConcatV2").Inputs({a, b}).Input(Int(-1)));
    const size_t width = rows ? x.size() : 100;
    for (size_t i = 0; i < x.size(); ++i) {
      const size_t at = i / width * 2 * width + i % width;
      ASSERT_EQ(c.flat<float>()[at], x[i]);
      ASSERT_EQ(c.flat<float>()[at + width], y[i]);
    }
  }
}

TEST(Concat, RefusesValuesThatDoNotFit) {
  const Tensor a = TensorOf<float>({2, 1}, {1, 2}), b = TensorOf<float>({3, 1}, {3, 4, 5});
  const struct {
    std::vector<OpInput> values;
    Tensor axis;
    const char* text;
  } cases[] = {
      {{a, b}, Int(1), "values must agree in all dimensions but axis 1, got dimension 0 = 2"},
      {{a, TensorOf<float>({2}, {1, 2})}, Int(0), "values must have the same rank"},
      {{a, a}, Int(2), "axis must be in [-2, 2), got 2"},
      {{Tensor::Scalar<float>(1), Tensor::Scalar<float>(2)}, Int(0), "rank >= 1, got scalars"},
      {{a, a}, Ints({0, 1}), "axis must be a scalar, got shape [2]"},
  };
  for (const auto& c : cases) {
    ExpectOpError(OpCall("ConcatV2").Inputs(c.values).Input(c.axis), kInvalid, c.text);
  }
}

TEST(Concat, ShapeFunctionAddsWhatIsKnown) {
  EXPECT_SHAPE("ConcatV2", {}, {"[2,?]", "[?,3]", Int(0)}, "[?,3]");
  EXPECT_SHAPE("ConcatV2", {}, {"[2,3]", "[4,3]", Int(0)}, "[6,3]");
  EXPECT_SHAPE("ConcatV2", {}, {"[2,3]", "<unknown>", Int(0)}, "[?,3]");
  EXPECT_SHAPE("ConcatV2", {}, {"[2,3]", "[4,3]", "[]"}, "[?,?]");
  EXPECT_SHAPE("ConcatV2", {}, {"<unknown>", "<unknown>", Int(0)}, "<unknown>");
  EXPECT_SHAPE("Concat", {}, {Int(1), "[2,3]", "[2,4]"}, "[2,7]");
  EXPECT_SHAPE_ERROR("ConcatV2", {}, {"[2,3]", "[2,4]", Int(0)}, "values must agree");
}

TEST(ConcatOffset, TellsWhereEachTensorBegins) {
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> offsets,
                       RunOp(OpCall("ConcatOffset")
                                 .Input(Int(-1))
                                 .Inputs({Ints({2, 5}), Ints({2, 1}), Ints({2, 7})})));
  ExpectTensorEqual(offsets[0], Ints({0, 0}));
  ExpectTensorEqual(offsets[1], Ints({0, 5}));
  ExpectTensorEqual(offsets[2], Ints({0, 6}));
  ExpectOpError(OpCall("ConcatOffset").Input(Int(1)).Inputs({Ints({2, 5}), Ints({3, 5})}), kInvalid,
                "all shapes must agree in all dimensions but concat_dim 1");
  ExpectOpError(OpCall("ConcatOffset").Input(Int(0)).Inputs({Ints({2, 5}), Ints({2})}), kInvalid,
                "shape[1] must have 2 elements as shape[0], got 1");
  EXPECT_SHAPE("ConcatOffset", {}, {Int(1), Ints({2, 5}), "[2]"}, "[2];[2]");
  EXPECT_SHAPE_ERROR("ConcatOffset", {}, {Int(1), Ints({2, 5}), Ints({3, 5})},
                     "got dimension 0 = 3 of shape[1] and 2 of shape[0]");
}

TEST(Pack, MakesANewDimension) {
  const Tensor a = Ints({1, 2}), b = Ints({3, 4});
  ExpectTensorEqual(RunOp1(OpCall("Pack").Inputs({a, b})), TensorOf<int32_t>({2, 2}, {1, 2, 3, 4}));
  ExpectTensorEqual(RunOp1(OpCall("Pack").Inputs({a, b}).Attr("axis", int64_t{-1})),
                    TensorOf<int32_t>({2, 2}, {1, 3, 2, 4}));
  ExpectTensorEqual(RunOp1(OpCall("Pack").Inputs({Int(7)})), Ints({7}));
  ExpectOpError(OpCall("Pack").Inputs({a, Ints({1})}), kInvalid,
                "Shapes of all inputs must match: values[0].shape = [2] != values[1].shape = [1]");
  ExpectOpError(OpCall("Pack").Inputs({a, b}).Attr("axis", int64_t{2}), kInvalid,
                "axis must be in [-2, 2), got 2");
  EXPECT_SHAPE("Pack", {{"axis", int64_t{1}}}, {"[2,?]", "[?,3]"}, "[2,2,3]");
  EXPECT_SHAPE_ERROR("Pack", {}, {"[2]", "[3]"}, "");
}

TEST(Unpack, GivesTheSlicesOfADimension) {
  const Tensor x = TensorOf<int32_t>({2, 2}, {1, 2, 3, 4});
  ASSERT_OK_AND_ASSIGN(std::vector<Tensor> parts,
                       RunOp(OpCall("Unpack").Input(x).Attr("num", int64_t{2})));
  ExpectTensorEqual(parts[1], Ints({3, 4}));
  ASSERT_OK_AND_ASSIGN(
      parts, RunOp(OpCall("Unpack").Input(x).Attr("num", int64_t{2}).Attr("axis", int64_t{1})));
  ExpectTensorEqual(parts[1], Ints({2, 4}));
  ExpectOpError(OpCall("Unpack").Input(x).Attr("num", int64_t{3}), kInvalid,
                "dimension 0 must have the size of attr num 3, got shape [2,2]");
  ExpectOpError(OpCall("Unpack").Input(Int(1)).Attr("num", int64_t{1}), kInvalid,
                "value must have rank >= 1");
  EXPECT_SHAPE("Unpack", {{"num", int64_t{2}}}, {"[?,3]"}, "[3];[3]");
}

TEST(Split, GivesEqualParts) {
  const Tensor x = TensorOf<float>({2, 4}, {1, 2, 3, 4, 5, 6, 7, 8});
  ASSERT_OK_AND_ASSIGN(std::vector<Tensor> parts,
                       RunOp(OpCall("Split").Input(Int(1)).Input(x).Attr("num_split", int64_t{2})));
  ExpectTensorEqual(parts[0], TensorOf<float>({2, 2}, {1, 2, 5, 6}));
  ExpectTensorEqual(parts[1], TensorOf<float>({2, 2}, {3, 4, 7, 8}));
  ASSERT_OK_AND_ASSIGN(
      parts, RunOp(OpCall("Split").Input(Int(-2)).Input(x).Attr("num_split", int64_t{2})));
  ExpectTensorEqual(parts[1], TensorOf<float>({1, 4}, {5, 6, 7, 8}));
  EXPECT_TRUE(parts[1].SharesBufferWith(x));
  ExpectOpError(OpCall("Split").Input(Int(1)).Input(x).Attr("num_split", int64_t{3}), kInvalid,
                "num_split must divide the size of split_dim, got 3 parts of 4");
  ExpectOpError(OpCall("Split").Input(Int(2)).Input(x).Attr("num_split", int64_t{2}), kInvalid,
                "axis must be in [-2, 2), got 2");
  EXPECT_SHAPE("Split", {{"num_split", int64_t{2}}}, {Int(1), "[?,4]"}, "[?,2];[?,2]");
  EXPECT_SHAPE("Split", {{"num_split", int64_t{2}}}, {"[]", "[2,4]"}, "[?,?];[?,?]");
}

TEST(SplitV, GivesPartsOfGivenSizes) {
  const Tensor x = TensorOf<float>({2, 4}, {1, 2, 3, 4, 5, 6, 7, 8});
  const auto call = [&](Tensor sizes, int32_t axis, int64_t n) {
    return OpCall("SplitV").Input(x).Input(std::move(sizes)).Input(Int(axis)).Attr("num_split", n);
  };
  ASSERT_OK_AND_ASSIGN(std::vector<Tensor> parts, RunOp(call(Ints({1, -1, 0}), 1, 3)));
  ExpectTensorEqual(parts[0], TensorOf<float>({2, 1}, {1, 5}));
  ExpectTensorEqual(parts[1], TensorOf<float>({2, 3}, {2, 3, 4, 6, 7, 8}));
  ExpectTensorEqual(parts[2], TensorOf<float>({2, 0}, {}));
  ExpectOpError(call(Ints({1, 2}), 1, 2), kInvalid,
                "size_splits must add up to the size of split_dim 4, got 3");
  ExpectOpError(call(Ints({5, -1}), 1, 2), kInvalid, "add up to at most the size");
  ExpectOpError(call(Ints({-1, -1}), 1, 2), kInvalid, "at most one -1");
  ExpectOpError(call(Ints({-2, 6}), 1, 2), kInvalid, "size_splits[0] must be >= -1, got -2");
  ExpectOpError(call(Ints({4}), 1, 2), kInvalid, "num_split = 2 elements, got 1");
  EXPECT_SHAPE("SplitV", {{"num_split", int64_t{2}}}, {"[2,4]", Ints({1, -1}), Int(1)},
               "[2,1];[2,3]");
  EXPECT_SHAPE("SplitV", {{"num_split", int64_t{2}}}, {"[2,4]", "[2]", Int(1)}, "[2,?];[2,?]");
}

TEST(SplitV, OneSizeThatIsNotKnownIsTheRest) {
  Scope scope;
  const Output x = TestInput(scope, DT_FLOAT, {2, 4});
  const Output size = ShapeOf(scope, TestInput(scope, DT_FLOAT, {-1}));
  const auto shapes = [&](std::initializer_list<int32_t> others) {
    const Output sizes =
        ConcatV2(scope, {size, Const<int32_t>(scope, others)}, Const(scope, int32_t{0}));
    std::string text;
    for (const Output& part :
         SplitV(scope, x, sizes, Const(scope, int32_t{1}), static_cast<int>(others.size()) + 1)) {
      text += scope.shape(part).ToString();
    }
    return text;
  };
  EXPECT_EQ(shapes({3}), "[2,1][2,3]");
  EXPECT_EQ(shapes({1, -1}), "[2,?][2,1][2,?]");
  EXPECT_EQ(scope.status(), absl::OkStatus());
  shapes({5});
  EXPECT_STATUS(scope.status(), kInvalid, "must add up to at most the size of split_dim 4, got 5");
}

TEST(ConcatGradients, AnAxisOfOneElementCountsAsAScalar) {
  const Tensor x = TensorOf<double>({1, 2}, {1, 2});
  ExpectGradientsMatch(
      [](const Scope& s, const std::vector<Output>& in) {
        return ConcatV2(s, in, Const<int32_t>(s, {1}));
      },
      {x, x});
}

TEST(ConcatGradients, MatchFiniteDifferences) {
  const Tensor a = TensorOf<double>({2, 2}, {1, -2, 3, 4}), b = TensorOf<double>({2, 1}, {5, 6});
  ExpectGradientsMatch(
      [](const Scope& s, const std::vector<Output>& in) {
        return ConcatV2(s, in, Const(s, int64_t{-1}));
      },
      {a, b});
  ExpectGradientsMatch(
      [](const Scope& s, const std::vector<Output>& in) {
        return Concat(s, Const(s, int32_t{1}), in);
      },
      {a, b, a});
  ExpectGradientsMatch(
      [](const Scope& s, const std::vector<Output>& in) { return Pack(s, in, {.axis = 1}); },
      {a, a});
  ExpectGradientsMatch(BuildOutputs([](const Scope& s, const std::vector<Output>& in) {
                         return Unpack(s, in[0], 2, {.axis = 1});
                       }),
                       {a});
  ExpectGradientsMatch(BuildOutputs([](const Scope& s, const std::vector<Output>& in) {
                         return Split(s, Const(s, int32_t{1}), in[0], 2);
                       }),
                       {a});
  // One part only: the others contribute zeros.
  ExpectGradientsMatch(
      [](const Scope& s, const std::vector<Output>& in) {
        return SplitV(s, in[0], Const<int32_t>(s, {1, 1}), Const(s, int32_t{0}), 2)[1];
      },
      {a});
}

}  // namespace
}  // namespace millrace
