// SPDX-License-Identifier: Apache-2.0
#include "estimator/canned/baseline.h"

#include <cmath>
#include <string>
#include <vector>

#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "estimator/canned/testing/premade_test.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "ops/array/constant.h"

// covers: training: baseline Estimators learn the mean with TensorFlow's defaults
// covers: article 0-10, 0-11: pre-made Estimators; wide and deep with two optimizers

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

class BaselineTest : public PremadeTest {};

TEST_F(BaselineTest, LearnsTheMean) {
  const Estimator estimator = BaselineRegressor({}, InDir());
  const InputFn input =
      Rows({{"x", Tensor::Of({1.f, 2.f, 3.f, 4.f})}}, {Tensor::Of({1.f, 2.f, 3.f, 6.f})});
  ASSERT_OK(estimator.Train(input, {.max_steps = 300}));
  EXPECT_NEAR(Number(estimator, "baseline/bias"), 3, 0.01);
  ASSERT_OK_AND_ASSIGN(const EvalResult result, estimator.Evaluate(input));
  EXPECT_NEAR(result["average_loss"], 3.5, 0.01) << "the variance";
  EXPECT_EQ(VariablesIn(estimator.latest_checkpoint()),
            (std::vector<std::string>{"baseline/bias float [1]", "baseline/bias/Ftrl float [1]",
                                      "baseline/bias/Ftrl_1 float [1]", "global_step int64 []"}));
  const auto predicted = Predicted(estimator, Rows({{"anything", Tensor::Of({7.f, 8.f})}}));
  EXPECT_EQ(predicted.at("predictions").size(), 2u);
}

TEST_F(BaselineTest, FtrlIsTheOptimizerAtThreeTenths) {
  const Estimator estimator = BaselineRegressor({}, InDir());
  ASSERT_OK(
      estimator.Train(Rows({{"x", Tensor::Of({1.f})}}, {Tensor::Of({5.f})}), {.max_steps = 1}));
  EXPECT_NEAR(Number(estimator, "baseline/bias"), 0.3 * 10 / std::sqrt(0.1 + 100), 1e-5);
}

TEST_F(BaselineTest, LearnsHowOftenEachClassIs) {
  const Estimator estimator = BaselineClassifier({.n_classes = 3}, InDir());
  const InputFn input =
      Rows({{"x", Tensor::Of({1.f, 2.f, 3.f, 4.f})}}, {Tensor::Of<int64_t>({0, 2, 2, 1})});
  ASSERT_OK(estimator.Train(input, {.max_steps = 300}));
  const auto predicted = Predicted(estimator, Rows({{"x", Tensor::Of({7.f})}}));
  ExpectTensorNear(predicted.at("probabilities")[0], Tensor::Of({.25f, .25f, .5f}), 0.01, 0);
  ExpectTensorEqual(predicted.at("class_ids")[0], Tensor::Of<int64_t>({2}));
}

TEST_F(BaselineTest, ItsWeightsAreNotAskedForWhereItPredicts) {
  const Estimator estimator = BaselineRegressor({.weight_column = "w"}, InDir());
  const InputFn input = Rows({{"w", Tensor::Of({1.f, 3.f})}, {"x", Tensor::Of({1.f, 2.f})}},
                             {Tensor::Of({0.f, 4.f})});
  ASSERT_OK(estimator.Train(input, {.max_steps = 300}));
  EXPECT_NEAR(Number(estimator, "baseline/bias"), 3, 0.02);
  const auto predicted = Predicted(estimator, Rows({{"x", Tensor::Of({7.f})}}));
  EXPECT_EQ(predicted.at("predictions").size(), 1u);
  const Status status =
      estimator.Train(Rows({{"w", Tensor::Of({1.f})}}, {Tensor::Of({0.f})}), {.steps = 1}).status();
  EXPECT_STATUS(status, kInvalid, "Baseline: features must have one besides the weights");
}

TEST_F(BaselineTest, FeaturesOfOneBatchHaveOneNumberOfExamples) {
  const Estimator estimator = BaselineRegressor({}, InDir());
  const auto input = [](const Scope& scope) {
    return Input(
        {{"a", Const(scope, Tensor::Of({1.f}))}, {"b", Const(scope, Tensor::Of({1.f, 2.f}))}},
        Const(scope, Tensor::Of({1.f})));
  };
  EXPECT_STATUS(estimator.Train(input, {.max_steps = 1}), kInvalid,
                "Baseline: features must have one number of examples, got");
}

TEST_F(BaselineTest, WhatIsWrongIsKeptWithItsLine) {
  EXPECT_STATUS(BaselineClassifier({.optimizer = "x"}, InDir()).status(), kInvalid,
                "BaselineClassifier: optimizer must be Adagrad, Adam, Ftrl, RMSProp or SGD, got "
                "'x'; built at");
  EXPECT_STATUS(BaselineEstimator({}, InDir()).status(), kInvalid,
                "BaselineEstimator: head must be given, got none");
}

}  // namespace
}  // namespace millrace
