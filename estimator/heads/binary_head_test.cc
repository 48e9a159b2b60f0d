// SPDX-License-Identifier: Apache-2.0
//
// Values: those of TensorFlow Estimator's own tests of its heads, or computed by hand.

#include "estimator/heads/binary_head.h"

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "estimator/heads/testing/head_run.h"
#include "estimator/model_tensors.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "ops/array/constant.h"
#include "ops/array/reshape.h"
#include "ops/math/cwise_binary.h"

// covers: training: heads give TensorFlow's predictions, losses, metrics, summaries and exports, by
//   its names; with weights, vocabularies, thresholds, several dimensions; wrong labels and weights
//   are named
// covers: article 0-18: labels are indices; one-hot ones are refused by name

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

TEST(BinaryHead, PredictsClassesAndProbabilities) {
  HeadRun run(BinaryHead(), Mode::kPredict);
  ASSERT_OK(run.Run(Tensor::Of({{0.3f}, {-0.4f}})));
  EXPECT_EQ(KeysOf(run.predictions), (std::vector<std::string>{"class_ids", "classes", "logistic",
                                                               "logits", "probabilities"}));
  ExpectTensorNear(run.predictions["logits"], Tensor::Of({{0.3f}, {-0.4f}}), 0, 0);
  ExpectTensorNear(run.predictions["logistic"], Tensor::Of({{0.574443f}, {0.401312f}}), 1e-5, 0);
  const Tensor probabilities = Tensor::Of({{0.425557f, 0.574443f}, {0.598688f, 0.401312f}});
  ExpectTensorNear(run.predictions["probabilities"], probabilities, 1e-5, 0);
  ExpectTensorEqual(run.predictions["class_ids"], Tensor::Of<int64_t>({{1}, {0}}));
  ExpectTensorEqual(run.predictions["classes"], Tensor::Of<std::string>({{"1"}, {"0"}}));

  EXPECT_EQ(
      KeysOf(run.spec.export_outputs),
      (std::vector<std::string>{"classification", "predict", "regression", "serving_default"}));
  const Tensor classes = Tensor::Of<std::string>({{"0", "1"}, {"0", "1"}});
  for (const std::string key : {"serving_default", "classification"}) {
    ExpectTensorNear(run.exports[key + "/scores"], probabilities, 1e-5, 0);
    ExpectTensorEqual(run.exports[key + "/classes"], classes);
  }
  ExpectTensorNear(run.exports["regression/value"], Tensor::Of({{0.574443f}, {0.401312f}}), 1e-5,
                   0);
  ExpectTensorEqual(run.exports["predict/class_ids"], Tensor::Of<int64_t>({{1}, {0}}));
  // As saved_model_cli shows them for TensorFlow 1.12 to 1.15.
  EXPECT_EQ(run.spec.predictions["logistic"].name(), "head/predictions/logistic:0");
  EXPECT_EQ(run.spec.predictions["probabilities"].name(), "head/predictions/probabilities:0");
  EXPECT_EQ(run.spec.predictions["class_ids"].name(), "head/predictions/ExpandDims:0");
  EXPECT_EQ(run.spec.predictions["classes"].name(), "head/predictions/str_classes:0");
  EXPECT_EQ(run.spec.predictions["logits"].name(), "logits_given:0");
  EXPECT_EQ(run.spec.export_outputs.at("classification").classes.name(), "head/Tile:0");
}

TEST(BinaryHead, EqualProbabilitiesAreTheFirstClass) {
  HeadRun run(BinaryHead(), Mode::kPredict);
  ASSERT_OK(run.Run(Tensor::Of({{0.0f}})));
  ExpectTensorEqual(run.predictions["class_ids"], Tensor::Of<int64_t>({{0}}));
}

