// SPDX-License-Identifier: Apache-2.0
//
// Values: those of TensorFlow Estimator's own tests of its networks, or computed by hand.

#include "estimator/canned/dnn.h"

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "estimator/canned/testing/premade_test.h"
#include "estimator/columns/feature_column.h"
#include "estimator/heads/regression_head.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "layers/variable.h"
#include "ops/array/constant.h"
#include "ops/math/cwise_binary.h"
#include "train/learning_rates.h"
#include "train/optimizer.h"

// covers: training: pre-made Estimators have TensorFlow's defaults and names; checkpoint and
//   signatures of the same model in TensorFlow have the same names, dtypes, shapes and parts
// covers: article 0-10, 0-11: pre-made Estimators; wide and deep with two optimizers

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

class DnnTest : public PremadeTest {
 protected:
  // Two hidden layers of two; of 10 they make 2.38, 0; of 5 1.38, 0.
  TensorList HiddenLayers() {
    return {{"dnn/hiddenlayer_0/kernel", Tensor::Of({{.6f, .5f}})},
            {"dnn/hiddenlayer_0/bias", Tensor::Of({.1f, -.1f})},
            {"dnn/hiddenlayer_1/kernel", Tensor::Of({{1.f, .8f}, {-.8f, -1.f}})},
            {"dnn/hiddenlayer_1/bias", Tensor::Of({.2f, -.2f})}};
  }
};

TEST_F(DnnTest, PredictsByTheValuesOfACheckpoint) {
  TensorList tensors = HiddenLayers();
  tensors.emplace_back("dnn/logits/kernel", Tensor::Of({{-1.f}, {1.f}}));
  tensors.emplace_back("dnn/logits/bias", Tensor::Of({.3f}));
  WriteCheckpoint(tensors, 100);
  const Estimator estimator =
      DNNRegressor({.hidden_units = {2, 2}, .feature_columns = {NumericColumn("age")}}, InDir());
  const auto predicted = Predicted(estimator, Rows({{"age", Tensor::Of({10.f, 5.f})}}));
  ExpectTensorNear(predicted.at("predictions")[0], Tensor::Of({-2.08f}), 1e-5, 0);
  ExpectTensorNear(predicted.at("predictions")[1], Tensor::Of({-1.08f}), 1e-5, 0);
  ASSERT_OK_AND_ASSIGN(
      const EvalResult result,
      estimator.Evaluate(Rows({{"age", Tensor::Of({10.f})}}, {Tensor::Of({1.f})})));
  EXPECT_NEAR(result["loss"], 9.4864, 1e-4);
  EXPECT_EQ(result.global_step, 100);
}

TEST_F(DnnTest, PredictsSeveralLogits) {
  TensorList tensors = HiddenLayers();
  tensors.emplace_back("dnn/logits/kernel", Tensor::Of({{-1.f, 1.f, .5f}, {-1.f, 1.f, .5f}}));
  tensors.emplace_back("dnn/logits/bias", Tensor::Of({.3f, -.3f, .0f}));
  WriteCheckpoint(tensors);
  const Estimator estimator = DNNClassifier(
      {.hidden_units = {2, 2}, .feature_columns = {NumericColumn("age")}, .n_classes = 3}, InDir());
  const auto predicted = Predicted(estimator, Rows({{"age", Tensor::Of({10.f, 5.f})}}));
  ExpectTensorNear(predicted.at("logits")[0], Tensor::Of({-2.08f, 2.08f, 1.19f}), 1e-5, 1e-6);
  ExpectTensorNear(predicted.at("logits")[1], Tensor::Of({-1.08f, 1.08f, .69f}), 1e-5, 1e-6);
  ExpectTensorEqual(predicted.at("classes")[0], Tensor::Of<std::string>({"1"}));
}

TEST_F(DnnTest, NormalizesByMovingAveragesWhenItDoesNotTrain) {
  // One unit: relu(2 * 3) = 6; (6 - 4) / sqrt(0.25) * 5 + 1 = 21 (but for epsilon).
  WriteCheckpoint({{"dnn/hiddenlayer_0/kernel", Tensor::Of({{2.f}})},
                   {"dnn/hiddenlayer_0/bias", Tensor::Of({0.f})},
                   {"dnn/hiddenlayer_0/batchnorm_0/gamma", Tensor::Of({5.f})},
                   {"dnn/hiddenlayer_0/batchnorm_0/beta", Tensor::Of({1.f})},
                   {"dnn/hiddenlayer_0/batchnorm_0/moving_mean", Tensor::Of({4.f})},
                   {"dnn/hiddenlayer_0/batchnorm_0/moving_variance", Tensor::Of({.249f})},
                   {"dnn/logits/kernel", Tensor::Of({{1.f}})},
                   {"dnn/logits/bias", Tensor::Of({0.f})}});
  const Estimator estimator = DNNRegressor({.hidden_units = {1},
                                            .feature_columns = {NumericColumn("x")},
                                            .optimizer = GradientDescentOptions{.learning_rate = 0},
                                            .batch_norm = true},
                                           InDir());
  const auto predicted = Predicted(estimator, Rows({{"x", Tensor::Of({3.f})}}));
  ExpectTensorNear(predicted.at("predictions")[0], Tensor::Of({21.f}), 1e-5, 0);
  // A step moves the averages by a thousandth: the batch has 2 and 6, mean 4, and variance 4.
  ASSERT_OK(estimator.Train(Rows({{"x", Tensor::Of({1.f, 3.f})}}, {Tensor::Of({0.f, 0.f})}),
                            {.steps = 1}));
  EXPECT_NEAR(Number(estimator, "dnn/hiddenlayer_0/batchnorm_0/moving_mean"), 4, 1e-5);
  EXPECT_NEAR(Number(estimator, "dnn/hiddenlayer_0/batchnorm_0/moving_variance"),
              .249 * .999 + 4 * .001, 1e-5);
}

