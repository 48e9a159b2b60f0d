// SPDX-License-Identifier: Apache-2.0
#include "layers/regularizers.h"

#include <cmath>
#include <limits>
#include <vector>

#include "core/testing/tensor_testing.h"
#include "graph/graph.h"
#include "gtest/gtest.h"
#include "layers/embedding.h"
#include "layers/losses.h"
#include "ops/ops.h"
#include "runtime/testing/op_test.h"

// covers: variables: regularizers are scaled norms of the weights, with their gradients and
//   TensorFlow's names

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

TEST(Regularizers, AreScaledNormsOfTheWeights) {
  Scope scope;
  const Output w = TestInput(scope, DT_FLOAT, {2, 2});
  const std::vector<Output> losses = {L1(0.5)(scope, w), L2(0.5)(scope, w), L1L2(2, 4)(scope, w),
                                      L1L2(2, 0)(scope, w), L1L2(0, 4)(scope, w)};
  ASSERT_OK(scope.status());
  ASSERT_OK_AND_ASSIGN(const auto got,
                       EvaluateGraph(scope, {{w, TensorOf<float>({2, 2}, {1, -2, 0, 3})}}, losses));
  const float want[] = {3, 3.5, 12 + 28, 12, 28};
  for (size_t i = 0; i < losses.size(); ++i) ExpectTensorEqual(got[i], Tensor::Scalar(want[i]));
}

TEST(Regularizers, HaveGradientsInEveryFloatingType) {
  const auto build = [](const Scope& s, const std::vector<Output>& x) {
    return L1L2(0.5, 0.25)(s, x[0]);
  };
  ExpectGradientsMatch(build, {TensorOf<float>({3}, {1, -2, 3})});
  ExpectGradientsMatch(build, {TensorOf<double>({3}, {1, -2, 3})});
}

TEST(Regularizers, HaveTensorFlowsNames) {
  Scope scope;
  const Output w = TestInput(scope, DT_FLOAT, {2});
  const Scope inner = scope.WithSubScope("dense/kernel/Regularizer");
  EXPECT_EQ(L2(0.1)(inner, w).name(), "dense/kernel/Regularizer/l2_regularizer:0");
  EXPECT_EQ(L1(0.1)(scope, w).name(), "l1_regularizer:0");
  EXPECT_EQ(L1(0.1)(scope, w).name(), "l1_regularizer_1:0");
  EXPECT_EQ(L1L2(0.1, 0.1)(scope, w).name(), "l1_l2_regularizer/Add:0");
  EXPECT_NE(scope.graph()->FindNode("dense/kernel/Regularizer/l2_regularizer/scale"), nullptr);
  EXPECT_NE(scope.graph()->FindNode("dense/kernel/Regularizer/l2_regularizer/L2Loss"), nullptr);
}

// A second one of a name has a scope of its own, all of whose nodes stand in it.
TEST(Regularizers, StandInAScopeOfTheirOwn) {
  Scope scope;
  const Output w = TestInput(scope, DT_FLOAT, {2});
  L2(0.1)(scope, w);
  L2(0.2)(scope, w);
  const Scope mine = scope.WithSubScope("mine");
  L1(0.1)(mine.WithName("penalty"), w);
  const Output third = L1(0.1)(mine.WithName("penalty"), w);
  EXPECT_EQ(L1(0.1)(mine.WithName(mine.UniqueName("penalty") + "/"), w).name(), "mine/penalty_2:0");
  ASSERT_OK(scope.status());
  std::vector<std::string> names;
  for (const auto& node : scope.graph()->nodes()) {
    if (node != nullptr && node->op() != "_OpTestInput") names.push_back(node->name());
  }
  const auto all = [](const std::string& name, const char* part, bool axes) {
    std::vector<std::string> names = {name + "/scale"};
    names.push_back(absl::StrCat(name, "/", part));
    if (axes) {
      names.push_back(name + "/Const");
      names.push_back(name + "/Sum");
    }
    names.push_back(name);
    return names;
  };
  std::vector<std::string> want;
  for (const auto& part :
       {all("l2_regularizer", "L2Loss", false), all("l2_regularizer_1", "L2Loss", false),
        all("mine/penalty", "Abs", true), all("mine/penalty_1", "Abs", true),
        all("mine/penalty_2", "Abs", true)}) {
    want.insert(want.end(), part.begin(), part.end());
  }
  EXPECT_EQ(names, want);
  // What is built from the result stands beside it.
  EXPECT_EQ((2 * third).name(), "mine/mul:0");
}