TEST(BinaryHead, NamesClassesByAVocabulary) {
  HeadRun run(BinaryHead({.label_vocabulary = {"aang", "iroh"}, .predict_all_classes = true}),
              Mode::kPredict);
  ASSERT_OK(run.Run(Tensor::Of({{1.f}, {0.f}})));
  ExpectTensorEqual(run.predictions["classes"], Tensor::Of<std::string>({{"iroh"}, {"aang"}}));
  ExpectTensorEqual(run.predictions["all_classes"],
                    Tensor::Of<std::string>({{"aang", "iroh"}, {"aang", "iroh"}}));
  ExpectTensorEqual(run.predictions["all_class_ids"], Tensor::Of<int32_t>({{0, 1}, {0, 1}}));
  ExpectTensorEqual(run.exports["classification/classes"],
                    Tensor::Of<std::string>({{"aang", "iroh"}, {"aang", "iroh"}}));
}

TEST(BinaryHead, AnEmptyBatchPredictsNothing) {
  HeadRun run(BinaryHead(), Mode::kPredict);
  ASSERT_OK(run.Run(*Tensor::Zeros(DT_FLOAT, Shape{0, 1})));
  EXPECT_EQ(run.predictions["classes"].shape(), (Shape{0, 1}));
  EXPECT_EQ(run.exports["classification/classes"].shape(), (Shape{0, 2}));
}

// covers: article 1-9: metrics that every pre-made model has
TEST(BinaryHead, MeasuresAsTensorFlowDoes) {
  for (const bool known : {true, false}) {
    HeadRun run(BinaryHead(), Mode::kEval);
    run.labels = Tensor::Of<int32_t>({{1}, {1}});
    run.shapes_are_known = known;
    ASSERT_OK(run.Run(Tensor::Of({{45.f}, {-41.f}})));
    EXPECT_NEAR(run.loss, 41, 1e-5);
    ExpectMetrics(run, {{"accuracy", 0.5},
                        {"accuracy_baseline", 1},
                        {"auc", 0},
                        {"auc_precision_recall", 1},
                        {"average_loss", 20.5},
                        {"label/mean", 1},
                        {"precision", 1},
                        {"prediction/mean", 0.5},
                        {"recall", 0.5}});
  }
}

TEST(BinaryHead, WeighsExamples) {
  for (const bool as_column : {true, false}) {
    HeadRun run(BinaryHead({.weight_column = "label_weights"}), Mode::kEval);
    run.labels = Tensor::Of<int32_t>({{1}, {1}, {0}});
    run.features["label_weights"] =
        as_column ? Tensor::Of({{1.f}, {.1f}, {1.5f}}) : Tensor::Of<double>({1., .1, 1.5});
    ASSERT_OK(run.Run(Tensor::Of({{45.f}, {-41.f}, {44.f}})));
    EXPECT_NEAR(run.loss, 70.1, 1e-4);
    ExpectMetrics(run, {{"accuracy", 0.38461538461},
                        {"accuracy_baseline", 1 - .42307692307},
                        {"auc", .45454565},
                        {"auc_precision_recall", .6737757325172424},
                        {"average_loss", 26.9615384615},
                        {"label/mean", .42307692307},
                        {"precision", 1 / 2.5},
                        {"prediction/mean", .96153846153},
                        {"recall", 1 / 1.1}});
  }
}

TEST(BinaryHead, WeightsComeFromAFunctionOfTheFeature) {
  const auto twice = [](ScopeAt at, Output x) { return Add(at, x, x); };
  HeadRun run(BinaryHead({.weight_column = {"w", twice}}), Mode::kEval);
  run.labels = Tensor::Of<int32_t>({1});
  run.features["w"] = Tensor::Of<int64_t>({3});
  ASSERT_OK(run.Run(Tensor::Of({{-2.f}})));
  EXPECT_NEAR(run.loss, 6 * -std::log(Sigmoid(-2)), 1e-4);
}

