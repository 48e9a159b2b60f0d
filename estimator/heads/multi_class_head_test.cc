// SPDX-License-Identifier: Apache-2.0
//
// Values: those of TensorFlow Estimator's own tests of its heads, or computed by hand.

#include "estimator/heads/multi_class_head.h"

#include <cmath>
#include <string>
#include <vector>

#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "estimator/heads/testing/head_run.h"
#include "gtest/gtest.h"
#include "ops/array/constant.h"

// covers: training: heads give TensorFlow's predictions, losses, metrics, summaries and exports, by
//   its names; with weights, vocabularies, thresholds, several dimensions; wrong labels and weights
//   are named
// covers: article 0-18: labels are indices; one-hot ones are refused by name

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
// What a class costs that has 0 beside 10 and another 0.
const double kMissed = std::log(std::exp(10) + 2);
const double kHit = kMissed - 10;

TEST(MultiClassHead, PredictsClassesAndProbabilities) {
  HeadRun run(MultiClassHead(3), Mode::kPredict);
  ASSERT_OK(run.Run(Tensor::Of({{1.f, 0.f, 0.f}, {0.f, 0.f, 1.f}})));
  EXPECT_EQ(KeysOf(run.predictions),
            (std::vector<std::string>{"class_ids", "classes", "logits", "probabilities"}));
  const Tensor probabilities =
      Tensor::Of({{0.576117f, 0.2119416f, 0.2119416f}, {0.2119416f, 0.2119416f, 0.576117f}});
  ExpectTensorNear(run.predictions["probabilities"], probabilities, 1e-6, 0);
  ExpectTensorEqual(run.predictions["class_ids"], Tensor::Of<int64_t>({{0}, {2}}));
  ExpectTensorEqual(run.predictions["classes"], Tensor::Of<std::string>({{"0"}, {"2"}}));
  EXPECT_EQ(KeysOf(run.spec.export_outputs),
            (std::vector<std::string>{"classification", "predict", "serving_default"}));
  ExpectTensorNear(run.exports["serving_default/scores"], probabilities, 1e-6, 0);
  ExpectTensorEqual(run.exports["serving_default/classes"],
                    Tensor::Of<std::string>({{"0", "1", "2"}, {"0", "1", "2"}}));
}

TEST(MultiClassHead, NamesClassesByAVocabulary) {
  HeadRun run(MultiClassHead(
                  3, {.label_vocabulary = {"aang", "iroh", "zuko"}, .predict_all_classes = true}),
              Mode::kPredict);
  ASSERT_OK(run.Run(Tensor::Of({{1.f, 0.f, 0.f}, {0.f, 0.f, 1.f}})));
  ExpectTensorEqual(run.predictions["classes"], Tensor::Of<std::string>({{"aang"}, {"zuko"}}));
  const Tensor all = Tensor::Of<std::string>({{"aang", "iroh", "zuko"}, {"aang", "iroh", "zuko"}});
  ExpectTensorEqual(run.predictions["all_classes"], all);
  ExpectTensorEqual(run.exports["classification/classes"], all);
}

TEST(MultiClassHead, MeasuresAsTensorFlowDoes) {
  for (const bool known : {true, false}) {
    HeadRun run(MultiClassHead(3), Mode::kEval);
    run.labels = Tensor::Of<int64_t>({{1}, {1}});
    run.shapes_are_known = known;
    ASSERT_OK(run.Run(Tensor::Of({{10.f, 0.f, 0.f}, {0.f, 10.f, 0.f}})));
    EXPECT_NEAR(run.loss, kMissed + kHit, 1e-5);
    ExpectMetrics(run, {{"accuracy", 0.5}, {"average_loss", (kMissed + kHit) / 2}});
  }
}

TEST(MultiClassHead, WeighsExamples) {
  HeadRun run(MultiClassHead(3, {.weight_column = "w"}), Mode::kEval);
  run.labels = Tensor::Of<int32_t>({1, 2, 2});
  run.features["w"] = Tensor::Of<double>({1., 2., 3.});
  ASSERT_OK(run.Run(Tensor::Of({{10.f, 0.f, 0.f}, {0.f, 10.f, 0.f}, {0.f, 0.f, 10.f}})));
  const double loss = 3 * kMissed + 3 * kHit;
  EXPECT_NEAR(run.loss, loss, 1e-4);
  ExpectMetrics(run, {{"accuracy", 0.5}, {"average_loss", loss / 6}});
}

