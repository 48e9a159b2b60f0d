// SPDX-License-Identifier: Apache-2.0
#include "estimator/heads/multi_label_head.h"

#include <cmath>
#include <string>
#include <vector>

#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "estimator/heads/testing/head_run.h"
#include "gtest/gtest.h"

// covers: training: heads give TensorFlow's predictions, losses, metrics, summaries and exports, by
//   its names; with weights, vocabularies, thresholds, several dimensions; wrong labels and weights
//   are named

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
// Of a class that is there, and of one that is not.
double Yes(double x) { return -std::log(Sigmoid(x)); }
double No(double x) { return -std::log(1 - Sigmoid(x)); }

const Tensor kLogits2 = Tensor::Of({{-1.f, 1.f}, {-1.5f, 1.f}});
// Labels [[1, 0], [1, 1]].
const double kLoss = (Yes(-1) + No(1)) / 2 + (Yes(-1.5) + Yes(1)) / 2;

TEST(MultiLabelHead, PredictsAProbabilityForEachClass) {
  HeadRun run(MultiLabelHead(2, {.label_vocabulary = {"red", "blue"}}), Mode::kPredict);
  ASSERT_OK(run.Run(Tensor::Of({{0.f, 1.f}, {-1.f, -2.f}})));
  EXPECT_EQ(KeysOf(run.predictions), (std::vector<std::string>{"logits", "probabilities"}));
  const Tensor probabilities = Tensor::Of<float>({{0.5, Sigmoid(1)}, {Sigmoid(-1), Sigmoid(-2)}});
  ExpectTensorNear(run.predictions["probabilities"], probabilities, 1e-6, 0);
  EXPECT_EQ(KeysOf(run.spec.export_outputs),
            (std::vector<std::string>{"classification", "predict", "serving_default"}));
  ExpectTensorNear(run.exports["serving_default/scores"], probabilities, 1e-6, 0);
  ExpectTensorEqual(run.exports["serving_default/classes"],
                    Tensor::Of<std::string>({{"red", "blue"}, {"red", "blue"}}));
}

TEST(MultiLabelHead, TakesLabelsDenseSparseAndOfWords) {
  const Tensor indices = Tensor::Of<int64_t>({{0, 0}, {1, 0}, {1, 1}});
  const Tensor dense_shape = Tensor::Of<int64_t>({2, 2});
  HeadRun dense(MultiLabelHead(2), Mode::kEval);
  dense.labels = Tensor::Of<int64_t>({{1, 0}, {1, 1}});
  HeadRun sparse(MultiLabelHead(2), Mode::kEval);
  sparse.sparse_labels = {indices, Tensor::Of<int64_t>({0, 1, 0}), dense_shape};
  HeadRun words(MultiLabelHead(2, {.label_vocabulary = {"red", "blue"}}), Mode::kEval);
  words.sparse_labels = {indices, Tensor::Of<std::string>({"red", "blue", "red"}), dense_shape};
  for (HeadRun* run : {&dense, &sparse, &words}) {
    ASSERT_OK(run->Run(kLogits2));
    EXPECT_NEAR(run->loss, kLoss, 1e-5);
    EXPECT_NEAR(run->metrics["average_loss"], kLoss / 2, 1e-5);
    EXPECT_EQ(KeysOf(run->metrics),
              (std::vector<std::string>{"auc", "auc_precision_recall", "average_loss"}));
  }
}

TEST(MultiLabelHead, AnExampleMayHaveNoLabelOrOneTwice) {
  HeadRun run(MultiLabelHead(2), Mode::kEval);
  run.sparse_labels = {Tensor::Of<int64_t>({{1, 0}, {1, 1}, {1, 2}}),
                       Tensor::Of<int64_t>({1, 0, 1}), Tensor::Of<int64_t>({2, 3})};
  ASSERT_OK(run.Run(kLogits2));
  EXPECT_NEAR(run.loss, (No(-1) + No(1)) / 2 + (Yes(-1.5) + Yes(1)) / 2, 1e-5);
}

