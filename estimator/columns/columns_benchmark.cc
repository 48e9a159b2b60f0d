// SPDX-License-Identifier: Apache-2.0
//
// A step of the census example's columns (seed 0: three crosses, eight wide columns, six
// indicators, two embeddings, five numbers) without a network: forward, and with gradients and
// updates, in both lowerings (the fused one with shared ids). The batch is in memory, all texts are
// dense.
//
//   bazel run -c opt //estimator/columns:columns_benchmark

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "benchmark/benchmark.h"
#include "core/tensor.h"
#include "estimator/columns/feature_column.h"
#include "estimator/columns/input_layer.h"
#include "estimator/columns/linear_model.h"
#include "estimator/columns/shared_ids.h"
#include "estimator/model_tensors.h"
#include "layers/lookup.h"
#include "layers/variable.h"
#include "ops/ops.h"
#include "runtime/session.h"
#include "train/adagrad.h"

namespace millrace {
namespace {

std::vector<std::string> Words(const char* prefix, int n) {
  std::vector<std::string> words;
  for (int i = 0; i < n; ++i) words.push_back(absl::StrCat(" ", prefix, "-", i));
  return words;
}

struct TextFeature {
  const char* key;
  int words;
};
constexpr TextFeature kVocabularies[] = {{"gender", 2},       {"race", 5},
                                         {"education", 16},   {"marital_status", 7},
                                         {"relationship", 6}, {"workclass", 9}};
constexpr TextFeature kHashed[] = {{"occupation", 15}, {"native_country", 41}};
constexpr const char* kNumbers[] = {"age", "education_num", "capital_gain", "capital_loss",
                                    "hours_per_week"};

struct Census {
  Census(int64_t batch, ColumnLowering lowering) {
    uint64_t random = 1;
    const auto next = [&](int n) {
      random = random * 6364136223846793005u + 1442695040888963407u;
      return static_cast<int>((random >> 33) % static_cast<uint64_t>(n));
    };
    const auto text = [&](const TextFeature& feature) {
      const std::vector<std::string> words = Words(feature.key, feature.words);
      std::vector<std::string> values;
      for (int64_t i = 0; i < batch; ++i) {
        values.push_back(words[static_cast<size_t>(next(feature.words))]);
      }
      Add(feature.key, Tensor::Vector<std::string>(absl::MakeConstSpan(values)));
    };
    for (const TextFeature& feature : kVocabularies) text(feature);
    for (const TextFeature& feature : kHashed) text(feature);
    for (const char* key : kNumbers) {
      std::vector<float> values;
      for (int64_t i = 0; i < batch; ++i) values.push_back(static_cast<float>(next(70)));
      Add(key, Tensor::Vector<float>(absl::MakeConstSpan(values)));
    }
    Build(lowering);
  }

  void Add(const std::string& key, Tensor value) {
    const Output x = Placeholder(root.WithName(key), value.dtype(), {-1});
    features[key] = x;
    names.push_back(x.name());
    feeds.push_back(std::move(value));
  }

  void Build(ColumnLowering lowering) {
    std::vector<DenseColumn> deep;
    std::vector<FeatureColumn> wide;
    CategoricalColumn race;
    for (const TextFeature& feature : kVocabularies) {
      const auto column =
          CategoricalColumnWithVocabularyList(feature.key, Words(feature.key, feature.words));
      deep.push_back(IndicatorColumn(column));
      if (std::string(feature.key) == "race") {
        race = column;
      } else {
        wide.push_back(column);
      }
    }
    for (const TextFeature& feature : kHashed) {
      const auto column = CategoricalColumnWithHashBucket(feature.key, 100);
      deep.push_back(EmbeddingColumn(column, 8));
      wide.push_back(column);
    }
    for (const char* key : kNumbers) deep.push_back(NumericColumn(key));
    const BucketizedColumn ages(NumericColumn("age"), {18, 25, 30, 35, 40, 45, 50, 55, 60, 65});
    wide.push_back(ages);
    wide.push_back(CrossedColumn({"education", "occupation"}, 10'000));
    wide.push_back(CrossedColumn({ages, race, "occupation"}, 1'000'000));
    wide.push_back(CrossedColumn({"native_country", "occupation"}, 10'000));
    SharedIds ids;
    if (lowering == ColumnLowering::kFused) ids = MakeSharedIds(root, features, deep, wide);
    const Output input =
        InputLayer(root, features, deep, {.lowering = lowering, .shared_ids = ids});
    const Output linear =
        LinearModel(root, features, wide, {.lowering = lowering, .shared_ids = ids});
    forward = millrace::Add(root, ReduceSum(root, input), ReduceSum(root, linear));
    step = AdagradOptimizer({.learning_rate = 1e-3}).Minimize(root, forward);
  }

  Scope root;
  Features::Map features;
  std::vector<std::string> names;
  std::vector<Tensor> feeds;
  Output forward;
  Operation step;
};

void Step(benchmark::State& state, bool train) {
  Census census(state.range(0),
                state.range(1) == 0 ? ColumnLowering::kPortable : ColumnLowering::kFused);
  const Operation variables = GlobalVariablesInitializer(census.root);
  const Operation tables = TablesInitializer(census.root);
  const auto session = NewSession();
  if (!session.ok() || !(*session)->Extend(census.root).ok() ||
      !(*session)->Run({}, {}, {variables, tables}).ok()) {
    return state.SkipWithError(census.root.status().ToString().c_str());
  }
  std::vector<FetchName> feeds(census.names.begin(), census.names.end());
  std::vector<FetchName> targets;
  if (train) targets.emplace_back(census.step);
  const auto step = (*session)->Prepare(feeds, {census.forward}, targets);
  if (!step.ok()) return state.SkipWithError(step.status().ToString().c_str());
  std::vector<Tensor> results(1);
  for (auto _ : state) {
    if (!(*step)->RunInto(census.feeds, absl::MakeSpan(results)).ok()) {
      return state.SkipWithError("a step failed");
    }
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}

void Forward(benchmark::State& state) { Step(state, false); }
BENCHMARK(Forward)->ArgNames({"batch", "fused"})->ArgsProduct({{40, 1024}, {0, 1}});
void Train(benchmark::State& state) { Step(state, true); }
BENCHMARK(Train)->ArgNames({"batch", "fused"})->ArgsProduct({{40, 1024}, {0, 1}});

}  // namespace
}  // namespace millrace