TEST(MultiClassHead, TakesWords) {
  HeadRun run(MultiClassHead(3, {.label_vocabulary = {"aang", "iroh", "zuko"}}), Mode::kEval);
  run.labels = Tensor::Of<std::string>({{"iroh"}, {"iroh"}});
  ASSERT_OK(run.Run(Tensor::Of({{10.f, 0.f, 0.f}, {0.f, 10.f, 0.f}})));
  EXPECT_NEAR(run.loss, kMissed + kHit, 1e-5);
  EXPECT_EQ(run.metrics["accuracy"], 0.5);
}

TEST(MultiClassHead, TakesExamplesInSeveralDimensions) {
  HeadRun run(MultiClassHead(3, {.weight_column = "w"}), Mode::kEval);
  run.labels = Tensor::Of<int64_t>({{{0}, {1}}, {{1}, {2}}});
  run.features["w"] = Tensor::Of({{1.f, 1.5f}, {2.f, 2.5f}});
  ASSERT_OK(run.Run(
      Tensor::Of({{{10.f, 0.f, 0.f}, {0.f, 10.f, 0.f}}, {{0.f, 0.f, 10.f}, {0.f, 0.f, 10.f}}})));
  const double loss = 2 * kMissed + 5 * kHit;
  EXPECT_NEAR(run.loss, loss, 1e-4);
  EXPECT_NEAR(run.metrics["accuracy"], 5.0 / 7, 1e-6);
}

TEST(MultiClassHead, TrainsAndTellsTheLoss) {
  HeadRun run(MultiClassHead(3, {.name = "some"}), Mode::kTrain);
  run.labels = Tensor::Of<int64_t>({{1}, {1}});
  ASSERT_OK(run.Run(Tensor::Of({{10.f, 0.f, 0.f}, {0.f, 10.f, 0.f}})));
  EXPECT_EQ(KeysOf(run.summaries), (std::vector<std::string>{"average_loss/some", "loss/some"}));
  EXPECT_NEAR(run.summaries["loss/some"], kMissed + kHit, 1e-5);
  EXPECT_NEAR(run.summaries["average_loss/some"], (kMissed + kHit) / 2, 1e-5);
  // All logits of an example move alike: that changes nothing.
  EXPECT_NEAR(run.trained, 0, 1e-5);
  EXPECT_EQ(run.global_step, 1);
}

struct Wrong {
  std::string what;
  int64_t n_classes = 3;
  MultiClassHeadOptions options = {};
  Tensor labels = Tensor::Of<int64_t>({0, 1});
  std::string message;
};
class WrongMultiClassHeadTest : public testing::TestWithParam<Wrong> {};

TEST_P(WrongMultiClassHeadTest, IsNamed) {
  const Wrong& wrong = GetParam();
  HeadRun run(MultiClassHead(wrong.n_classes, wrong.options), Mode::kEval);
  run.labels = wrong.labels;
  EXPECT_STATUS(run.Run(Tensor::Of({{1.f, 2.f, 3.f}, {4.f, 5.f, 6.f}})), kInvalid, wrong.message);
}

INSTANTIATE_TEST_SUITE_P(
    All, WrongMultiClassHeadTest,
    testing::Values(
        Wrong{.what = "TwoClasses",
              .n_classes = 2,
              .message = "MultiClassHead: n_classes must be > 2, got 2; BinaryHead is for two"},
        Wrong{.what = "OtherLogits",
              .n_classes = 4,
              .message = "logits must have shape [D0, ..., 4] (its logits_dimension), got shape "
                         "[?,3]"},
        Wrong{.what = "OneHotLabels",
              .labels = Tensor::Of<int64_t>({{1, 0, 0}, {0, 1, 0}}),
              .message = "labels must have shape [D0, ..., 1] for logits of shape [?,3], got "
                         "[?,3] of 'labels_given:0'; one-hot labels are made the indices of their "
                         "classes by ArgMax"},
        Wrong{.what = "FloatLabels",
              .labels = Tensor::Of({0.f, 1.f}),
              .message = "labels must be integers, got float from 'labels_given:0'"},
        Wrong{.what = "WordsWithoutAVocabulary",
              .labels = Tensor::Of<std::string>({"a", "b"}),
              .message = "labels must be integers, got string from 'labels_given:0'; words need a "
                         "label_vocabulary"},
        Wrong{.what = "ALabelAboveTheClasses",
              .labels = Tensor::Of<int64_t>({0, 3}),
              .message = "Head head: labels must be in [0, 2], got"},
        Wrong{.what = "ALabelBelowZero",
              .labels = Tensor::Of<int64_t>({0, -1}),
              .message = "Head head: labels must be in [0, 2], got"},
        Wrong{.what = "AVocabularyOfTwo",
              .options = {.label_vocabulary = {"a", "b"}},
              .message = "MultiClassHead: label_vocabulary must have a word for each of 3 classes, "
                         "got 2"}),
    [](const auto& info) { return info.param.what; });

}  // namespace
}  // namespace millrace