TEST(BinaryHead, MeasuresAtThresholds) {
  HeadRun run(BinaryHead({.thresholds = {0.25, 0.5, 0.75}}), Mode::kEval);
  run.labels = Tensor::Of<int32_t>({{1}, {1}});
  ASSERT_OK(run.Run(Tensor::Of({{-1.f}, {1.f}})));
  EXPECT_NEAR(run.loss, 1.62652338, 1e-5);
  ExpectMetrics(run, {{"accuracy", 0.5},
                      {"accuracy/positive_threshold_0.25", 1},
                      {"accuracy/positive_threshold_0.5", 0.5},
                      {"accuracy/positive_threshold_0.75", 0},
                      {"accuracy_baseline", 1},
                      {"auc", 0},
                      {"auc_precision_recall", 1},
                      {"average_loss", 1.62652338 / 2},
                      {"label/mean", 1},
                      {"precision", 1},
                      {"precision/positive_threshold_0.25", 1},
                      {"precision/positive_threshold_0.5", 1},
                      {"precision/positive_threshold_0.75", 0},
                      {"prediction/mean", 0.5},
                      {"recall", 0.5},
                      {"recall/positive_threshold_0.25", 1},
                      {"recall/positive_threshold_0.5", 0.5},
                      {"recall/positive_threshold_0.75", 0}});
}

TEST(BinaryHead, AProbabilityAtTheThresholdCountsForAccuracyAlone) {
  HeadRun run(BinaryHead({.thresholds = {0.5}}), Mode::kEval);
  run.labels = Tensor::Of<int32_t>({1});
  ASSERT_OK(run.Run(Tensor::Of({{0.f}})));
  EXPECT_EQ(run.metrics["accuracy/positive_threshold_0.5"], 1);
  EXPECT_EQ(run.metrics["recall/positive_threshold_0.5"], 0);
}

TEST(BinaryHead, TakesLabelsThatAreNumbersOrWords) {
  const double want = 1.2484322;
  HeadRun floats(BinaryHead(), Mode::kEval);
  floats.labels = Tensor::Of({{0.8f}, {0.4f}});
  ASSERT_OK(floats.Run(Tensor::Of({{0.5f}, {-0.3f}})));
  EXPECT_NEAR(floats.loss, want, 1e-5);
  EXPECT_NEAR(floats.metrics["average_loss"], want / 2, 1e-5);

  HeadRun words(BinaryHead({.label_vocabulary = {"aang", "iroh"}}), Mode::kEval);
  words.labels = Tensor::Of<std::string>({"iroh", "iroh"});
  ASSERT_OK(words.Run(Tensor::Of({{45.f}, {-41.f}})));
  EXPECT_NEAR(words.loss, 41, 1e-5);
  EXPECT_EQ(words.metrics["accuracy"], 0.5);
}

TEST(BinaryHead, TakesExamplesInSeveralDimensions) {
  HeadRun run(BinaryHead({.weight_column = "weights"}), Mode::kEval);
  run.labels = Tensor::Of<double>({{{0.}, {0.}}, {{1.}, {1.}}});
  run.features["weights"] = Tensor::Of({{1.f, 1.5f}, {2.f, 2.5f}});
  ASSERT_OK(run.Run(Tensor::Of({{{10.f}, {-10.f}}, {{12.f}, {-12.f}}})));
  EXPECT_NEAR(run.loss, 40, 1e-2);
  ExpectMetrics(run,
                {{"accuracy", 3.5 / 7},
                 {"accuracy_baseline", 4.5 / 7},
                 {"auc", 0.5222},
                 {"auc_precision_recall", 0.7341},
                 {"average_loss", 40.0 / 7},
                 {"label/mean", 4.5 / 7},
                 {"precision", 2.0 / 3},
                 {"prediction/mean", 3.0 / 7},
                 {"recall", 2 / 4.5}},
                1e-3);
}

TEST(BinaryHead, TrainsAndTellsTheLoss) {
  HeadRun run(BinaryHead(), Mode::kTrain);
  run.labels = Tensor::Of<double>({1., 1.});
  ASSERT_OK(run.Run(Tensor::Of({{45.f}, {-41.f}})));
  EXPECT_NEAR(run.loss, 41, 1e-5);
  EXPECT_EQ(KeysOf(run.summaries), (std::vector<std::string>{"average_loss", "loss"}));
  EXPECT_NEAR(run.summaries["loss"], 41, 1e-5);
  EXPECT_NEAR(run.summaries["average_loss"], 20.5, 1e-5);
  // The gradient of the sum: sigmoid(45) - 1 + sigmoid(-41) - 1.
  EXPECT_NEAR(run.trained, 1, 1e-5);
  EXPECT_EQ(run.global_step, 1);
  EXPECT_TRUE(run.spec.eval_metric_ops.empty());
  EXPECT_TRUE(absl::StartsWith(run.spec.train_op.name(), "head/")) << run.spec.train_op.name();
}

