// SPDX-License-Identifier: Apache-2.0
#include "ops/random/random.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "core/testing/tensor_testing.h"
#include "graph/graph.h"
#include "gtest/gtest.h"
#include "runtime/testing/op_test.h"

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

OpCall Call(const char* op, Tensor shape, DType dtype, int64_t seed, int64_t seed2) {
  return OpCall(op)
      .Input(std::move(shape))
      .Attr("dtype", dtype)
      .Attr("seed", seed)
      .Attr("seed2", seed2);
}
Tensor Ints(std::initializer_list<int32_t> values) { return Tensor::Vector<int32_t>(values); }

TEST(Random, EqualSeedsGiveTensorFlowsNumbers) {
  ExpectTensorNear(
      RunOp1(Call("RandomUniform", Ints({5}), DT_FLOAT, 87654321, 1)),
      TensorOf<float>({5}, {0.23903739f, 0.92039955f, 0.05051243f, 0.49574447f, 0.83552229f}), 0,
      1e-8);
  ExpectTensorNear(RunOp1(Call("RandomStandardNormal", Ints({2, 2}), DT_FLOAT, 5, 1)),
                   TensorOf<float>({2, 2}, {-1.3768897f, -0.0125832f, -0.169515f, 1.0824056f}), 0,
                   2e-7);
  ExpectTensorNear(RunOp1(Call("TruncatedNormal", Ints({4}), DT_FLOAT, 1, 2)),
                   TensorOf<float>({4}, {-1.046779f, 0.8397046f, 1.235836f, 0.3037427f}), 0, 6e-7);
}

TEST(Random, NumbersDoNotDependOnThreads) {
  for (const char* op : {"RandomUniform", "RandomStandardNormal", "TruncatedNormal"}) {
    OpTestDevice one(1), four(4);
    ExpectTensorEqual(RunOp1(Call(op, Ints({10001}), DT_FLOAT, 3, 4).On(&one)),
                      RunOp1(Call(op, Ints({10001}), DT_FLOAT, 3, 4).On(&four)));
  }
}

TEST(Random, WithoutSeedsEveryKernelHasItsOwnRow) {
  const Tensor a = RunOp1(Call("RandomUniform", Ints({8}), DT_DOUBLE, 0, 0));
  const Tensor b = RunOp1(Call("RandomUniform", Ints({8}), DT_DOUBLE, 0, 0));
  EXPECT_NE(a, b);
}

TEST(Random, IntegersAreInsideOfTheirRange) {
  const auto call = [](auto low, auto high, int32_t n) {
    return OpCall("RandomUniformInt")
        .Input(Ints({n}))
        .Input(Tensor::Scalar(low))
        .Input(Tensor::Scalar(high))
        .Attr("seed", int64_t{1})
        .Attr("seed2", int64_t{2});
  };
  const Tensor t = RunOp1(call(int32_t{-2}, int32_t{3}, 1000));
  for (const int32_t v : t.flat<int32_t>()) {
    ASSERT_GE(v, -2);
    ASSERT_LT(v, 3);
  }
  EXPECT_EQ(RunOp1(call(int64_t{7}, int64_t{8}, 3)), TensorOf<int64_t>({3}, {7, 7, 7}));
  ExpectOpError(call(int32_t{5}, int32_t{5}, 1), kInvalid, "Need minval < maxval, got 5 >= 5");
  EXPECT_EQ(RunOp1(call(int32_t{5}, int32_t{5}, 0)).num_elements(), 0);
}

TEST(Random, ShapesFollowTheInput) {
  EXPECT_SHAPE("RandomUniform", {{"dtype", DT_FLOAT}}, {Ints({2, 3})}, "[2,3]");
  EXPECT_SHAPE("TruncatedNormal", {{"dtype", DT_FLOAT}, {"T", DT_INT32}}, {"[2]"}, "[?,?]");
  EXPECT_SHAPE_ERROR("RandomUniform", {{"dtype", DT_FLOAT}}, {Ints({2, -1})},
                     "shape[1] must be >= 0, got -1");
  EXPECT_SHAPE_ERROR("RandomUniformInt", {},
                     {Ints({1}), Tensor::Scalar<int32_t>(5), Tensor::Scalar<int32_t>(5)},
                     "Need minval < maxval, got 5 >= 5");
  ExpectOpError(Call("RandomUniform", Ints({-1}), DT_FLOAT, 1, 2), kInvalid, "-1");
  ExpectOpError(Call("RandomUniform", Tensor::Scalar<int32_t>(1), DT_FLOAT, 1, 2), kInvalid,
                "must");
}

