// SPDX-License-Identifier: Apache-2.0
//
// An Estimator whose model looks words up: its tables are filled in every session that it opens,
// and its vocabulary goes with its exports.

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "estimator/estimator.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "layers/initializers.h"
#include "layers/lookup.h"
#include "layers/losses.h"
#include "layers/variable.h"
#include "ops/ops.h"
#include "saver/loaded_model.h"
#include "train/gradient_descent.h"
#include "train/metrics.h"

// covers: values: exported models take vocabulary files along and are moved
// covers: article 4-19: vocabularies in assets/, read from where the model lies

namespace millrace {
namespace {

FileSystem* const kFiles = FileSystem::Posix();

Tensor Strings(std::initializer_list<std::string> values) {
  return Tensor::Vector<std::string>(values);
}

Input Words(const Scope& scope) {
  return Input({{"word", Const(scope, Strings({"tea", "milk", "tea", "what"}))}},
               Const(scope, Tensor::Vector<float>({1, 3, 1, 9})));
}

// A number for each word of the vocabulary, and one for all others.
ModelFn Prices(const std::string& vocabulary) {
  return
      [vocabulary](const Scope& scope, const Features& features, const Labels& labels, Mode mode) {
        const IndexTable table = IndexTableFromFile(scope.WithName("words"), vocabulary,
                                                    {.vocab_size = 3, .default_value = 3});
        const Variable prices =
            MakeVariable(scope.WithName("prices"), Shape({4}), DT_FLOAT, ZerosInitializer());
        const Output price =
            GatherV2(scope, prices.value, Lookup(scope, table, features["word"]), Const(scope, 0));
        EstimatorSpec spec{.mode = mode, .predictions = price};
        if (mode == Mode::kPredict) return spec;
        spec.loss = MeanSquaredError(scope, labels, price);
        if (mode == Mode::kEval) {
          spec.eval_metric_ops["mse"] = metrics::MeanSquaredError(scope, labels, price);
          return spec;
        }
        spec.train_op = GradientDescentOptimizer({.learning_rate = 0.5})
                            .Minimize(scope, spec.loss, {.global_step = GlobalStep(scope)});
        return spec;
      };
}

class EstimatorTables : public ::testing::Test {
 protected:
  EstimatorTables()
      : dir_(JoinPath(::testing::TempDir(), absl::StrCat("estimator_tables_", RandomHexName()))) {
    EXPECT_OK(kFiles->RecursivelyCreateDirectory(dir_));
    EXPECT_OK(WriteFileAtomically(kFiles, Vocabulary(), "tea\ncoffee\nmilk\n"));
  }
  ~EstimatorTables() override { kFiles->RecursivelyDelete(dir_).IgnoreError(); }
  std::string Vocabulary() const { return JoinPath(dir_, "vocabulary.txt"); }

  const std::string dir_;
};

TEST_F(EstimatorTables, AreFilledInEverySessionAndTakeTheirFilesAlong) {
  EstimatorOptions options;
  options.model_dir = dir_ + "/model";
  options.config = *RunConfig::Make({.save_checkpoints_steps = 50}, "");
  ASSERT_OK_AND_ASSIGN(const Estimator estimator, Estimator::Make(Prices(Vocabulary()), options));
  ASSERT_OK(estimator.Train(Words, {.max_steps = 100}).status());
  ASSERT_OK_AND_ASSIGN(const Tensor prices, estimator.GetVariableValue("prices"));
  EXPECT_NEAR(prices.flat<float>()[0], 1, 1e-3);
  EXPECT_EQ(prices.flat<float>()[1], 0) << "nobody had coffee";
  EXPECT_NEAR(prices.flat<float>()[2], 3, 1e-3);
  EXPECT_NEAR(prices.flat<float>()[3], 9, 1e-3);
  ASSERT_OK_AND_ASSIGN(const auto evaluated, estimator.Evaluate(Words, {.steps = 1}));
  EXPECT_NEAR(evaluated["mse"], 0, 1e-4);

  ASSERT_OK_AND_ASSIGN(
      const std::string path, estimator.ExportSavedModel(dir_ + "/export", [](const Scope& scope) {
        const Output word = Placeholder(scope.WithName("input_word"), DT_STRING, {-1});
        return ServingInputReceiver{.features = {{"word", word}}, .receivers = {{"word", word}}};
      }));
  // The model's directory and the vocabulary are gone; the export is elsewhere.
  ASSERT_OK(kFiles->RenameFile(path, dir_ + "/moved"));
  ASSERT_OK(kFiles->RecursivelyDelete(options.model_dir));
  ASSERT_OK(kFiles->DeleteFile(Vocabulary()));
  ASSERT_OK_AND_ASSIGN(const std::string asset,
                       ReadFileToString(kFiles, dir_ + "/moved/assets/vocabulary.txt"));
  EXPECT_EQ(asset, "tea\ncoffee\nmilk\n");
  ASSERT_OK_AND_ASSIGN(const LoadedModel model, LoadModel(dir_ + "/moved"));
  ASSERT_OK_AND_ASSIGN(const auto out, model.Predict({{"word", Strings({"milk", "?", "tea"})}}));
  EXPECT_NEAR(out.at("output").flat<float>()[0], 3, 1e-3);
  EXPECT_NEAR(out.at("output").flat<float>()[1], 9, 1e-3);
  EXPECT_NEAR(out.at("output").flat<float>()[2], 1, 1e-3);
}

TEST_F(EstimatorTables, NameTheFileThatIsMissing) {
  EstimatorOptions options;
  options.model_dir = dir_ + "/model";
  options.config = *RunConfig::Make({.save_checkpoints_steps = 50}, "");
  ASSERT_OK_AND_ASSIGN(const Estimator estimator,
                       Estimator::Make(Prices(dir_ + "/nowhere.txt"), options));
  EXPECT_STATUS(estimator.Train(Words, {.max_steps = 1}).status(), absl::StatusCode::kNotFound,
                dir_ + "/nowhere.txt");
  ASSERT_OK_AND_ASSIGN(const Estimator small, Estimator::Make(Prices(Vocabulary()), options));
  EXPECT_OK(WriteFileAtomically(kFiles, Vocabulary(), "tea\ncoffee\n"));
  EXPECT_STATUS(small.Train(Words, {.max_steps = 1}).status(), absl::StatusCode::kInvalidArgument,
                "it must have as many lines as vocab_size says, 3, got 2");
}

}  // namespace
}  // namespace millrace
