// SPDX-License-Identifier: Apache-2.0
//
// Values: computed by hand; names and shapes: those of files that TensorFlow wrote.

#include "estimator/canned/dnn_linear_combined.h"

#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/tensor.h"
#include "core/testing/shared_data.h"
#include "core/testing/tensor_testing.h"
#include "estimator/canned/premade.h"
#include "estimator/canned/testing/premade_test.h"
#include "estimator/columns/feature_column.h"
#include "estimator/columns/parse_spec.h"
#include "estimator/exporter.h"
#include "estimator/serving_input.h"
#include "gtest/gtest.h"
#include "saver/loaded_model.h"
#include "saver/saved_model.h"

// covers: training: pre-made Estimators have TensorFlow's defaults and names; checkpoint and
//   signatures of the same model in TensorFlow have the same names, dtypes, shapes and parts
// covers: article 0-10, 0-11: pre-made Estimators; wide and deep with two optimizers
// covers: article 1-8: DNNLinearCombinedRegressor

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

class CombinedTest : public PremadeTest {};

TEST_F(CombinedTest, AddsTheLogitsOfBoth) {
  WriteCheckpoint({{"linear/linear_model/age/weights", Tensor::Of({{2.f}})},
                   {"linear/linear_model/bias_weights", Tensor::Of({.5f})},
                   {"dnn/hiddenlayer_0/kernel", Tensor::Of({{.6f, .5f}})},
                   {"dnn/hiddenlayer_0/bias", Tensor::Of({.1f, -.1f})},
                   {"dnn/hiddenlayer_1/kernel", Tensor::Of({{1.f, .8f}, {-.8f, -1.f}})},
                   {"dnn/hiddenlayer_1/bias", Tensor::Of({.2f, -.2f})},
                   {"dnn/logits/kernel", Tensor::Of({{-1.f}, {1.f}})},
                   {"dnn/logits/bias", Tensor::Of({.3f})}});
  const NumericColumn age("age");
  const Estimator estimator = DNNLinearCombinedRegressor(
      {.linear_feature_columns = {age}, .dnn_feature_columns = {age}, .dnn_hidden_units = {2, 2}},
      InDir());
  const auto predicted = Predicted(estimator, Rows({{"age", Tensor::Of({10.f})}}));
  ExpectTensorNear(predicted.at("predictions")[0], Tensor::Of({-2.08f + 20.5f}), 1e-5, 0);
}

TEST_F(CombinedTest, BothLearnFromOneLossAndAStepCountsOnce) {
  const NumericColumn x("x");
  const Estimator estimator = DNNLinearCombinedRegressor(
      {.linear_feature_columns = {x}, .dnn_feature_columns = {x}, .dnn_hidden_units = {2}},
      InDir());
  ASSERT_OK(
      estimator.Train(Rows({{"x", Tensor::Of({2.f})}}, {Tensor::Of({5000.f})}), {.max_steps = 1}));
  // Of a large gradient a step of either optimizer is its learning rate, of variables that begin
  // at 0.
  EXPECT_NEAR(Number(estimator, "linear/linear_model/x/weights"), 0.005, 1e-6);
  EXPECT_NEAR(Number(estimator, "linear/linear_model/bias_weights"), 0.005, 1e-6);
  EXPECT_NEAR(Number(estimator, "dnn/logits/bias"), 0.001, 1e-6);
  ASSERT_OK_AND_ASSIGN(const Tensor step, estimator.GetVariableValue("global_step"));
  EXPECT_EQ(step.scalar<int64_t>(), 1);
  EXPECT_EQ(
      VariablesIn(estimator.latest_checkpoint()),
      (std::vector<std::string>{
          "dnn/hiddenlayer_0/bias float [2]", "dnn/hiddenlayer_0/bias/Adagrad float [2]",
          "dnn/hiddenlayer_0/kernel float [1,2]", "dnn/hiddenlayer_0/kernel/Adagrad float [1,2]",
          "dnn/logits/bias float [1]", "dnn/logits/bias/Adagrad float [1]",
          "dnn/logits/kernel float [2,1]", "dnn/logits/kernel/Adagrad float [2,1]",
          "global_step int64 []", "linear/linear_model/bias_weights float [1]",
          "linear/linear_model/bias_weights/Ftrl float [1]",
          "linear/linear_model/bias_weights/Ftrl_1 float [1]",
          "linear/linear_model/x/weights float [1,1]",
          "linear/linear_model/x/weights/Ftrl float [1,1]",
          "linear/linear_model/x/weights/Ftrl_1 float [1,1]"}));
  EXPECT_EQ(SummaryTags(),
            (std::vector<std::string>{"average_loss", "dnn/dnn/hiddenlayer_0/activation",
                                      "dnn/dnn/hiddenlayer_0/fraction_of_zero_values",
                                      "dnn/dnn/logits/activation",
                                      "dnn/dnn/logits/fraction_of_zero_values", "linear/bias",
                                      "linear/fraction_of_zero_weights", "linear/linear/activation",
                                      "linear/linear/fraction_of_zero_values", "loss"}));
}

