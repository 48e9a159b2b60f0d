// SPDX-License-Identifier: Apache-2.0
#include "estimator/heads/multi_head.h"

#include <cmath>
#include <string>
#include <vector>

#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "estimator/heads/binary_head.h"
#include "estimator/heads/multi_class_head.h"
#include "estimator/heads/regression_head.h"
#include "estimator/heads/testing/head_run.h"
#include "estimator/model_fn.h"
#include "estimator/model_tensors.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "ops/array/constant.h"

// covers: training: heads give TensorFlow's predictions, losses, metrics, summaries and exports, by
//   its names; with weights, vocabularies, thresholds, several dimensions; wrong labels and weights
//   are named

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

HeadPtr BoughtAndPrice(std::vector<double> weights = {}) {
  return MultiHead({BinaryHead({.name = "bought"}), RegressionHead({.name = "price"})},
                   std::move(weights));
}
// Losses 41 and 13.
const Tensor kLogits2 = Tensor::Of({{45.f, 45.f}, {-41.f, 41.f}});
const std::map<std::string, Tensor> kLabels2 = {{"bought", Tensor::Of<int32_t>({1, 1})},
                                                {"price", Tensor::Of({43.f, 44.f})}};

TEST(MultiHead, CutsLogitsAndPredictsByName) {
  const HeadPtr head = BoughtAndPrice();
  EXPECT_EQ(head->name(), "bought_price");
  EXPECT_EQ(head->logits_dimension(), 2);
  HeadRun run(head, Mode::kPredict);
  ASSERT_OK(run.Run(kLogits2));
  EXPECT_EQ(
      KeysOf(run.predictions),
      (std::vector<std::string>{"bought/class_ids", "bought/classes", "bought/logistic",
                                "bought/logits", "bought/probabilities", "price/predictions"}));
  ExpectTensorEqual(run.predictions["bought/class_ids"], Tensor::Of<int64_t>({{1}, {0}}));
  ExpectTensorEqual(run.predictions["price/predictions"], Tensor::Of({{45.f}, {41.f}}));
  EXPECT_EQ(KeysOf(run.spec.export_outputs),
            (std::vector<std::string>{"bought", "bought/classification", "bought/predict",
                                      "bought/regression", "predict", "price", "price/predict",
                                      "price/regression", "serving_default"}));
  EXPECT_TRUE(run.exports.count("serving_default/scores"));
  ExpectTensorEqual(run.exports["price/value"], Tensor::Of({{45.f}, {41.f}}));
  ExpectTensorEqual(run.exports["predict/price/predictions"], Tensor::Of({{45.f}, {41.f}}));
}

TEST(MultiHead, MeasuresEachHead) {
  HeadRun run(BoughtAndPrice(), Mode::kEval);
  run.labels_by_name = kLabels2;
  ASSERT_OK(run.Run(kLogits2));
  EXPECT_NEAR(run.loss, 54, 1e-4);
  EXPECT_NEAR(run.metrics["loss/bought"], 41, 1e-4);
  EXPECT_NEAR(run.metrics["loss/price"], 13, 1e-4);
  EXPECT_NEAR(run.metrics["average_loss/bought"], 20.5, 1e-4);
  EXPECT_NEAR(run.metrics["average_loss/price"], 6.5, 1e-4);
  EXPECT_NEAR(run.metrics["accuracy/bought"], 0.5, 1e-6);
}

TEST(MultiHead, WeighsLosses) {
  HeadRun run(BoughtAndPrice({1, 2}), Mode::kTrain);
  run.labels_by_name = kLabels2;
  run.regularization_losses = {0.5f};
  ASSERT_OK(run.Run(kLogits2));
  EXPECT_NEAR(run.loss, 41 + 26 + 0.5, 1e-4);
  EXPECT_EQ(KeysOf(run.summaries),
            (std::vector<std::string>{"average_loss/bought", "average_loss/price", "loss",
                                      "loss/bought", "loss/price"}));
  EXPECT_NEAR(run.summaries["loss"], 67.5, 1e-4);
  EXPECT_NEAR(run.summaries["loss/price"], 13, 1e-4);
  // 1 of the first head, and 2 * 2 * (2 - 3) of the second.
  EXPECT_NEAR(run.trained, 1 + 4, 1e-4);
  EXPECT_EQ(run.global_step, 1);
}

TEST(MultiHead, TakesTheLogitsOfEachHead) {
  Scope scope;
  const Features features = Features({{"x", Const(scope, 1.0f)}}).In(scope);
  const EstimatorSpec spec = BoughtAndPrice()->CreateEstimatorSpec(
      scope, {.features = features,
              .mode = Mode::kPredict,
              .labels = Labels(),
              .logits_by_head = {{"bought", Const(scope, Tensor::Of({{1.f}}))},
                                 {"price", Const(scope, Tensor::Of({{2.f}}))}}});
  EXPECT_OK(scope.status());
  EXPECT_TRUE(spec.predictions.has("price/predictions"));

  Scope other;
  BoughtAndPrice()->CreateEstimatorSpec(
      other, {.features = features,
              .mode = Mode::kPredict,
              .labels = Labels(),
              .logits_by_head = {{"bought", Const(other, Tensor::Of({{1.f}}))}}});
  EXPECT_STATUS(other.status(), kInvalid,
                "logits_by_head must have those of each head, got none of 'price'");
}

TEST(MultiHead, WhatIsWrongIsNamed) {
  EXPECT_STATUS(MultiHead({})->status(), kInvalid, "MultiHead: heads must be given, got none");
  EXPECT_STATUS(MultiHead({BinaryHead()})->status(), kInvalid,
                "MultiHead: heads must have names, got one without");
  EXPECT_STATUS(MultiHead({BinaryHead({.name = "a"}), RegressionHead({.name = "a"})})->status(),
                kInvalid, "MultiHead: heads must have names of their own, got 'a' twice");
  EXPECT_STATUS(MultiHead({BinaryHead({.name = "a"})}, {1, 2})->status(), kInvalid,
                "MultiHead: weights must be one for each of 1 heads, got 2");
  EXPECT_STATUS(MultiHead({nullptr})->status(), kInvalid,
                "MultiHead: heads must be heads, got a null one");
  EXPECT_STATUS(MultiHead({MultiClassHead(2, {.name = "a"})})->status(), kInvalid,
                "MultiClassHead: n_classes must be > 2, got 2");

  HeadRun unnamed(BoughtAndPrice(), Mode::kEval);
  unnamed.labels = Tensor::Of<int32_t>({1, 1});
  EXPECT_STATUS(unnamed.Run(kLogits2), kInvalid,
                "labels must be given by the names of the heads, got none of 'bought' ('label')");
  HeadRun narrow(BoughtAndPrice(), Mode::kEval);
  narrow.labels_by_name = kLabels2;
  EXPECT_STATUS(narrow.Run(Tensor::Of({{1.f}, {2.f}})), kInvalid,
                "logits must have shape [D0, ..., 2] (its logits_dimension), got shape [?,1]");
}

}  // namespace
}  // namespace millrace
