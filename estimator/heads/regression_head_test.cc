// SPDX-License-Identifier: Apache-2.0
//
// Values: those of TensorFlow Estimator's own tests of its heads, or computed by hand.

#include "estimator/heads/regression_head.h"

#include <cmath>
#include <numbers>
#include <string>
#include <vector>

#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "estimator/heads/testing/head_run.h"
#include "gtest/gtest.h"
#include "ops/array/constant.h"
#include "ops/math/cwise_binary.h"

// covers: training: heads give TensorFlow's predictions, losses, metrics, summaries and exports, by
//   its names; with weights, vocabularies, thresholds, several dimensions; wrong labels and weights
//   are named

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

TEST(RegressionHead, PredictsTheLogits) {
  HeadRun run(RegressionHead(), Mode::kPredict);
  ASSERT_OK(run.Run(Tensor::Of<int32_t>({{45}, {41}})));
  const Tensor want = Tensor::Of({{45.f}, {41.f}});
  EXPECT_EQ(KeysOf(run.predictions), (std::vector<std::string>{"predictions"}));
  ExpectTensorEqual(run.predictions["predictions"], want);
  EXPECT_EQ(KeysOf(run.spec.export_outputs),
            (std::vector<std::string>{"predict", "regression", "serving_default"}));
  ExpectTensorEqual(run.exports["serving_default/value"], want);
  ExpectTensorEqual(run.exports["regression/value"], want);
  ExpectTensorEqual(run.exports["predict/predictions"], want);
}

TEST(RegressionHead, PredictsThroughAnInverseLink) {
  const auto link = [](ScopeAt at, Output logits) { return Sub(at, logits, Const(at, 10.0f)); };
  HeadRun run(RegressionHead({.inverse_link_fn = link}), Mode::kPredict);
  ASSERT_OK(run.Run(Tensor::Of({{45.f}, {41.f}})));
  EXPECT_EQ(KeysOf(run.predictions), (std::vector<std::string>{"logits", "predictions"}));
  ExpectTensorEqual(run.predictions["predictions"], Tensor::Of({{35.f}, {31.f}}));
  ExpectTensorEqual(run.exports["predict/logits"], Tensor::Of({{45.f}, {41.f}}));
  ExpectTensorEqual(run.exports["regression/value"], Tensor::Of({{35.f}, {31.f}}));
}

TEST(RegressionHead, MeasuresAsTensorFlowDoes) {
  for (const bool known : {true, false}) {
    HeadRun run(RegressionHead(), Mode::kEval);
    run.labels = Tensor::Of<int32_t>({{43}, {44}});
    run.shapes_are_known = known;
    ASSERT_OK(run.Run(Tensor::Of({{45.f}, {41.f}})));
    EXPECT_EQ(run.loss, 13);
    ExpectMetrics(run, {{"average_loss", 6.5}, {"label/mean", 43.5}, {"prediction/mean", 43}});
  }
}

TEST(RegressionHead, WeighsExamples) {
  for (const bool as_column : {true, false}) {
    HeadRun run(RegressionHead({.weight_column = "w"}), Mode::kEval);
    run.labels = Tensor::Of<int32_t>({35, 42, 45});
    run.features["w"] =
        as_column ? Tensor::Of({{1.f}, {.1f}, {1.5f}}) : Tensor::Of({1.f, .1f, 1.5f});
    ASSERT_OK(run.Run(Tensor::Of({{45.f}, {41.f}, {44.f}})));
    EXPECT_NEAR(run.loss, 101.6, 1e-4);
    ExpectMetrics(run, {{"average_loss", 39.0769231},
                        {"label/mean", (35 + 42 * .1 + 45 * 1.5) / 2.6},
                        {"prediction/mean", (45 + 41 * .1 + 44 * 1.5) / 2.6}});
  }
}

TEST(RegressionHead, WeighsEachNumber) {
  HeadRun run(RegressionHead({.label_dimension = 3, .weight_column = "w"}), Mode::kEval);
  run.labels = Tensor::Of({{35.f, 42.f, 45.f}});
  run.features["w"] = Tensor::Of({{1.f, .1f, 1.5f}});
  ASSERT_OK(run.Run(Tensor::Of({{45.f, 41.f, 44.f}})));
  EXPECT_NEAR(run.loss, 101.6, 1e-4);
  EXPECT_NEAR(run.metrics["average_loss"], 39.0769231, 1e-4);

  HeadRun whole(RegressionHead({.label_dimension = 3, .weight_column = "w"}), Mode::kEval);
  whole.labels = Tensor::Of({{35.f, 42.f, 45.f}});
  whole.features["w"] = Tensor::Of({2.f});
  ASSERT_OK(whole.Run(Tensor::Of({{45.f, 41.f, 44.f}})));
  EXPECT_NEAR(whole.loss, 204, 1e-4);
  EXPECT_NEAR(whole.metrics["average_loss"], 34, 1e-4);
}

TEST(RegressionHead, TrainsAndTellsTheLoss) {
  HeadRun run(RegressionHead({.weight_column = "w"}), Mode::kTrain);
  run.labels = Tensor::Of({35.f, 42.f, 45.f});
  run.features["w"] = Tensor::Of({1.f, .1f, 1.5f});
  ASSERT_OK(run.Run(Tensor::Of({{45.f}, {41.f}, {44.f}})));
  EXPECT_NEAR(run.summaries["loss"], 101.6, 1e-4);
  EXPECT_NEAR(run.summaries["average_loss"], 39.0769231, 1e-4);
  // 2 (10 * 1 - 1 * .1 - 1 * 1.5)
  EXPECT_NEAR(run.trained, -16.8, 1e-4);
}