TEST(MultiLabelHead, WeighsExamplesAndMeasuresAtThresholds) {
  HeadRun run(MultiLabelHead(2, {.weight_column = "w", .thresholds = {0.25, 0.5, 0.75}}),
              Mode::kEval);
  run.labels = Tensor::Of<int64_t>({{1, 0}, {1, 1}});
  run.features["w"] = Tensor::Of({1.f, 2.f});
  ASSERT_OK(run.Run(kLogits2));
  const double loss = (Yes(-1) + No(1)) / 2 + Yes(-1.5) + Yes(1);
  EXPECT_NEAR(run.loss, loss, 1e-5);
  EXPECT_NEAR(run.metrics["average_loss"], loss / 3, 1e-5);
  // Probabilities .269 .731 | .182 .731, twice the weight for the second example.
  EXPECT_NEAR(run.metrics["accuracy/positive_threshold_0.25"], (1 + 0 + 0 + 2) / 6.0, 1e-6);
  EXPECT_NEAR(run.metrics["precision/positive_threshold_0.25"], (1 + 2) / 4.0, 1e-6);
  EXPECT_NEAR(run.metrics["recall/positive_threshold_0.25"], (1 + 2) / 5.0, 1e-6);
  EXPECT_NEAR(run.metrics["accuracy/positive_threshold_0.5"], (0 + 0 + 0 + 2) / 6.0, 1e-6);
  EXPECT_NEAR(run.metrics["precision/positive_threshold_0.5"], 2 / 3.0, 1e-6);
  EXPECT_NEAR(run.metrics["recall/positive_threshold_0.5"], 2 / 5.0, 1e-6);
  EXPECT_NEAR(run.metrics["accuracy/positive_threshold_0.75"], (0 + 1 + 0 + 0) / 6.0, 1e-6);
  EXPECT_NEAR(run.metrics["precision/positive_threshold_0.75"], 0, 1e-6);
}

TEST(MultiLabelHead, TrainsAndTellsTheLoss) {
  HeadRun run(MultiLabelHead(2), Mode::kTrain);
  run.labels = Tensor::Of<int64_t>({{1, 0}, {1, 1}});
  ASSERT_OK(run.Run(kLogits2));
  EXPECT_NEAR(run.summaries["loss"], kLoss, 1e-5);
  EXPECT_NEAR(run.summaries["average_loss"], kLoss / 2, 1e-5);
  const double gradient = (Sigmoid(-1) - 1 + Sigmoid(1) + Sigmoid(-1.5) - 1 + Sigmoid(1) - 1) / 2;
  EXPECT_NEAR(run.trained, -gradient, 1e-5);
}

TEST(MultiLabelHead, WrongLabelsAreNamed) {
  struct Wrong {
    std::optional<Tensor> labels;
    std::optional<SparseLabels> sparse;
    std::vector<std::string> vocabulary;
    std::string message;
  };
  const Tensor place = Tensor::Of<int64_t>({{0, 0}}), dims = Tensor::Of<int64_t>({2, 1});
  for (const Wrong& wrong : std::vector<Wrong>{
           {Tensor::Of<int64_t>({1, 0}),
            {},
            {},
            "labels must have shape [D0, ..., 2] for logits of shape [?,2], got [?]"},
           {Tensor::Of<int64_t>({{1, 2}, {0, 0}}),
            {},
            {},
            "labels must be in [0, 1] for each class"},
           {Tensor::Of<std::string>({{"a", "b"}, {"c", "d"}}),
            {},
            {},
            "labels must be numbers 0 and 1 for each class, or words in a sparse tensor, got "
            "strings"},
           {{},
            SparseLabels{place, Tensor::Of<int64_t>({2}), dims},
            {},
            "labels must be in [0, 1], got"},
           {{},
            SparseLabels{place, Tensor::Of({1.f}), dims},
            {},
            "sparse labels must be integers, got float"},
           {{},
            SparseLabels{place, Tensor::Of<std::string>({"a"}), dims},
            {},
            "sparse labels must be integers, got string from 'values:0'; words need a "
            "label_vocabulary"},
           {{},
            SparseLabels{place, Tensor::Of<std::string>({"c"}), dims},
            {"a", "b"},
            "labels must be in the label_vocabulary, got"},
           {{},
            SparseLabels{place, Tensor::Of<int64_t>({1}), Tensor::Of<int64_t>({3, 1})},
            {},
            "labels must have shape [D0, ..., 2] for logits [D0, ..., n], got"}}) {
    HeadRun run(MultiLabelHead(2, {.label_vocabulary = wrong.vocabulary}), Mode::kEval);
    run.labels = wrong.labels;
    run.sparse_labels = wrong.sparse;
    EXPECT_STATUS(run.Run(kLogits2), kInvalid, wrong.message);
  }
}

TEST(MultiLabelHead, OneClassIsRefused) {
  EXPECT_STATUS(MultiLabelHead(1)->status(), kInvalid,
                "MultiLabelHead: n_classes must be > 1, got 1");
}

}  // namespace
}  // namespace millrace