TEST(BinaryHead, ReducesTheLossAsItIsTold) {
  HeadRun run(
      BinaryHead({.weight_column = "w", .loss_reduction = LossReduction::kSumByNonzeroWeights}),
      Mode::kTrain);
  run.labels = Tensor::Of<int32_t>({1, 1, 1});
  run.features["w"] = Tensor::Of({1.f, 1.f, 0.f});
  ASSERT_OK(run.Run(Tensor::Of({{45.f}, {-41.f}, {-41.f}})));
  EXPECT_NEAR(run.loss, 20.5, 1e-5);
  EXPECT_EQ(KeysOf(run.summaries), (std::vector<std::string>{"loss"}));
}

TEST(BinaryHead, AddsRegularizationLosses) {
  for (const Mode mode : {Mode::kTrain, Mode::kEval}) {
    HeadRun run(BinaryHead({.loss_reduction = LossReduction::kSumOverBatchSize}), mode);
    run.labels = Tensor::Of<int32_t>({1, 1});
    run.regularization_losses = {1.5f, 0.5f};
    ASSERT_OK(run.Run(Tensor::Of({{45.f}, {-41.f}})));
    EXPECT_NEAR(run.loss, 22.5, 1e-5);
    if (mode == Mode::kEval) {
      EXPECT_NEAR(run.metrics["average_loss"], 20.5, 1e-5);
      EXPECT_NEAR(run.metrics["regularization_loss"], 2, 1e-6);
    } else {
      EXPECT_NEAR(run.summaries["regularization_loss"], 2, 1e-6);
    }
  }
}

TEST(BinaryHead, ItsNameIsPartOfKeysAndNodes) {
  HeadRun run(BinaryHead({.name = "some"}), Mode::kEval);
  run.labels = Tensor::Of<int32_t>({1, 1});
  ASSERT_OK(run.Run(Tensor::Of({{45.f}, {-41.f}})));
  EXPECT_EQ(
      KeysOf(run.metrics),
      (std::vector<std::string>{"accuracy/some", "accuracy_baseline/some", "auc/some",
                                "auc_precision_recall/some", "average_loss/some", "label/mean/some",
                                "precision/some", "prediction/mean/some", "recall/some"}));
  EXPECT_EQ(run.spec.predictions["logistic"].name(), "some/predictions/logistic:0");
}

TEST(BinaryHead, TakesALossOfTheUser) {
  const auto loss = [](ScopeAt at, Output labels, Output logits, const Features& features) {
    return Mul(at, Sub(at, logits, labels), features["times"]);
  };
  HeadRun run(BinaryHead({.loss_fn = loss}), Mode::kEval);
  run.labels = Tensor::Of<int32_t>({1, 0});
  run.features["times"] = Tensor::Of({{2.f}, {3.f}});
  ASSERT_OK(run.Run(Tensor::Of({{5.f}, {7.f}})));
  EXPECT_NEAR(run.loss, 2 * 4 + 3 * 7, 1e-5);
}

// --- What is wrong -------------------------------------------------------------------------------

struct Wrong {
  std::string what;
  BinaryHeadOptions options = {};
  Tensor logits = Tensor::Of({{1.f}, {2.f}});
  std::optional<Tensor> labels = Tensor::Of<int32_t>({{1}, {0}});
  std::map<std::string, Tensor> features = {};
  std::string message;
  bool shapes_are_known = false;
  bool ranks_are_known = true;
};

class WrongBinaryHeadTest : public testing::TestWithParam<Wrong> {};

TEST_P(WrongBinaryHeadTest, IsNamed) {
  const Wrong& wrong = GetParam();
  HeadRun run(BinaryHead(wrong.options), Mode::kEval);
  run.labels = wrong.labels;
  run.features = wrong.features;
  run.shapes_are_known = wrong.shapes_are_known;
  run.ranks_are_known = wrong.ranks_are_known;
  EXPECT_STATUS(run.Run(wrong.logits), kInvalid, wrong.message);
}

