// SPDX-License-Identifier: Apache-2.0
#include "ops/random/random.h"

#include <algorithm>
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