OpCall Draw(const Tensor& logits, int32_t num_samples) {
  return OpCall("Multinomial")
      .Input(logits)
      .Input(Tensor::Scalar<int32_t>(num_samples))
      .Attr("seed", int64_t{1})
      .Attr("seed2", int64_t{2});
}

TEST(Multinomial, DrawsClassesByTheirLogits) {
  // Odds of 1 : 3 : 0 : 4; the same far from 0, where exp() alone would be infinite or 0.
  const float kNever = -std::numeric_limits<float>::infinity(), kLog3 = std::log(3.0f);
  const float kLog4 = std::log(4.0f);
  constexpr int32_t kDraws = 8000;
  const Tensor drawn = RunOp1(
      Draw(TensorOf<float>({3, 4}, {0, kLog3, kNever, kLog4, 1000, 1000 + kLog3, kNever,
                                    1000 + kLog4, -1000, -1000 + kLog3, kNever, -1000 + kLog4}),
           kDraws));
  ASSERT_EQ(drawn.shape(), ShapeOf({3, kDraws}));
  for (size_t row = 0; row < 3; ++row) {
    std::vector<double> counts(4);
    for (const int64_t i : drawn.flat<int64_t>().subspan(row * kDraws, kDraws)) {
      ASSERT_GE(i, 0);
      ASSERT_LT(i, 4);
      ++counts[static_cast<size_t>(i)];
    }
    EXPECT_NEAR(counts[0], 1000, 200);
    EXPECT_NEAR(counts[1], 3000, 200);
    EXPECT_EQ(counts[2], 0);
    EXPECT_NEAR(counts[3], 4000, 200);
  }
}

// A sample is where TensorFlow's uniform double of the same seeds falls.
TEST(Multinomial, EqualSeedsGiveTensorFlowsClasses) {
  ExpectTensorEqual(
      RunOp1(OpCall("Multinomial")
                 .Input(TensorOf<float>({1, 2}, {3, 4}))
                 .Input(Tensor::Scalar<int32_t>(20))
                 .Attr("seed", int64_t{1})
                 .Attr("seed2", int64_t{106})),
      TensorOf<int64_t>({1, 20}, {1, 0, 0, 1, 0, 0, 0, 1, 1, 1, 0, 1, 0, 1, 0, 1, 0, 0, 1, 0}));
  const Tensor uniform = RunOp1(Call("RandomUniform", Ints({2, 5}), DT_DOUBLE, 1, 2));
  const Tensor drawn =
      RunOp1(Draw(*Tensor::Zeros(DT_FLOAT, ShapeOf({2, 4})), 5).Attr("output_dtype", DT_INT32));
  for (size_t i = 0; i < 10; ++i) {
    EXPECT_EQ(drawn.flat<int32_t>()[i], static_cast<int32_t>(uniform.flat<double>()[i] * 4)) << i;
  }
}

TEST(Multinomial, OtherTypesAndThreads) {
  const Tensor half = TensorOf<Half>({1, 3}, {ToHalf(-7), ToHalf(60000), ToHalf(3)});
  ExpectTensorEqual(RunOp1(Draw(half, 3)), TensorOf<int64_t>({1, 3}, {1, 1, 1}));
  const Tensor brain = TensorOf<Bfloat16>({1, 2}, {ToBfloat16(-1e30f), ToBfloat16(5)});
  ExpectTensorEqual(RunOp1(Draw(brain, 2)), TensorOf<int64_t>({1, 2}, {1, 1}));
  OpTestDevice one(1), four(4);
  const Tensor many = *Tensor::Zeros(DT_DOUBLE, ShapeOf({500, 7}));
  ExpectTensorEqual(RunOp1(Draw(many, 33).On(&one)), RunOp1(Draw(many, 33).On(&four)));
  EXPECT_EQ(RunOp1(Draw(many, 0)).shape(), ShapeOf({500, 0}));
  EXPECT_EQ(RunOp1(Draw(TensorOf<float>({0, 2}, {}), 3)).shape(), ShapeOf({0, 3}));
}