INSTANTIATE_TEST_SUITE_P(
    All, WrongBinaryHeadTest,
    testing::Values(
        Wrong{.what = "NoLabels",
              .labels = std::nullopt,
              .message = "Head 'head': labels must be given to train and to evaluate, got none"},
        Wrong{
            .what = "OneHotLabels",
            .labels = Tensor::Of({{1.f, 0.f}, {0.f, 1.f}}),
            .message = "Head 'head': labels must have shape [D0, ..., 1] for logits of shape "
                       "[?,1], got [?,2] of 'labels_given:0'; one-hot labels are made the indices "
                       "of their classes by ArgMax"},
        Wrong{.what = "LabelsOfAnotherBatch",
              .labels = Tensor::Of<int32_t>({1, 0, 1}),
              .message = "labels must have shape [D0, ..., 1] for logits [D0, ..., n], got"},
        Wrong{.what = "LabelsOfAnotherBatchThatIsKnown",
              .labels = Tensor::Of<int32_t>({1, 0, 1}),
              .message = "labels must have shape [D0, ..., 1] for logits of shape [2,1], got [3]",
              .shapes_are_known = true},
        Wrong{.what = "LabelsWithoutARankOfOneRank",
              .labels = Tensor::Of<int32_t>({1, 0}),
              .message = "labels must have shape [D0, ..., 1] for logits [D0, ..., n], got",
              .ranks_are_known = false},
        Wrong{.what = "ALabelAboveOne",
              .labels = Tensor::Of({1.2f, 0.4f}),
              .message = "Head head: labels must be in [0, 1], got"},
        Wrong{.what = "ALabelBelowZero",
              .labels = Tensor::Of<int32_t>({1, -1}),
              .message = "Head head: labels must be in [0, 1], got"},
        Wrong{.what = "ALabelThatIsNoNumber",
              .labels = Tensor::Of({0.f, std::nanf("")}),
              .message = "Head head: labels must be in [0, 1], got"},
        Wrong{.what = "WordsWithoutAVocabulary",
              .labels = Tensor::Of<std::string>({"a", "b"}),
              .message = "labels must be numbers, got strings from 'labels_given:0'; words need a "
                         "label_vocabulary"},
        Wrong{.what = "NumbersWithAVocabulary",
              .options = {.label_vocabulary = {"a", "b"}},
              .message = "labels must be strings where there is a label_vocabulary, got int32"},
        Wrong{.what = "AWordThatIsNotInTheVocabulary",
              .options = {.label_vocabulary = {"a", "b"}},
              .labels = Tensor::Of<std::string>({"a", "c"}),
              .message = "labels must be in the label_vocabulary, got"},
        Wrong{.what = "LogitsForTwo",
              .logits = Tensor::Of({{1.f, 2.f}, {3.f, 4.f}}),
              .message = "Head 'head': logits must have shape [D0, ..., 1] (its logits_dimension), "
                         "got shape [?,2] of 'logits_given:0'"},
        Wrong{.what = "LogitsForTwoInTheStep",
              .logits = Tensor::Of({{1.f, 2.f}, {3.f, 4.f}}),
              .message = "logits must have shape [D0, ..., 1] (its logits_dimension), got",
              .ranks_are_known = false},
        Wrong{
            .what = "LogitsOfRankOne",
            .logits = Tensor::Of({1.f, 2.f}),
            .message = "logits must have shape [D0, ..., 1] (its logits_dimension), got shape [?]"},
        Wrong{.what = "LogitsOfStrings",
              .logits = Tensor::Of<std::string>({{"1"}, {"2"}}),
              .message = "logits must be numbers, got string"},
        Wrong{.what = "NoWeights",
              .options = {.weight_column = "w"},
              .features = {{"x", Tensor::Of({1.f, 2.f})}},
              .message = "Head 'head': weight_column 'w' must be a dense feature, got 'x'"},
        Wrong{.what = "WeightsOfStrings",
              .options = {.weight_column = "w"},
              .features = {{"w", Tensor::Of<std::string>({"1", "2"})}},
              .message = "weight_column 'w' must be numbers, got string from 'f_w:0'"},
        Wrong{.what = "WeightsOfAnotherBatch",
              .options = {.weight_column = "w"},
              .features = {{"w", Tensor::Of({1.f, 2.f, 3.f})}},
              .message = "weight_column w must have shape [D0, ..., 1] for logits"},
        Wrong{.what = "WeightsOfClasses",
              .options = {.weight_column = "w"},
              .features = {{"w", Tensor::Of({{1.f, 2.f}, {3.f, 4.f}})}},
              .message = "weight_column 'w' must have shape [D0, ...] or [D0, ..., 1] for logits "
                         "of shape [?,1], got [?,2]"},
        Wrong{.what = "ALossOfAnotherShape",
              .options = {.loss_fn =
                              [](ScopeAt at, Output, Output logits) {
                                return Squeeze(at, logits, {.squeeze_dims = {-1}});
                              }},
              .message = "loss_fn must return losses of shape [D0, ..., 1] for logits of shape "
                         "[?,1], got [?]"},
        Wrong{.what = "NoReduction",
              .options = {.loss_reduction = LossReduction::kNone},
              .message = "Head 'head': loss_reduction must give one number, got kNone"},
        Wrong{.what = "AThresholdOfOne",
              .options = {.thresholds = {0.5, 1}},
              .message = "BinaryHead: thresholds must be in (0, 1), got 1"},
        Wrong{.what = "AVocabularyOfThree",
              .options = {.label_vocabulary = {"a", "b", "c"}},
              .message = "BinaryHead: label_vocabulary must have a word for each of 2 classes, got "
                         "3"},
        Wrong{.what = "AWordTwice",
              .options = {.label_vocabulary = {"a", "a"}},
              .message = "BinaryHead: label_vocabulary must have each word once, got 'a' twice"}),
    [](const auto& info) { return info.param.what; });

