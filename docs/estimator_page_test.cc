// SPDX-License-Identifier: Apache-2.0
//
// The program of docs/estimator.md, as it stands there, in one process.

#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "core/file_system.h"
#include "core/logging.h"
#include "core/random_bits.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "data/dataset.h"
#include "estimator/add_metrics.h"
#include "estimator/best_exporter.h"
#include "estimator/canned/canned.h"
#include "estimator/columns/feature_column.h"
#include "estimator/distributed_predict.h"
#include "estimator/early_stopping.h"
#include "estimator/estimator.h"
#include "estimator/exporter.h"
#include "estimator/train_and_evaluate.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "layers/losses.h"
#include "layers/variable.h"
#include "ops/ops.h"
#include "saver/saver.h"
#include "train/adam.h"
#include "train/metrics.h"

namespace millrace {
namespace {

#include "docs/estimator_early_stopping.inc"
#include "docs/estimator_predict.inc"
#include "docs/estimator_premade.inc"
#include "docs/estimator_program.inc"

TEST(EstimatorPageTest, TheProgramTrainsEvaluatesAndExports) {
  const std::string directory = JoinPath(std::getenv("TEST_TMPDIR"), RandomHexName());
  unsetenv("TF_CONFIG");
  ASSERT_OK(RunLine(directory));
  FileSystem* const fs = FileSystem::Posix();
  EXPECT_EQ(LatestCheckpoint(fs, directory), directory + "/model.ckpt-1000");
  ASSERT_OK_AND_ASSIGN(const auto exports, fs->GetChildren(directory + "/export/final"));
  EXPECT_EQ(exports.size(), 1u);
  EXPECT_TRUE(fs->FileExists(directory + "/eval"));
}

TEST(EstimatorPageTest, ThePremadeModelLearnsAndItsBestIsExported) {
  const std::string directory = JoinPath(std::getenv("TEST_TMPDIR"), RandomHexName());
  unsetenv("TF_CONFIG");
  // The older earn more, and smiths.
  std::vector<float> age, hours, weight;
  std::vector<std::string> occupation, income;
  for (int i = 0; i < 400; ++i) {
    age.push_back(static_cast<float>(20 + i % 50));
    hours.push_back(static_cast<float>(30 + i % 7));
    occupation.push_back(i % 3 == 0 ? "smith" : "clerk");
    weight.push_back(1);
    income.push_back(age.back() + (i % 3 == 0 ? 15.0f : 0.0f) > 50 ? ">50K" : "<=50K");
  }
  const auto rows = [=](Mode mode) {
    data::Dataset all = data::Dataset::FromTensorSlices(
        {Tensor::Vector<float>(age), Tensor::Vector<float>(hours),
         Tensor::Vector<std::string>(occupation), Tensor::Vector<float>(weight),
         Tensor::Vector<std::string>(income)});
    if (mode == Mode::kTrain) all = all.Shuffle(400).Repeat();
    return Input(all.Batch(40), {.names = {"age", "hours", "occupation", "weight", "income"},
                                 .labels = {"income"}});
  };
  ASSERT_OK(TrainIncome(directory, rows, rows));
  const RunConfig config = *RunConfig::Make({.model_dir = directory}, "");
  ASSERT_OK_AND_ASSIGN(const EvalResult result, Income({.config = config}).Evaluate(rows));
  EXPECT_GT(result["auc"], 0.9);
  EXPECT_LT(result["brier"], 0.2);
  ASSERT_OK_AND_ASSIGN(const auto exports,
                       FileSystem::Posix()->GetChildren(directory + "/export/best"));
  EXPECT_GE(exports.size(), 1u);

  // Its steps are few for the patience: it may learn to their end.
  ASSERT_OK_AND_ASSIGN(const std::string why,
                       TrainWithPatience(Income({.config = config}), rows, rows));
  EXPECT_TRUE(absl::StartsWith(why, "early stopping: auc ") ||
              absl::StartsWith(why, "reached step 100000"))
      << why;

  std::vector<int64_t> number(age.size());
  std::iota(number.begin(), number.end(), 0);
  const auto people = [=] {
    return Input(data::Dataset::FromTensorSlices(
                     {Tensor::Vector<float>(age), Tensor::Vector<float>(hours),
                      Tensor::Vector<std::string>(occupation), Tensor::Vector<int64_t>(number)})
                     .Batch(40),
                 {.names = {"age", "hours", "occupation", "number"}});
  };
  ASSERT_EQ(chdir(directory.c_str()), 0);
  ASSERT_OK(PredictIncome(Income({.config = config}), people));
  ASSERT_OK_AND_ASSIGN(const auto manifest,
                       ReadPredictionManifest(FileSystem::Posix(), "predicted"));
  ASSERT_TRUE(manifest);
  EXPECT_EQ(manifest->rows(), 400);
  EXPECT_EQ(manifest->parts.size(), 64u);
  ASSERT_OK_AND_ASSIGN(
      const std::string first,
      ReadFileToString(FileSystem::Posix(), "predicted/predictions-00001-of-00064.jsonl"));
  EXPECT_EQ(first.find("{\"classes\":[\">50K\"],\"number\":40,\"probabilities\":["), 0u) << first;
}

}  // namespace
}  // namespace millrace