TEST(RegressionHead, AnEmptyBatchHasNoLoss) {
  HeadRun run(RegressionHead(), Mode::kEval);
  run.labels = *Tensor::Zeros(DT_FLOAT, Shape{0, 1});
  ASSERT_OK(run.Run(*Tensor::Zeros(DT_FLOAT, Shape{0, 1})));
  EXPECT_EQ(run.loss, 0);
  ExpectMetrics(run, {{"average_loss", 0}, {"label/mean", 0}, {"prediction/mean", 0}});
}

// --- Counts and shares ---------------------------------------------------------------------------

TEST(PoissonRegressionHead, MeasuresCounts) {
  for (const bool full : {true, false}) {
    HeadRun run(PoissonRegressionHead({.compute_full_loss = full}), Mode::kEval);
    run.labels = Tensor::Of<int32_t>({1, 2, 0, 3});
    ASSERT_OK(run.Run(Tensor::Of({{0.f}, {-1.f}, {1.f}, {0.5f}})));
    const auto stirling = [](double n) {
      return n * std::log(n) - n + 0.5 * std::log(2 * std::numbers::pi * n);
    };
    double want = (1 - 0) + (std::exp(-1) + 2) + std::exp(1) + (std::exp(0.5) - 1.5);
    if (full) want += stirling(2) + stirling(3);
    EXPECT_NEAR(run.loss, want, 1e-5);
    EXPECT_NEAR(run.metrics["average_loss"], want / 4, 1e-5);
    EXPECT_NEAR(run.metrics["prediction/mean"],
                (1 + std::exp(-1) + std::exp(1) + std::exp(0.5)) / 4, 1e-5);
    EXPECT_NEAR(run.metrics["label/mean"], 1.5, 1e-6);
  }
}

TEST(PoissonRegressionHead, TrainsTowardsTheMean) {
  HeadRun run(PoissonRegressionHead(), Mode::kTrain);
  run.labels = Tensor::Of({0.f, 5.f});
  ASSERT_OK(run.Run(Tensor::Of({{0.f}, {0.f}})));
  // Of exp(x) - x y: -(1 - 0) - (1 - 5).
  EXPECT_NEAR(run.trained, 3, 1e-5);
}

TEST(LogisticRegressionHead, MeasuresShares) {
  HeadRun run(LogisticRegressionHead(), Mode::kEval);
  run.labels = Tensor::Of({{0.8f}, {0.4f}});
  ASSERT_OK(run.Run(Tensor::Of({{0.5f}, {-0.3f}})));
  EXPECT_NEAR(run.loss, 1.2484322, 1e-5);
  const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
  ExpectMetrics(run, {{"average_loss", 1.2484322 / 2},
                      {"label/mean", 0.6},
                      {"prediction/mean", (sigmoid(0.5) + sigmoid(-0.3)) / 2}});
}

TEST(LogisticRegressionHead, WantsSharesInTheUnitInterval) {
  HeadRun run(LogisticRegressionHead(), Mode::kEval);
  run.labels = Tensor::Of({{1.8f}});
  EXPECT_STATUS(run.Run(Tensor::Of({{0.5f}})), kInvalid,
                "Head head: labels must be in [0, 1], got");
}

// --- What is wrong -------------------------------------------------------------------------------

struct Wrong {
  std::string what;
  RegressionHeadOptions options = {};
  Tensor labels = Tensor::Of({{1.f, 2.f}, {3.f, 4.f}});
  std::map<std::string, Tensor> features = {};
  std::string message;
};
class WrongRegressionHeadTest : public testing::TestWithParam<Wrong> {};

TEST_P(WrongRegressionHeadTest, IsNamed) {
  const Wrong& wrong = GetParam();
  HeadRun run(RegressionHead(wrong.options), Mode::kEval);
  run.labels = wrong.labels;
  run.features = wrong.features;
  EXPECT_STATUS(run.Run(Tensor::Of({{1.f, 2.f}, {4.f, 5.f}})), kInvalid, wrong.message);
}

INSTANTIATE_TEST_SUITE_P(
    All, WrongRegressionHeadTest,
    testing::Values(
        Wrong{.what = "NoDimension",
              .options = {.label_dimension = 0},
              .message = "RegressionHead: label_dimension must be >= 1, got 0"},
        Wrong{.what = "OtherLogits",
              .options = {.label_dimension = 3},
              .message = "logits must have shape [D0, ..., 3] (its logits_dimension), got shape "
                         "[?,2]"},
        Wrong{.what = "OtherLabels",
              .options = {.label_dimension = 2},
              .labels = Tensor::Of({{1.f}, {2.f}}),
              .message = "labels must have shape [D0, ..., 2] for logits of shape [?,2], got "
                         "[?,1] of 'labels_given:0'"},
        Wrong{.what = "LabelsOfRankOne",
              .options = {.label_dimension = 2},
              .labels = Tensor::Of({1.f, 2.f}),
              .message = "labels must have shape [D0, ..., 2] for logits of shape [?,2], got [?]"},
        Wrong{.what = "LabelsOfStrings",
              .options = {.label_dimension = 2},
              .labels = Tensor::Of<std::string>({{"a", "b"}, {"c", "d"}}),
              .message = "labels must be numbers, got strings from 'labels_given:0'"},
        Wrong{.what = "WeightsOfOtherDimension",
              .options = {.label_dimension = 2, .weight_column = "w"},
              .features = {{"w", Tensor::Of({{1.f, 2.f, 3.f}, {1.f, 2.f, 3.f}})}},
              .message = "weight_column 'w' must have shape [D0, ...] or [D0, ..., 1] or that of "
                         "logits for logits of shape [?,2], got [?,3]"}),
    [](const auto& info) { return info.param.what; });

}  // namespace
}  // namespace millrace
