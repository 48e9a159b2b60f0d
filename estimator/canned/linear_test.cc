// SPDX-License-Identifier: Apache-2.0
//
// Values: those of TensorFlow Estimator's own tests of its linear models, or computed by hand.

#include "estimator/canned/linear.h"

#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "estimator/canned/testing/premade_test.h"
#include "estimator/columns/feature_column.h"
#include "estimator/heads/multi_label_head.h"
#include "gtest/gtest.h"

// covers: training: pre-made Estimators have TensorFlow's defaults and names; checkpoint and
//   signatures of the same model in TensorFlow have the same names, dtypes, shapes and parts
// covers: article 0-10, 0-11: pre-made Estimators; wide and deep with two optimizers

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr char kAgeWeight[] = "linear/linear_model/age/weights";
constexpr char kBias[] = "linear/linear_model/bias_weights";

class LinearTest : public PremadeTest {};

TEST_F(LinearTest, EvaluatesTheValuesOfACheckpoint) {
  WriteCheckpoint({{kAgeWeight, Tensor::Of({{11.f}})}, {kBias, Tensor::Of({2.f})}}, 100);
  const Estimator estimator = LinearRegressor({.feature_columns = {NumericColumn("age")}}, InDir());
  ASSERT_OK_AND_ASSIGN(
      const EvalResult result,
      estimator.Evaluate(Rows({{"age", Tensor::Of({1.f})}}, {Tensor::Of({10.f})})));
  // 13 for 10.
  EXPECT_EQ(result.global_step, 100);
  EXPECT_NEAR(result["loss"], 9, 1e-5);
  EXPECT_NEAR(result["average_loss"], 9, 1e-5);
  EXPECT_NEAR(result["prediction/mean"], 13, 1e-5);
  EXPECT_NEAR(result["label/mean"], 10, 1e-5);
  const auto predicted = Predicted(estimator, Rows({{"age", Tensor::Of({1.f, 2.f})}}));
  ExpectTensorNear(predicted.at("predictions")[1], Tensor::Of({24.f}), 1e-6, 0);
}

TEST_F(LinearTest, PredictsSeveralNumbers) {
  WriteCheckpoint(
      {{"linear/linear_model/x/weights", Tensor::Of({{1.f, 2.f, 3.f}, {2.f, 4.f, 6.f}})},
       {kBias, Tensor::Of({.2f, .4f, .6f})}});
  const Estimator estimator = LinearRegressor(
      {.feature_columns = {NumericColumn("x", {.shape = {2}})}, .label_dimension = 3}, InDir());
  const auto predicted = Predicted(estimator, Rows({{"x", Tensor::Of({{1.f, 2.f}, {5.f, 6.f}})}}));
  ExpectTensorNear(predicted.at("predictions")[0], Tensor::Of({5.2f, 10.4f, 15.6f}), 1e-6, 0);
  ExpectTensorNear(predicted.at("predictions")[1], Tensor::Of({17.2f, 34.4f, 51.6f}), 1e-6, 0);
}

TEST_F(LinearTest, FtrlIsTheOptimizerAtOneFifth) {
  const Estimator estimator = LinearRegressor({.feature_columns = {NumericColumn("age")}}, InDir());
  const InputFn input = Rows({{"age", Tensor::Of({2.f})}}, {Tensor::Of({5.f})});
  ASSERT_OK(estimator.Train(input, {.max_steps = 1}));
  // From 0: -learning_rate * g / sqrt(0.1 + g^2), where the gradient of (2 w + b - 5)^2 is -20,
  // -10.
  EXPECT_NEAR(Number(estimator, kAgeWeight), 0.2 * 20 / std::sqrt(0.1 + 400), 1e-5);
  EXPECT_NEAR(Number(estimator, kBias), 0.2 * 10 / std::sqrt(0.1 + 100), 1e-5);
  EXPECT_EQ(VariablesIn(estimator.latest_checkpoint()),
            (std::vector<std::string>{"global_step int64 []",
                                      "linear/linear_model/age/weights float [1,1]",
                                      "linear/linear_model/age/weights/Ftrl float [1,1]",
                                      "linear/linear_model/age/weights/Ftrl_1 float [1,1]",
                                      "linear/linear_model/bias_weights float [1]",
                                      "linear/linear_model/bias_weights/Ftrl float [1]",
                                      "linear/linear_model/bias_weights/Ftrl_1 float [1]"}));
  EXPECT_EQ(SummaryTags(), (std::vector<std::string>{"average_loss", "linear/bias",
                                                     "linear/fraction_of_zero_weights", "loss"}));
}

TEST_F(LinearTest, WithoutAnOptimizerTheRateFollowsTheColumns) {
  std::vector<FeatureColumn> columns;
  TensorList features;
  for (int i = 0; i < 36; ++i) {
    columns.push_back(NumericColumn(absl::StrCat("x", i)));
    features.emplace_back(absl::StrCat("x", i), Tensor::Of({0.f}));
  }
  const Estimator estimator =
      LinearRegressor({.feature_columns = columns, .optimizer = {}}, InDir());
  ASSERT_OK(estimator.Train(Rows(features, {Tensor::Of({5.f})}), {.max_steps = 1}));
  EXPECT_NEAR(Number(estimator, kBias), 1.0 / 6 * 10 / std::sqrt(0.1 + 100), 1e-5);
}