TEST_F(DnnTest, AdagradIsTheOptimizerAtOneTwentieth) {
  const Estimator estimator = DNNRegressor({.feature_columns = {NumericColumn("x")}}, InDir());
  ASSERT_OK(
      estimator.Train(Rows({{"x", Tensor::Of({2.f})}}, {Tensor::Of({50.f})}), {.max_steps = 1}));
  // The bias begins at 0. Of a large gradient a step is the learning rate.
  EXPECT_NEAR(Number(estimator, "dnn/logits/bias"), 0.05, 1e-4);
  EXPECT_EQ(
      VariablesIn(estimator.latest_checkpoint()),
      (std::vector<std::string>{"dnn/logits/bias float [1]", "dnn/logits/bias/Adagrad float [1]",
                                "dnn/logits/kernel float [1,1]",
                                "dnn/logits/kernel/Adagrad float [1,1]", "global_step int64 []"}));
}

TEST_F(DnnTest, ItsSummariesAreOfLayers) {
  const Estimator estimator =
      DNNClassifier({.hidden_units = {4}, .feature_columns = {NumericColumn("x")}}, InDir());
  ASSERT_OK(estimator.Train(Rows({{"x", Tensor::Of({2.f})}}, {Tensor::Of<int64_t>({1})}),
                            {.max_steps = 1}));
  EXPECT_EQ(SummaryTags(),
            (std::vector<std::string>{"average_loss", "dnn/dnn/hiddenlayer_0/activation",
                                      "dnn/dnn/hiddenlayer_0/fraction_of_zero_values",
                                      "dnn/dnn/logits/activation",
                                      "dnn/dnn/logits/fraction_of_zero_values", "loss"}));
}

TEST_F(DnnTest, DropsOutOnlyWhileItTrains) {
  const Estimator estimator = DNNRegressor({.hidden_units = {64},
                                            .feature_columns = {NumericColumn("x")},
                                            .optimizer = GradientDescentOptions{.learning_rate = 0},
                                            .dropout = 0.5},
                                           InDir());
  const InputFn input = Rows({{"x", Tensor::Of({1.f, 2.f})}}, {Tensor::Of({0.f, 0.f})});
  ASSERT_OK_AND_ASSIGN(const TrainOutcome first, estimator.Train(input, {.max_steps = 1}));
  ASSERT_OK_AND_ASSIGN(const TrainOutcome second, estimator.Train(input, {.max_steps = 3}));
  EXPECT_NE(first.loss, second.loss);
  ASSERT_OK_AND_ASSIGN(const EvalResult a, estimator.Evaluate(input));
  ASSERT_OK_AND_ASSIGN(const EvalResult b, estimator.Evaluate(input));
  EXPECT_EQ(a["loss"], b["loss"]);
}

TEST_F(DnnTest, TakesAnOptimizerInEveryForm) {
  const InputFn input = Rows({{"x", Tensor::Of({2.f})}}, {Tensor::Of({50.f})});
  const auto bias_after = [&](const OptimizerChoice& optimizer, int64_t steps) {
    fs()->RecursivelyDelete(dir_).IgnoreError();
    const Estimator estimator = DNNRegressor(
        {.feature_columns = {NumericColumn(
             "x",
             {.normalizer = [](const Scope& scope, const Output& x) { return Sub(scope, x, x); }})},
         .optimizer = optimizer},
        InDir());
    EXPECT_OK(estimator.Train(input, {.max_steps = steps}));
    return Number(estimator, "dnn/logits/bias");
  };
  // The gradient of (b - 50)^2 is -100.
  EXPECT_NEAR(bias_after("SGD", 1), 0.05 * 100, 1e-4);
  EXPECT_NEAR(bias_after("Adam", 1), 0.05, 1e-4);
  EXPECT_NEAR(bias_after(GradientDescentOptions{.learning_rate = 0.01}, 1), 1, 1e-4);
  EXPECT_NEAR(bias_after(std::make_shared<GradientDescentOptimizer>(
                             GradientDescentOptions{.learning_rate = 0.02}),
                         1),
              2, 1e-4);
  const auto decayed = [](const Scope& scope) {
    return std::make_unique<GradientDescentOptimizer>(GradientDescentOptions{
        .learning_rate = PiecewiseConstant(scope, GlobalStep(scope).value, {0}, {0.01, 0.0})});
  };
  EXPECT_NEAR(bias_after(decayed, 3), 1, 1e-4) << "the second step has no rate";
}