TEST(BinaryHead, OptionsThatAreWrongAreToldWithTheirLine) {
  const HeadPtr head = BinaryHead({.thresholds = {-1}});
  const int line = __LINE__ - 1;
  EXPECT_STATUS(head->status(), kInvalid,
                absl::StrCat("got -1; built at ", __FILE__, ":", line).c_str());
  HeadRun run(head, Mode::kPredict);
  EXPECT_STATUS(run.Run(Tensor::Of({{1.f}})), kInvalid,
                absl::StrCat("got -1; built at ", __FILE__, ":", line).c_str());
}

TEST(BinaryHead, SparseLabelsAreRefused) {
  HeadRun run(BinaryHead(), Mode::kEval);
  run.sparse_labels = {Tensor::Of<int64_t>({{0, 0}}), Tensor::Of<int64_t>({1}),
                       Tensor::Of<int64_t>({1, 1})};
  EXPECT_STATUS(
      run.Run(Tensor::Of({{1.f}})), kInvalid,
      "labels must be dense, got a sparse tensor; they are one tensor of shape [batch, 1]");
}

TEST(BinaryHead, SeveralLabelsAreRefused) {
  HeadRun run(BinaryHead(), Mode::kEval);
  run.labels_by_name = {{"a", Tensor::Of({1.f})}, {"b", Tensor::Of({1.f})}};
  EXPECT_STATUS(run.Run(Tensor::Of({{1.f}})), kInvalid, "labels must be one tensor, got 'a', 'b'");
}

TEST(BinaryHead, WantsOneWayToTrain) {
  Scope scope;
  const Features features = Features({{"x", Const(scope, 1.0f)}}).In(scope);
  const Labels labels = Labels(Const(scope, Tensor::Of({1.f}))).In(scope);
  BinaryHead()->CreateEstimatorSpec(scope, {.features = features,
                                            .mode = Mode::kTrain,
                                            .logits = Const(scope, Tensor::Of({{1.f}})),
                                            .labels = labels});
  EXPECT_STATUS(scope.status(), kInvalid,
                "to train, one of optimizer and train_op_fn must be given, got none");
}

}  // namespace
}  // namespace millrace