TEST(Multinomial, RefusesWhatCannotBeDrawn) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  ExpectOpError(Draw(TensorOf<float>({2, 2}, {0, 1, nan, nan}), 1), kInvalid,
                "logits must have a finite value in each row, got none in row 1");
  ExpectOpError(Draw(TensorOf<float>({2}, {0, 1}), 1), kInvalid,
                "logits must have rank 2, got shape [2]");
  ExpectOpError(Draw(TensorOf<float>({2, 0}, {}), 1), kInvalid,
                "logits must have 1 to 2147483647 classes, got shape [2,0]");
  ExpectOpError(Draw(TensorOf<float>({1, 1}, {0}), -1), kInvalid,
                "num_samples must be >= 0, got -1");
  EXPECT_SHAPE("Multinomial", {}, {"[2,?]", Tensor::Scalar<int32_t>(7)}, "[2,7]");
  EXPECT_SHAPE("Multinomial", {}, {"<unknown>", "[]"}, "[?,?]");
  EXPECT_SHAPE_ERROR("Multinomial", {}, {"[2,0]", "[]"}, "logits must have 1 to");
  EXPECT_SHAPE_ERROR("Multinomial", {}, {"[2,3]", "[1]"}, "num_samples must be a scalar");
}

TEST(RandomShuffle, PermutesRows) {
  const Tensor x =
      TensorOf<std::string>({5, 2}, {"a", "A", "b", "B", "c", "C", "d", "D", "e", "E"});
  const auto call = [&] {
    return OpCall("RandomShuffle").Input(x).Attr("seed", int64_t{1}).Attr("seed2", int64_t{2});
  };
  const Tensor y = RunOp1(call());
  std::vector<std::string> rows;
  for (size_t r = 0; r < 5; ++r) {
    rows.push_back(y.flat<std::string>()[2 * r] + y.flat<std::string>()[2 * r + 1]);
  }
  std::sort(rows.begin(), rows.end());
  EXPECT_EQ(rows, (std::vector<std::string>{"aA", "bB", "cC", "dD", "eE"}));
  EXPECT_EQ(RunOp1(call()), y);
  EXPECT_EQ(RunOp1(OpCall("RandomShuffle").Input(TensorOf<float>({0}, {}))).num_elements(), 0);
}

TEST(RandomSeed, FollowsTheRuleOfGraphAndOwnSeed) {
  Scope scope;
  EXPECT_EQ(RandomSeed(scope, std::nullopt).seed, 0);
  EXPECT_EQ(RandomSeed(scope, std::nullopt).seed2, 0);
  EXPECT_EQ(RandomSeed(scope, 5).seed, 87654321);
  EXPECT_EQ(RandomSeed(scope, 5).seed2, 5);
  scope.SetGraphSeed(7);
  EXPECT_EQ(RandomSeed(scope, 5).seed, 7);
  // The first random tensor of an empty graph stands behind its three constants.
  const Output normal = TruncatedNormal(scope, ShapeOf({2}), DT_FLOAT, 0, 1);
  ASSERT_TRUE(normal.valid()) << scope.status();
  const Node* node = scope.graph()->FindNode("truncated_normal/TruncatedNormal");
  ASSERT_NE(node, nullptr);
  EXPECT_EQ(*GetAttr<int64_t>(node->def(), "seed"), 7);
  EXPECT_EQ(*GetAttr<int64_t>(node->def(), "seed2"), 3);
  scope.SetGraphSeed(2147483647);
  EXPECT_EQ(RandomSeed(scope, 0).seed, 0);
  EXPECT_EQ(RandomSeed(scope, 0).seed2, 2147483647);
}

TEST(RandomTensors, AreScaledAndMoved) {
  Scope scope;
  ASSERT_OK_AND_ASSIGN(
      const std::vector<Tensor> t,
      EvaluateGraph(scope, {},
                    {RandomUniform(scope, ShapeOf({100}), DT_FLOAT, -3, -2, {.seed = 1}),
                     TruncatedNormal(scope, ShapeOf({100}), DT_DOUBLE, 10, 0.5, {.seed = 1}),
                     RandomNormal(scope, ShapeOf({100}), DT_FLOAT, 5, 0, {.seed = 1})}));
  for (const float v : t[0].flat<float>()) {
    ASSERT_GE(v, -3.0f);
    ASSERT_LT(v, -2.0f);
  }
  for (const double v : t[1].flat<double>()) {
    ASSERT_GT(v, 9);
    ASSERT_LT(v, 11);
  }
  for (const float v : t[2].flat<float>()) ASSERT_EQ(v, 5.0f);
}

}  // namespace
}  // namespace millrace