// 1 / n would be below the constant from 201 columns on, 1 / sqrt(n) from 40,001 on. That many
// columns are no model, so beyond them the rule is asked.
TEST_F(CombinedTest, TheLinearRateOfSomeHundredColumnsIsTheConstant) {
  std::vector<FeatureColumn> columns;
  TensorList features;
  for (int i = 0; i < 250; ++i) {
    columns.push_back(NumericColumn(absl::StrCat("x", i)));
    features.emplace_back(absl::StrCat("x", i), Tensor::Of({0.f}));
  }
  const Estimator estimator =
      DNNLinearCombinedRegressor({.linear_feature_columns = columns}, InDir());
  ASSERT_OK(estimator.Train(Rows(features, {Tensor::Of({5000.f})}), {.max_steps = 1}));
  // Of a large gradient a step is the learning rate.
  EXPECT_NEAR(Number(estimator, "linear/linear_model/bias_weights"), 0.005, 1e-6);
}

TEST(LinearLearningRateTest, FallsWithTheRootOfTheNumberOfColumns) {
  EXPECT_EQ(LinearLearningRate(0.2, 1), 0.2);
  EXPECT_EQ(LinearLearningRate(0.2, 25), 0.2);
  EXPECT_DOUBLE_EQ(LinearLearningRate(0.2, 26), 1 / std::sqrt(26.0));
  EXPECT_DOUBLE_EQ(LinearLearningRate(0.2, 400), 0.05);
  EXPECT_EQ(LinearLearningRate(0.005, 39'999), 0.005);
  EXPECT_DOUBLE_EQ(LinearLearningRate(0.005, 201 * 201), 1 / 201.0);
}

TEST_F(CombinedTest, OneOfBothMayBeLeftOut) {
  const NumericColumn x("x");
  const InputFn input = Rows({{"x", Tensor::Of({2.f})}}, {Tensor::Of<int64_t>({1})});
  const Estimator deep =
      DNNLinearCombinedClassifier({.dnn_feature_columns = {x}, .dnn_hidden_units = {2}}, InDir());
  ASSERT_OK(deep.Train(input, {.max_steps = 2}));
  ASSERT_OK_AND_ASSIGN(const auto names, deep.GetVariableNames());
  EXPECT_EQ(names[0], "dnn/hiddenlayer_0/bias");
  fs()->RecursivelyDelete(dir_).IgnoreError();
  const Estimator wide = DNNLinearCombinedClassifier({.linear_feature_columns = {x}}, InDir());
  ASSERT_OK(wide.Train(input, {.max_steps = 2}));
  ASSERT_OK_AND_ASSIGN(const auto wide_names, wide.GetVariableNames());
  EXPECT_EQ(wide_names.front(), "global_step");
}

TEST_F(CombinedTest, ItsCheckpointIsThatOfTheSameModelInTensorFlow) {
  const std::string folder = SharedDataPath("checkpoints/babyweight_1000");
  if (folder.empty()) GTEST_SKIP() << "MILLRACE_SHARED has no checkpoints/babyweight_1000";
  const auto embedding = [](const char* key, int64_t rows, int64_t dimension) {
    return EmbeddingColumn(CategoricalColumnWithIdentity(key, rows), dimension);
  };
  const std::vector<std::pair<const char*, std::pair<int64_t, int64_t>>> tables = {
      {"alcohol_use", {3, 2}},
      {"cigarette_use", {3, 2}},
      {"is_male", {2, 2}},
      {"mother_married", {2, 2}},
      {"mother_race", {12, 4}}};
  std::vector<DenseColumn> columns;
  TensorList features;
  for (const char* key : {"mother_age", "plurality", "gestation_weeks"}) {
    columns.push_back(NumericColumn(key));
    features.emplace_back(key, Tensor::Of({1.f, 2.f}));
  }
  for (const auto& [key, shape] : tables) {
    columns.push_back(embedding(key, shape.first, shape.second));
    features.emplace_back(key, Tensor::Of<int64_t>({0, 1}));
  }
  const Estimator estimator =
      DNNLinearCombinedRegressor({.dnn_feature_columns = columns,
                                  .dnn_optimizer = AdamOptions{.learning_rate = 0.01},
                                  .dnn_hidden_units = {32, 22, 15},
                                  .dnn_dropout = 0.1,
                                  .batch_norm = true},
                                 InDir());
  ASSERT_OK(estimator.Train(Rows(features, {Tensor::Of({7.f, 8.f})}), {.max_steps = 1}));
  EXPECT_EQ(VariablesIn(estimator.latest_checkpoint()), VariablesIn(folder + "/model.ckpt-1000"));
}

TEST_F(CombinedTest, ItsSignaturesAreThoseOfTheSameModelInTensorFlow) {
  const NumericColumn x("x");
  const auto word = CategoricalColumnWithHashBucket("word", 10);
  const Estimator estimator = DNNLinearCombinedClassifier(
      {.linear_feature_columns = {word}, .dnn_feature_columns = {x}, .dnn_hidden_units = {2}},
      InDir());
  ASSERT_OK(
      estimator.Train(Rows({{"x", Tensor::Of({2.f})}, {"word", Tensor::Of<std::string>({"a"})}},
                           {Tensor::Of<int64_t>({1})}),
                      {.max_steps = 1}));
  ASSERT_OK_AND_ASSIGN(const FeatureSpecs specs, MakeParseExampleSpec({x, word}));
  ASSERT_OK_AND_ASSIGN(
      const std::string path,
      estimator.ExportSavedModel(dir_ + "/export", BuildParsingServingInputReceiverFn(specs)));
  ASSERT_OK_AND_ASSIGN(const LoadedModel model, LoadModel(path));
  const std::map<std::string, std::string> predict = {
      {"class_ids", "head/predictions/ExpandDims:0"},
      {"classes", "head/predictions/str_classes:0"},
      {"logistic", "head/predictions/logistic:0"},
      {"logits", "add:0"},
      {"probabilities", "head/predictions/probabilities:0"}};
  // The names of saved_models/taxi_wide_deep_1_12.
  const std::map<std::string, std::map<std::string, std::string>> want = {
      {"classification",
       {{"classes", "head/Tile:0"}, {"scores", "head/predictions/probabilities:0"}}},
      {"predict", predict},
      {"regression", {{"outputs", "head/predictions/logistic:0"}}},
      {"serving_default",
       {{"classes", "head/Tile:0"}, {"scores", "head/predictions/probabilities:0"}}}};
  std::map<std::string, std::map<std::string, std::string>> got;
  for (const auto& [key, signature] : model.signatures()) {
    for (const auto& [name, tensor] : signature.outputs()) got[key][name] = tensor.name();
    const char* input = key == "predict" ? "examples" : "inputs";
    EXPECT_EQ(signature.inputs().at(input).name(), "input_example_tensor:0");
  }
  EXPECT_EQ(got, want);
}

TEST_F(CombinedTest, AnExportOfRawFeaturesHasNoDefaultAndTheLogSaysWhy) {
  const NumericColumn x("x"), y("y");
  const Estimator estimator = DNNLinearCombinedClassifier(
      {.linear_feature_columns = {x}, .dnn_feature_columns = {y}, .dnn_hidden_units = {2}},
      InDir());
  ASSERT_OK(estimator.Train(
      Rows({{"x", Tensor::Of({2.f})}, {"y", Tensor::Of({2.f})}}, {Tensor::Of<int64_t>({1})}),
      {.max_steps = 1}));
  const auto receiver =
      BuildRawServingInputReceiverFn({{"x", {DT_FLOAT, {-1}}}, {"y", {DT_FLOAT, {-1}}}});
  testing::internal::CaptureStderr();
  const StatusOr<std::string> path = estimator.ExportSavedModel(dir_ + "/export", receiver);
  const std::string log = testing::internal::GetCapturedStderr();
  ASSERT_OK(path.status());
  EXPECT_NE(log.find("the export has no signature 'serving_default': it is a classification, which "
                     "takes exactly one receiver, of strings, got 2 ('x', 'y'); callers must name "
                     "another one: 'predict'"),
            std::string::npos)
      << log;
  const Estimator copy = estimator;
  testing::internal::CaptureStderr();
  const StatusOr<std::string> again = copy.ExportSavedModel(dir_ + "/export", receiver);
  const std::string later = testing::internal::GetCapturedStderr();
  ASSERT_OK(again.status());
  EXPECT_EQ(later.find("no signature"), std::string::npos) << "it was said: " << later;
  ASSERT_OK_AND_ASSIGN(const LoadedModel model, LoadModel(*path));
  EXPECT_EQ(model.signatures().size(), 1u);
}

// Before anything is trained.
TEST_F(CombinedTest, ACheckOfAReceiverNamesTheColumnAndTheFeatureThatIsMissing) {
  const NumericColumn x("x"), y("y");
  const Estimator estimator = DNNLinearCombinedClassifier(
      {.linear_feature_columns = {x}, .dnn_feature_columns = {y}, .dnn_hidden_units = {2}},
      InDir());
  const RawFeature number = {DT_FLOAT, {-1}};
  const Status lacks = CheckReceiver(estimator, BuildRawServingInputReceiverFn({{"x", number}}));
  EXPECT_STATUS(lacks, absl::StatusCode::kInvalidArgument,
                "column 'y': feature 'y' must be one of those given, 'x'");
  EXPECT_EQ(lacks.message().find("model over the features of serving_input_receiver_fn: "), 0u)
      << lacks;
  EXPECT_OK(
      CheckReceiver(estimator, BuildRawServingInputReceiverFn({{"x", number}, {"y", number}})));
}

TEST_F(CombinedTest, WhatIsWrongIsKeptWithItsLine) {
  const NumericColumn x("x");
  EXPECT_STATUS(
      DNNLinearCombinedClassifier({}, InDir()).status(), kInvalid,
      "DNNLinearCombinedClassifier: linear_feature_columns or dnn_feature_columns must be "
      "given, got none of both; built at");
  EXPECT_STATUS(DNNLinearCombinedRegressor({.dnn_feature_columns = {x}}, InDir()).status(),
                kInvalid,
                "DNNLinearCombinedRegressor: dnn_hidden_units must be given with "
                "dnn_feature_columns, got none");
  EXPECT_STATUS(DNNLinearCombinedRegressor(
                    {.linear_feature_columns = {x}, .linear_optimizer = "ftrl"}, InDir())
                    .status(),
                kInvalid,
                "linear_optimizer must be Adagrad, Adam, Ftrl, RMSProp or SGD, got 'ftrl'");
  EXPECT_STATUS(DNNLinearCombinedEstimator({.linear_feature_columns = {x}}, InDir()).status(),
                kInvalid, "DNNLinearCombinedEstimator: head must be given, got none");
}

}  // namespace
}  // namespace millrace
