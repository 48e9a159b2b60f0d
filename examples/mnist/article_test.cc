// SPDX-License-Identifier: Apache-2.0
//
// What mnist_dist and mnist_monitored promise of the article, row by row, in this process.

#include "examples/mnist/article.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "layers/layers.h"
#include "ops/ops.h"
#include "proto/meta_graph.pb.h"
#include "proto/summary.pb.h"
#include "runtime/session.h"
#include "saver/meta_graph.h"
#include "saver/saver.h"
#include "saver/tensor_bundle.h"
#include "train/supervisor.h"

// covers: article 2-19: collections `inputs` and `outputs` with JSON, `export.meta` and `export.*`,
//   the key passed through
// covers: article 2-30: scalars Test_loss (sum) and Test_accuracy (mean)

namespace millrace {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string NewDirectory() {
  const std::string path = JoinPath(::testing::TempDir(), RandomHexName());
  EXPECT_OK(FileSystem::Posix()->RecursivelyCreateDirectory(path));
  return path;
}

struct Trained {
  Scope scope;
  ArticleGraph graph;
  std::unique_ptr<Session> session;
};

// The graph, initialised.
Trained Start(int64_t batch_size) {
  Trained trained;
  trained.scope.SetGraphSeed(1);
  trained.graph = BuildArticleGraph(trained.scope, batch_size);
  const Operation init = GlobalVariablesInitializer(trained.scope);
  EXPECT_OK(trained.scope.status());
  auto session = NewSession();
  EXPECT_OK(session.status());
  trained.session = *std::move(session);
  EXPECT_OK(trained.session->Extend(trained.scope));
  EXPECT_OK(trained.session->Run({}, {}, {init}).status());
  return trained;
}

tensorflow::Summary Parsed(const std::string& bytes) {
  tensorflow::Summary summary;
  EXPECT_TRUE(summary.ParseFromString(bytes));
  return summary;
}

// covers: article 2-17: placeholders with defaults, partial shapes: summaries run without images
TEST(ArticleTest, EverythingThatIsFedHasADefaultSoThatSummariesRunWithoutImages) {
  Trained trained = Start(4);
  ASSERT_OK_AND_ASSIGN(const auto defaults,
                       trained.session->Run({}, {trained.graph.images, trained.graph.labels,
                                                 trained.graph.keep_prob, trained.graph.loss}));
  EXPECT_EQ(defaults[0].shape(), Shape({4, kDigitPixels}));
  EXPECT_EQ(defaults[1].shape(), Shape({4, kDigitClasses}));
  EXPECT_EQ(defaults[2].scalar<float>(), 1);
  EXPECT_EQ(defaults[3].scalar<float>(), 0);  // no label, no loss

  ASSERT_OK_AND_ASSIGN(const auto out,
                       trained.session->Run({{trained.graph.test_loss, Tensor::Scalar(12.5f)},
                                             {trained.graph.test_accuracy, Tensor::Scalar(0.75f)}},
                                            {trained.graph.summaries}));
  const tensorflow::Summary summary = Parsed(out[0].scalar<std::string>());
  std::set<std::string> tags;
  for (const auto& value : summary.value()) {
    tags.insert(value.tag());
    if (value.tag() == "Test_loss") {
      EXPECT_EQ(value.simple_value(), 12.5f);
    }
    if (value.tag() == "Test_accuracy") {
      EXPECT_EQ(value.simple_value(), 0.75f);
    }
    if (value.tag() == "conv_filters1") {
      EXPECT_EQ(value.histo().num(), 5 * 5 * 32);
    }
    if (value.tag() == "conv_filters2") {
      EXPECT_EQ(value.histo().num(), 5 * 5 * 32 * 64);
      // Truncated at two standard deviations of 0.1.
      EXPECT_LE(value.histo().max(), 0.2 + 1e-6);
      EXPECT_GT(value.histo().max(), 0.15);
    }
  }
  EXPECT_EQ(tags, std::set<std::string>(
                      {"Test_loss", "Test_accuracy", "conv_filters1", "conv_filters2"}));
}

// covers: article 2-21: flags; batches that do not divide the data
TEST(ArticleTest, BatchesThatDoNotDivideTheDataAreJudgedWhole) {
  Trained trained = Start(10);
  const Digits digits = DrawDigits(23, 3);
  ASSERT_OK_AND_ASSIGN(const ArticleScore uneven,
                       JudgeArticle(trained.session.get(), trained.graph, digits, 10));
  ASSERT_OK_AND_ASSIGN(const ArticleScore whole,
                       JudgeArticle(trained.session.get(), trained.graph, digits, 23));
  EXPECT_NEAR(uneven.loss, whole.loss, 1e-3);
  EXPECT_NEAR(uneven.accuracy, whole.accuracy, 1e-6);
  // Zeros in the output layer: each class has probability 0.1.
  EXPECT_NEAR(whole.loss, 23 * std::log(10.0), 1e-3);
}

// covers: article 2-24: the unprotected loss is NaN by IEEE 754, and the guard says so
// A probability that underflows gives what IEEE 754 says, and the guard names the step.
TEST(ArticleTest, AProbabilityOfZeroMakesTheLossNaNAndTheGuardSaysSo) {
  Trained trained = Start(2);
  Tensor labels =
      Tensor::Of<float>({{1, 0, 0, 0, 0, 0, 0, 0, 0, 0}, {0, 1, 0, 0, 0, 0, 0, 0, 0, 0}});
  std::vector<float> pixels(2 * kDigitPixels, 1e6f);
  for (size_t i = kDigitPixels; i < pixels.size(); ++i) pixels[i] = -1e6f;
  ASSERT_OK_AND_ASSIGN(const Tensor images,
                       Tensor::FromValues<float>(Shape({2, kDigitPixels}), pixels));
  const auto step = [&] {
    return trained.session->Run({{trained.graph.images, images}, {trained.graph.labels, labels}},
                                {trained.graph.loss}, {trained.graph.train});
  };
  ASSERT_OK_AND_ASSIGN(const auto first, step());
  EXPECT_OK(CheckLossIsFinite(first[0], 1));
  ASSERT_OK_AND_ASSIGN(const auto second, step());
  EXPECT_TRUE(std::isnan(second[0].scalar<float>())) << second[0].scalar<float>();
  const Status guard = CheckLossIsFinite(second[0], 2);
  EXPECT_STATUS(guard, absl::StatusCode::kInvalidArgument,
                "NaN guard: the loss must be finite, got nan at global step 2");
  EXPECT_TRUE(IsLossNotFinite(guard));
}

// covers: article 2-18: export through a second graph without devices; extra variables left out, a
//   missing one named
TEST(ArticleTest, TheExportIsASecondGraphWithoutDevicesAndWithoutTheOptimizersVariables) {
  Scope scope;
  const ArticleGraph graph = BuildArticleGraph(
      scope.WithDevice([](const tensorflow::NodeDef&) { return "/job:localhost/task:0"; }), 8);
  const Operation init = GlobalVariablesInitializer(scope);
  ASSERT_OK_AND_ASSIGN(const auto saver, Saver::Make(scope, {.sharded = false}));
  ASSERT_OK_AND_ASSIGN(const auto session, NewSession());
  ASSERT_OK(session->Extend(scope));
  ASSERT_OK(session->Run({}, {}, {init}).status());
  const Digits digits = DrawDigits(8, 3);
  ASSERT_OK_AND_ASSIGN(DigitBatch batch, MakeBatch(digits, 0, 8));
  ASSERT_OK(
      session->Run({{graph.images, batch.images}, {graph.labels, batch.labels}}, {}, {graph.train})
          .status());
  const std::string dir = NewDirectory();
  ASSERT_OK_AND_ASSIGN(const std::string checkpoint,
                       saver->Save(session.get(), JoinPath(dir, "model.ckpt"), 1));
  const std::string model = JoinPath(dir, "model");
  ASSERT_OK(ExportArticle(checkpoint, model));

  ASSERT_OK_AND_ASSIGN(const auto meta,
                       ReadMetaGraph(FileSystem::Posix(), JoinPath(model, "export.meta")));
  for (const auto& node : meta.graph_def().node()) {
    EXPECT_THAT(node.device(), Not(HasSubstr("/job:"))) << node.name();
  }
  EXPECT_EQ(meta.collection_def().at("inputs").bytes_list().value(0),
            "{\"image\":\"image:0\",\"key\":\"key:0\"}");
  const std::string outputs = meta.collection_def().at("outputs").bytes_list().value(0);
  EXPECT_THAT(outputs, HasSubstr("\"key\":\"key_out:0\""));
  EXPECT_THAT(outputs, HasSubstr("\"scores\":\""));
  ASSERT_OK_AND_ASSIGN(const auto all, BundleReader::Open(FileSystem::Posix(), checkpoint));
  ASSERT_OK_AND_ASSIGN(const auto few,
                       BundleReader::Open(FileSystem::Posix(), JoinPath(model, "export")));
  EXPECT_TRUE(all->Contains("global_step"));
  EXPECT_FALSE(few->Contains("global_step"));
  EXPECT_TRUE(all->Contains("cnn/convolution1/kernel/Adam"));
  EXPECT_FALSE(few->Contains("cnn/convolution1/kernel/Adam"));
  EXPECT_TRUE(few->Contains("cnn/convolution1/kernel"));
}

// covers: article 2-18: export through a second graph without devices; extra variables left out, a
//   missing one named
TEST(ArticleTest, AnExportOfACheckpointThatLacksAVariableNamesIt) {
  Scope scope;
  MakeVariable(scope.WithName("cnn/convolution1/kernel"), Shape{5, 5, 1, 32}, DT_FLOAT,
               ZerosInitializer());
  const Operation init = GlobalVariablesInitializer(scope);
  ASSERT_OK_AND_ASSIGN(const auto saver, Saver::Make(scope, {.sharded = false}));
  ASSERT_OK_AND_ASSIGN(const auto session, NewSession());
  ASSERT_OK(session->Extend(scope));
  ASSERT_OK(session->Run({}, {}, {init}).status());
  const std::string dir = NewDirectory();
  ASSERT_OK_AND_ASSIGN(const std::string checkpoint,
                       saver->Save(session.get(), JoinPath(dir, "model.ckpt"), 1));
  EXPECT_STATUS(ExportArticle(checkpoint, JoinPath(dir, "model")), absl::StatusCode::kNotFound,
                "cnn/convolution1/bias");
}

}  // namespace
}  // namespace millrace