TEST_F(LinearTest, ClassifiesWordsByWords) {
  const auto word = CategoricalColumnWithVocabularyList("word", {"hot", "cold", "mild"});
  const Estimator estimator = LinearClassifier({.feature_columns = {word},
                                                .n_classes = 3,
                                                .label_vocabulary = {"summer", "winter", "spring"}},
                                               InDir());
  const InputFn input = Rows({{"word", Tensor::Of<std::string>({"hot", "cold", "mild", "?"})}},
                             {Tensor::Of<std::string>({"summer", "winter", "spring", "spring"})});
  ASSERT_OK(estimator.Train(input, {.max_steps = 100}));
  ASSERT_OK_AND_ASSIGN(const EvalResult result, estimator.Evaluate(input));
  EXPECT_EQ(result["accuracy"], 1);
  const auto predicted =
      Predicted(estimator, Rows({{"word", Tensor::Of<std::string>({"cold", "hot"})}}));
  ExpectTensorEqual(predicted.at("classes")[0], Tensor::Of<std::string>({"winter"}));
  ExpectTensorEqual(predicted.at("classes")[1], Tensor::Of<std::string>({"summer"}));
}

TEST_F(LinearTest, SeveralIdsAreCombinedAsItIsTold) {
  const auto id = CategoricalColumnWithIdentity("id", 3);
  WriteCheckpoint({{"linear/linear_model/id/weights", Tensor::Of({{1.f}, {10.f}, {100.f}})},
                   {kBias, Tensor::Of({0.f})}});
  for (const Combiner combiner : {Combiner::kSum, Combiner::kMean}) {
    const Estimator estimator =
        LinearRegressor({.feature_columns = {id}, .sparse_combiner = combiner}, InDir());
    const auto predicted =
        Predicted(estimator, Rows({{"id", Tensor::Of<int64_t>({{0, 1}, {2, -1}})}}));
    ExpectTensorNear(predicted.at("predictions")[0],
                     Tensor::Of({combiner == Combiner::kSum ? 11.f : 5.5f}), 1e-6, 0);
    ExpectTensorNear(predicted.at("predictions")[1], Tensor::Of({100.f}), 1e-6, 0);
  }
}

TEST_F(LinearTest, TakesAHead) {
  const Estimator estimator = LinearEstimator(
      {.head = MultiLabelHead(2), .feature_columns = {NumericColumn("x")}}, InDir());
  const InputFn input =
      Rows({{"x", Tensor::Of({1.f, -1.f})}}, {Tensor::Of<int64_t>({{1, 0}, {0, 1}})});
  ASSERT_OK(estimator.Train(input, {.max_steps = 50}));
  ASSERT_OK_AND_ASSIGN(const EvalResult result, estimator.Evaluate(input));
  EXPECT_GT(result["auc"], 0.99);
}

TEST_F(LinearTest, WhatIsWrongIsKeptWithItsLine) {
  const Estimator none = LinearClassifier({}, InDir());
  const int line = __LINE__ - 1;
  EXPECT_STATUS(none.status(), kInvalid,
                absl::StrCat("LinearClassifier: feature_columns must be given, got none; built at ",
                             __FILE__, ":", line));
  EXPECT_STATUS(none.Train(Rows({{"x", Tensor::Of({1.f})}})), kInvalid, "got none; built at");
  const std::vector<FeatureColumn> age = {NumericColumn("age")};
  EXPECT_STATUS(LinearRegressor({.feature_columns = age, .optimizer = "Nadam"}, InDir()).status(),
                kInvalid,
                "LinearRegressor: optimizer must be Adagrad, Adam, Ftrl, RMSProp or SGD, got "
                "'Nadam'; built at ");
  EXPECT_STATUS(LinearEstimator({.feature_columns = age}, InDir()).status(), kInvalid,
                "LinearEstimator: head must be given, got none");
  EXPECT_STATUS(LinearRegressor({.feature_columns = age, .label_dimension = 0}, InDir()).status(),
                kInvalid, "RegressionHead: label_dimension must be >= 1, got 0; built at");
  EXPECT_STATUS(LinearClassifier({.feature_columns = age, .n_classes = 1}, InDir()).status(),
                kInvalid, "MultiClassHead: n_classes must be > 2, got 1");
  // A column has the line that made it.
  const FeatureColumn wrong = CategoricalColumnWithHashBucket("word", 0);
  const int column_line = __LINE__ - 1;
  const Status status = LinearClassifier({.feature_columns = {wrong}}, InDir()).status();
  EXPECT_STATUS(
      status, kInvalid,
      absl::StrCat("num_buckets must be >= 1, got 0; column made at ", __FILE__, ":", column_line));
}

TEST_F(LinearTest, AFeatureThatIsMissingIsNamed) {
  const Estimator estimator = LinearRegressor({.feature_columns = {NumericColumn("age")}}, InDir());
  const Status status =
      estimator.Train(Rows({{"year", Tensor::Of({1.f})}}, {Tensor::Of({1.f})}), {.max_steps = 1})
          .status();
  EXPECT_EQ(status.code(), kInvalid);
  EXPECT_TRUE(absl::StrContains(status.message(), "'age'")) << status;
}

}  // namespace
}  // namespace millrace