TEST_F(DnnTest, AdamsPowersAreInTheHead) {
  const Estimator estimator =
      DNNRegressor({.feature_columns = {NumericColumn("x")}, .optimizer = "Adam"}, InDir());
  ASSERT_OK(
      estimator.Train(Rows({{"x", Tensor::Of({2.f})}}, {Tensor::Of({5.f})}), {.max_steps = 1}));
  // TensorFlow builds the head of a network alone in the network's scope.
  EXPECT_EQ(
      VariablesIn(estimator.latest_checkpoint()),
      (std::vector<std::string>{"dnn/head/beta1_power float []", "dnn/head/beta2_power float []",
                                "dnn/logits/bias float [1]", "dnn/logits/bias/Adam float [1]",
                                "dnn/logits/bias/Adam_1 float [1]", "dnn/logits/kernel float [1,1]",
                                "dnn/logits/kernel/Adam float [1,1]",
                                "dnn/logits/kernel/Adam_1 float [1,1]", "global_step int64 []"}));
}

TEST_F(DnnTest, LearnsTheExclusiveOr) {
  const Estimator estimator =
      DNNClassifier({.hidden_units = {16, 8},
                     .feature_columns = {NumericColumn("x", {.shape = {2}})},
                     .optimizer = AdamOptions{.learning_rate = 0.05},
                     .batch_norm = false},
                    InDir());
  const InputFn input = Rows({{"x", Tensor::Of({{0.f, 0.f}, {0.f, 1.f}, {1.f, 0.f}, {1.f, 1.f}})}},
                             {Tensor::Of<int64_t>({0, 1, 1, 0})});
  ASSERT_OK(estimator.Train(input, {.max_steps = 200}));
  ASSERT_OK_AND_ASSIGN(const EvalResult result, estimator.Evaluate(input));
  EXPECT_EQ(result["accuracy"], 1);
  EXPECT_NEAR(result["auc"], 1, 1e-5);
}

TEST_F(DnnTest, WhatIsWrongIsKeptWithItsLine) {
  const std::vector<DenseColumn> x = {NumericColumn("x")};
  EXPECT_STATUS(DNNClassifier({.hidden_units = {2}}, InDir()).status(), kInvalid,
                "DNNClassifier: feature_columns must be given, got none; built at");
  EXPECT_STATUS(DNNClassifier({.hidden_units = {2, 0}, .feature_columns = x}, InDir()).status(),
                kInvalid, "DNNClassifier: hidden_units must be >= 1, got 0");
  EXPECT_STATUS(DNNRegressor({.feature_columns = x, .dropout = 1.0}, InDir()).status(), kInvalid,
                "DNNRegressor: dropout must be in [0, 1), got 1");
  EXPECT_STATUS(DNNRegressor({.feature_columns = x, .optimizer = "adam"}, InDir()).status(),
                kInvalid, "DNNRegressor: optimizer must be Adagrad, Adam, Ftrl, RMSProp or SGD");
  EXPECT_STATUS(DNNEstimator({.feature_columns = x}, InDir()).status(), kInvalid,
                "DNNEstimator: head must be given, got none");
  EXPECT_STATUS(
      DNNEstimator({.head = RegressionHead({.label_dimension = 0}), .feature_columns = x}, InDir())
          .status(),
      kInvalid, "RegressionHead: label_dimension must be >= 1");
  const auto null = [] { return std::unique_ptr<Optimizer>(); };
  EXPECT_STATUS(DNNRegressor({.feature_columns = x, .optimizer = null}, InDir())
                    .Train(Rows({{"x", Tensor::Of({1.f})}}, {Tensor::Of({1.f})}), {.max_steps = 1}),
                kInvalid, "optimizer must be a function that returns one, got a null one");
}

TEST_F(DnnTest, TheNameOfItsVariablesMustBeFree) {
  const Estimator estimator = DNNRegressor({.feature_columns = {NumericColumn("x")}}, InDir());
  const auto input = [](const Scope& scope) {
    return Input({{"x", Const(scope.WithName("dnn"), Tensor::Of({1.f}))}},
                 Const(scope, Tensor::Of({1.f})));
  };
  EXPECT_STATUS(estimator.Train(input, {.max_steps = 1}), absl::StatusCode::kFailedPrecondition,
                "the name 'dnn' must be free for the variables of the model");
}

}  // namespace
}  // namespace millrace