// The sum of the squares of 1,000,000 weights is not in half; a part of it is.
TEST(Regularizers, OfSixteenBitsAreAddedUpInFloat) {
  for (const DType dtype : {DT_HALF, DT_BFLOAT16}) {
    Scope scope;
    const Output w =
        Cast(scope, Fill(scope, Const<int64_t>(scope, {1000000}), Const(scope, 0.5f)), dtype);
    const std::vector<Output> losses = {L2(1e-4)(scope, w), L1(1e-4)(scope, w),
                                        L1L2(1e-4, 1e-4)(scope, w)};
    std::vector<Output> wide;
    for (const Output& loss : losses) {
      EXPECT_EQ(loss.dtype(), dtype);
      wide.push_back(Cast(scope, loss, DT_FLOAT));
    }
    EXPECT_EQ(losses[0].name(), "l2_regularizer:0");
    ASSERT_OK_AND_ASSIGN(const auto got, EvaluateGraph(scope, {}, wide));
    const float want[] = {12.5f, 50, 62.5f};
    for (size_t i = 0; i < wide.size(); ++i) {
      EXPECT_NEAR(got[i].scalar<float>(), want[i], 8e-3 * static_cast<double>(want[i]));
    }
  }
}

TEST(Regularizers, OfATableInPartsAreOfEachPartBesideIt) {
  Scope scope;
  Embedding(scope, TestInput(scope, DT_INT32, {-1}), 6, 2,
            {.regularizer = L2(0.5), .partitioner = FixedSizePartitioner(2)});
  ASSERT_OK(scope.status());
  const std::vector<Output> losses = LossesOf(scope, kRegularizationLosses);
  ASSERT_EQ(losses.size(), 2u);
  EXPECT_EQ(losses[0].name(), "embedding/embeddings/part_0/Regularizer/l2_regularizer:0");
  EXPECT_EQ(losses[1].name(), "embedding/embeddings/part_1/Regularizer/l2_regularizer:0");
}

TEST(Regularizers, AreEnteredOnceAndOnlyWhenTheyAreSome) {
  Scope scope;
  const Output w = TestInput(scope, DT_FLOAT, {2});
  EXPECT_FALSE(AddRegularizationLoss(scope, nullptr, w).valid());
  EXPECT_FALSE(AddRegularizationLoss(scope, L1(0), w).valid());
  EXPECT_FALSE(AddRegularizationLoss(scope, L2(0), w).valid());
  EXPECT_FALSE(AddRegularizationLoss(scope, L1L2(0, 0), w).valid());
  ASSERT_OK(scope.status());
  EXPECT_EQ(scope.graph()->num_nodes(), 1);
  const Output loss = AddRegularizationLoss(scope, L2(0.5), w);
  const std::vector<Output> entered = LossesOf(scope, kRegularizationLosses);
  ASSERT_EQ(entered.size(), 1u);
  EXPECT_TRUE(entered[0] == loss);
}

TEST(Regularizers, BadArgumentsAreErrorsOfTheScope) {
  struct Case {
    Regularizer regularizer;
    DType dtype;
    const char* text;
  };
  const Case cases[] = {
      {L1(-0.5), DT_FLOAT, "L1: scale must be >= 0, got -0.5; built at "},
      {L2(std::nan("")), DT_FLOAT, "L2: scale must be >= 0, got nan"},
      {L2(std::numeric_limits<double>::infinity()), DT_FLOAT, "L2: scale must be >= 0, got inf"},
      {L1L2(0.1, -1), DT_FLOAT, "L1L2: scale must be >= 0, got -1"},
      {L2(0.1), DT_INT32, "L2: weights must be floating, got int32 from 'w:0'"},
      {L1(0.1), DT_INVALID, "L1: weights must be a tensor of the graph, got an invalid Output"},
  };
  for (const Case& c : cases) {
    Scope scope;
    const Output w =
        c.dtype == DT_INVALID ? Output() : Placeholder(scope.WithName("w"), c.dtype, {2});
    EXPECT_FALSE(AddRegularizationLoss(scope, c.regularizer, w).valid());
    EXPECT_STATUS(scope.status(), kInvalid, c.text);
    EXPECT_TRUE(LossesOf(scope, kRegularizationLosses).empty());
  }
}

}  // namespace
}  // namespace millrace
