// SPDX-License-Identifier: Apache-2.0
//
// The two lowerings of columns are the same model: values, gradients, variables after steps of
// optimizers. Columns of all kinds are drawn, with features that miss values, have several, or
// words that no vocabulary has.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/dtype.h"
#include "core/shape.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "estimator/columns/feature_column.h"
#include "estimator/columns/input_layer.h"
#include "estimator/columns/linear_model.h"
#include "estimator/columns/shared_ids.h"
#include "estimator/columns/testing/column_values.h"
#include "graph/gradient.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "layers/initializers.h"
#include "layers/lookup.h"
#include "layers/partitioner.h"
#include "layers/variable.h"
#include "ops/array/constant.h"
#include "ops/array/placeholder.h"
#include "ops/array/reshape.h"
#include "ops/linalg/matmul.h"
#include "proto/node_def.pb.h"
#include "runtime/session.h"
#include "train/adagrad.h"
#include "train/adam.h"
#include "train/ftrl.h"
#include "train/gradient_descent.h"
#include "train/momentum.h"
#include "train/optimizer.h"

// covers: columns: the fused lowering of columns is the portable one: values, gradients, variables
//   and slots after steps of four optimizers, for drawn columns of all kinds with missing,
//   multivalent, weighted and unknown values, also of tables on other devices and in parts

namespace millrace {
namespace {

using Random = std::mt19937;

int Draw(Random* random, int n) { return static_cast<int>((*random)() % static_cast<unsigned>(n)); }

// --- Features ------------------------------------------------------------------------------------

struct Examples {
  std::map<std::string, Tensor> dense;
  std::vector<std::vector<std::string>> words, more_words;
  std::vector<std::vector<float>> weights;
};

template <typename T>
Tensor Column(const std::vector<T>& values, bool matrix) {
  const auto n = static_cast<int64_t>(values.size());
  return *Tensor::FromValues<T>(matrix ? Shape{n, 1} : Shape{n}, values);
}

Examples DrawExamples(Random* random, int n) {
  Examples examples;
  const char* const texts[] = {"", "red", "green", "blue", "pink", "a rather long word of its own"};
  const auto text = [&] { return std::string(texts[Draw(random, 6)]); };
  const auto add = [&](const char* key, auto draw) {
    std::vector<decltype(draw())> values;
    for (int i = 0; i < n; ++i) values.push_back(draw());
    examples.dense[key] = Column(values, Draw(random, 2) == 0);
  };
  add("s1", text);
  add("s2", text);
  add("i1", [&] { return static_cast<int64_t>(Draw(random, 7) - 1); });
  add("i2", [&] { return static_cast<int32_t>(Draw(random, 9) - 2); });
  add("in5", [&] { return static_cast<int64_t>(Draw(random, 6) - 1); });
  add("age", [&] {
    const int age = Draw(random, 70);
    return age == 13 ? std::nanf("") : static_cast<float>(age);
  });
  add("x", [&] { return static_cast<float>(Draw(random, 100)) / 50 - 1; });
  std::vector<std::vector<std::string>> several;
  std::vector<std::vector<float>> pairs;
  for (int i = 0; i < n; ++i) {
    several.push_back({text(), text(), text()});
    pairs.push_back({static_cast<float>(Draw(random, 9)), static_cast<float>(Draw(random, 9))});
    std::vector<std::string>& words = examples.words.emplace_back();
    std::vector<float>& weights = examples.weights.emplace_back();
    for (int j = Draw(random, 4); j > 0; --j) {
      words.push_back(text());
      weights.push_back(static_cast<float>(Draw(random, 5)) - 1);
    }
    examples.more_words.push_back({text()});
  }
  examples.dense["m"] = Matrix(several);
  examples.dense["pair"] = Matrix(pairs);
  return examples;
}

Features FeaturesOf(const Scope& scope, const Examples& examples) {
  Features::Map dense;
  for (const auto& [key, value] : examples.dense) dense[key] = Const(scope, value);
  return Features(dense, {{"words", SparseConst(scope, examples.words)},
                          {"weights", SparseConst(scope, examples.weights)},
                          {"word", SparseConst(scope, examples.more_words)}});
}

// --- Columns -------------------------------------------------------------------------------------

// Different numbers in each row, far from 0 and from each other.
Initializer Different() {
  return [](ScopeAt at, const InitialShape& part, DType dtype) {
    return Cos(at, Mul(at, RowNumbers()(at, part, dtype), Const(at, 0.7f)));
  };
}

struct Columns {
  std::vector<CategoricalColumn> ids;
  std::vector<DenseColumn> dense;
};

// All kinds; `is_taken`: which the fused lowering is to take, with embeddings that are `more`
// wider.
Columns AllColumns(bool is_taken, int64_t more = 0) {
  const std::vector<std::string> colours = {"red", "green", "blue"};
  const auto hashed = CategoricalColumnWithHashBucket("s1", 5);
  const auto colour = CategoricalColumnWithVocabularyList("s2", colours);
  const BucketizedColumn ages(NumericColumn("age"), {18, 25, 30, 60});
  Columns columns;
  if (is_taken) {
    columns.ids = {
        hashed,
        colour,
        CategoricalColumnWithHashBucket("i2", 7, DT_INT32),
        CategoricalColumnWithVocabularyList("i1", std::vector<int64_t>{3, 5, 0}),
        CategoricalColumnWithIdentity("in5", 5),
        ages,
        CrossedColumn({"s1", "s2"}, 50),
        CrossedColumn({ages, colour, "i1"}, 1000, {.hash_key = 77}),
    };
    columns.dense = {
        NumericColumn("x"),
        IndicatorColumn(colour),
        IndicatorColumn(CategoricalColumnWithIdentity("i2", 4, 1)),
        EmbeddingColumn(hashed, 3 + more, {.initializer = Different()}),
        EmbeddingColumn(ages, 1 + more, {.initializer = Different()}),
        EmbeddingColumn(CrossedColumn({"i1", "s2"}, 20), 2 + more,
                        {.combiner = Combiner::kSqrtN, .initializer = Different()}),
        ages,
    };
    const auto other =
        CategoricalColumnWithVocabularyList("s1", {"red", "pink"}, {.num_oov_buckets = 3});
    const auto third = CategoricalColumnWithVocabularyList("s2", {"red", "pink", "a", "b", "c"},
                                                           {.default_value = 2});
    for (const DenseColumn& column :
         SharedEmbeddingColumns({other, third}, 2 + more, {{.initializer = Different()}})) {
      columns.dense.push_back(column);
    }
    columns.dense.push_back(NumericColumn("i2"));
    return columns;
  }
  const auto words = CategoricalColumnWithHashBucket("words", 6);
  const auto weighted = WeightedCategoricalColumn(words, "weights");
  const auto several = CategoricalColumnWithVocabularyList("m", colours, {.num_oov_buckets = 2});
  const BucketizedColumn pairs(NumericColumn("pair", {.shape = {2}}), {2, 5});
  columns.ids = {weighted,
                 several,
                 pairs,
                 CategoricalColumnWithHashBucket("word", 9),
                 CrossedColumn({"words", "s1"}, 40),
                 CrossedColumn({"s2", pairs}, 30, {.tf_compat_cross_order = true})};
  columns.dense = {NumericColumn("pair", {.shape = {2}}),
                   IndicatorColumn(weighted),
                   IndicatorColumn(several),
                   EmbeddingColumn(several, 2, {.initializer = Different()}),
                   EmbeddingColumn(colour, 2, {.initializer = Different(), .max_norm = 0.5}),
                   pairs};
  return columns;
}

// --- Models --------------------------------------------------------------------------------------

using MakeOptimizer = std::function<std::unique_ptr<Optimizer>()>;

struct Result {
  std::vector<Tensor> values;  // of the layers, in each step
  std::map<std::string, Tensor> variables;
  std::map<std::string, int> ops;
  std::map<std::string, std::set<std::string>> devices;  // of ops
};

enum class Ids { kOfEachLayer, kShared };

struct Setting {
  bool behind_product = false;  // the input layer's matrix is multiplied
  bool elsewhere = false;       // TablesElsewhere
  bool on_a_task = false;       // TablesOnATask
  int num_parts = 0;            // of each variable of a layer, at most; 0: whole ones
  int steps = 3;
};

// The number of "<name>/part_<number>", and of its slots; 0 for whole variables.
size_t PartOf(const std::string& name) {
  const size_t part = name.find("/part_");
  return part == std::string::npos ? 0 : static_cast<size_t>(name[part + 6] - '0');
}

// Variables on two other devices, by the length of their names and in turns; the rest on the first.
std::string TablesElsewhere(const tensorflow::NodeDef& node) {
  if (!node.device().empty()) return node.device();
  if (node.op() != "VarHandleOp") return "/cpu:0";
  return (node.name().size() + PartOf(node.name())) % 2 == 0 ? "/cpu:1" : "/cpu:2";
}

// The same on a task, as parameter servers are one; here it is this process.
std::string TablesOnATask(const tensorflow::NodeDef& node) {
  const std::string device = TablesElsewhere(node);
  return node.op() == "VarHandleOp" && node.device().empty()
             ? absl::StrCat("/job:localhost/replica:0/task:0", device)
             : device;
}

StatusOr<Result> Train(ColumnLowering lowering, Ids ids, const Examples& examples,
                       const std::vector<DenseColumn>& dense,
                       const std::vector<FeatureColumn>& wide, const MakeOptimizer& make_optimizer,
                       const Setting& setting) {
  Scope root;
  if (setting.elsewhere) root = Scope().WithDevice(TablesElsewhere);
  if (setting.on_a_task) root = Scope().WithDevice(TablesOnATask);
  const Features features = FeaturesOf(root, examples);
  SharedIds shared;
  if (ids == Ids::kShared) shared = MakeSharedIds(root, features, dense, wide);
  Partitioner partitioner;
  if (setting.num_parts > 0) partitioner = FixedSizePartitioner(setting.num_parts);
  const Output matrix =
      InputLayer(root, features, dense,
                 {.partitioner = partitioner, .lowering = lowering, .shared_ids = shared});
  const Output logits = LinearModel(root, features, wide,
                                    {.units = 2,
                                     .sparse_combiner = Combiner::kMean,
                                     .partitioner = partitioner,
                                     .lowering = lowering,
                                     .shared_ids = shared});
  MR_RETURN_IF_ERROR(root.status());
  // Every number has a gradient of its own, which changes from step to step.
  const auto loss_of = [&](const Output& x, float rate) {
    const Output flat = Reshape(root, x, Const<int32_t>(root, {-1}));
    const Output size =
        Reshape(root, ShapeOf(root, flat), Const(root, Tensor::Vector<int32_t>({})));
    const Output places = Cast(root, Range(root, Const(root, 0), size, Const(root, 1)), DT_FLOAT);
    const Output target = Sin(root, Mul(root, places, Const(root, rate)));
    return ReduceSum(root, Square(root, Sub(root, flat, target)));
  };
  Output deep = matrix;
  if (setting.behind_product) {
    const int64_t width = root.shape(matrix).dim(1);
    std::vector<float> weights;
    for (int64_t i = 0; i < 3 * width; ++i) {
      weights.push_back(std::sin(static_cast<float>(i) * 0.21f));
    }
    deep = MatMul(root, matrix, Const(root, *Tensor::FromValues<float>(Shape{width, 3}, weights)));
  }
  const Output loss = Add(root, loss_of(deep, 0.3f), loss_of(logits, 0.9f));
  const Operation step = make_optimizer()->Minimize(root, loss);
  const Operation variables = GlobalVariablesInitializer(root), tables = TablesInitializer(root);
  MR_RETURN_IF_ERROR(root.status());
  SessionOptions options;
  if (setting.elsewhere || setting.on_a_task) options.config.device_count["CPU"] = 3;
  MR_ASSIGN_OR_RETURN(const auto session, NewSession(options));
  MR_RETURN_IF_ERROR(session->Extend(root));
  MR_RETURN_IF_ERROR(session->Run({}, {}, {variables, tables}).status());
  Result result;
  for (int i = 0; i < setting.steps; ++i) {
    MR_ASSIGN_OR_RETURN(const std::vector<Tensor> out, session->Run({}, {matrix, logits}));
    result.values.insert(result.values.end(), out.begin(), out.end());
    MR_RETURN_IF_ERROR(session->Run({}, {}, {step}).status());
  }
  for (const Variable& variable : VariablesOf(root)) {
    MR_ASSIGN_OR_RETURN(const std::vector<Tensor> value, session->Run({}, {variable.value}));
    result.variables[variable.name] = value[0];
  }
  for (const auto& node : root.graph()->nodes()) {
    if (node == nullptr) continue;
    ++result.ops[node->op()];
    result.devices[node->op()].insert(node->requested_device());
  }
  return result;
}

// `fused_results`: with ids of each layer, and with shared ones.
void ExpectSameModel(const Examples& examples, const std::vector<DenseColumn>& dense,
                     const std::vector<FeatureColumn>& wide, const MakeOptimizer& make_optimizer,
                     std::vector<Result>* fused_results, const Setting& setting = {}) {
  ASSERT_OK_AND_ASSIGN(const Result portable,
                       Train(ColumnLowering::kPortable, Ids::kOfEachLayer, examples, dense, wide,
                             make_optimizer, setting));
  EXPECT_EQ(portable.ops.count("_ColumnIds"), 0u);
  for (const Ids ids : {Ids::kOfEachLayer, Ids::kShared}) {
    SCOPED_TRACE(ids == Ids::kShared ? "shared ids" : "ids of each layer");
    ASSERT_OK_AND_ASSIGN(Result fused, Train(ColumnLowering::kFused, ids, examples, dense, wide,
                                             make_optimizer, setting));
    ASSERT_EQ(fused.values.size(), portable.values.size());
    for (size_t i = 0; i < fused.values.size(); ++i) {
      SCOPED_TRACE(absl::StrCat("value ", i));
      ExpectTensorNear(fused.values[i], portable.values[i], 1e-4, 1e-5);
    }
    ASSERT_EQ(fused.variables.size(), portable.variables.size());
    for (const auto& [name, value] : portable.variables) {
      SCOPED_TRACE(name);
      ASSERT_EQ(fused.variables.count(name), 1u);
      ExpectTensorNear(fused.variables[name], value, 1e-4, 1e-5);
    }
    fused_results->push_back(std::move(fused));
  }
}

const std::vector<std::pair<const char*, MakeOptimizer>>& Optimizers() {
  static const auto* const optimizers = new std::vector<std::pair<const char*, MakeOptimizer>>{
      {"Adagrad",
       [] { return std::make_unique<AdagradOptimizer>(AdagradOptions{.learning_rate = 0.1}); }},
      {"Ftrl",
       [] {
         return std::make_unique<FtrlOptimizer>(
             FtrlOptions{.learning_rate = 0.1, .l1_regularization_strength = 0.01});
       }},
      {"Momentum",
       [] { return std::make_unique<MomentumOptimizer>(MomentumOptions{.learning_rate = 0.01}); }},
      {"Adam", [] { return std::make_unique<AdamOptimizer>(AdamOptions{.learning_rate = 0.01}); }}};
  return *optimizers;
}

template <typename Column>
std::vector<Column> Some(Random* random, const std::vector<Column>& all) {
  std::vector<Column> some;
  while (some.empty()) {
    for (const Column& column : all) {
      if (Draw(random, 2) == 0) some.push_back(column);
    }
  }
  return some;
}

std::vector<FeatureColumn> Wide(const std::vector<CategoricalColumn>& ids,
                                const std::vector<DenseColumn>& dense) {
  std::vector<FeatureColumn> wide(ids.begin(), ids.end());
  for (const DenseColumn& column : dense) {
    // A bucketized column is both, and comes once.
    const bool is_there = std::any_of(ids.begin(), ids.end(), [&](const CategoricalColumn& other) {
      return other.name() == column.name();
    });
    if (!is_there) wide.push_back(column);
  }
  return wide;
}

TEST(FusedColumns, TakeAllOfTheirKindsInOneNodeALayerAndShareIds) {
  Random random(1);
  const Columns columns = AllColumns(true);
  for (const auto& [name, make] : Optimizers()) {
    SCOPED_TRACE(name);
    std::vector<Result> results;
    ExpectSameModel(DrawExamples(&random, 40), columns.dense, Wide(columns.ids, {}), make,
                    &results);
    ASSERT_EQ(results.size(), 2u);
    EXPECT_EQ(results[0].ops["_ColumnIds"], 2);
    EXPECT_EQ(results[1].ops["_ColumnIds"], 1);
    for (Result& fused : results) {
      EXPECT_EQ(fused.ops["_ColumnLayer"], 2);
      EXPECT_EQ(fused.ops["_ColumnLayerGrad"], 2);
      for (const char* op : {"Unique", "UnsortedSegmentSum", "SparseFillEmptyRows", "SparseCross",
                             "HashTableV2", "ResourceGather", "ExpandDims"}) {
        EXPECT_EQ(fused.ops.count(op), 0u) << op;
      }
    }
  }
}

// Rows are looked up, and gradients added up, where the tables are: one node of each kind a layer
// and device, beside the one that puts the input layer together.
TEST(FusedColumns, LookRowsUpWhereTheirTablesAre) {
  Random random(5);
  const Columns columns = AllColumns(true);
  for (const bool behind_product : {false, true}) {
    std::vector<Result> results;
    ExpectSameModel(DrawExamples(&random, 40), columns.dense, Wide(columns.ids, {}),
                    Optimizers()[0].second, &results,
                    {.behind_product = behind_product, .elsewhere = true});
    ASSERT_EQ(results.size(), 2u);
    EXPECT_EQ(results[1].ops["_ColumnIds"], 1);
    for (Result& fused : results) {
      EXPECT_EQ(fused.ops["_ColumnLayer"], 5);
      EXPECT_EQ(fused.ops["_ColumnLayerGrad"], 4);
      EXPECT_EQ(fused.ops.count("ResourceGather"), 0u);
      EXPECT_EQ(fused.devices["_ColumnLayer"],
                (std::set<std::string>{"/cpu:0", "/device:CPU:1", "/device:CPU:2"}));
      EXPECT_EQ(fused.devices["_ColumnLayerGrad"],
                (std::set<std::string>{"/device:CPU:1", "/device:CPU:2"}));
    }
  }
}

// Wide rows of tables on another task cross once for each different id: whole tables and parts.
TEST(FusedColumns, TakeWideRowsOfAnotherTaskOnce) {
  Random random(11);
  const Columns wide = AllColumns(true, 32), narrow = AllColumns(true);
  const std::string task = "/job:localhost/replica:0/task:0/device:CPU:";
  for (const int parts : {0, 3}) {
    for (const bool behind_product : {false, true}) {
      SCOPED_TRACE(absl::StrCat(parts, " parts, ", behind_product));
      std::vector<Result> results;
      ExpectSameModel(DrawExamples(&random, 40), wide.dense, Wide(wide.ids, {}),
                      Optimizers()[0].second, &results,
                      {.behind_product = behind_product, .on_a_task = true, .num_parts = parts});
      ASSERT_EQ(results.size(), 2u);
      for (Result& fused : results) {
        EXPECT_EQ(fused.ops["_ColumnLayer"], 5);
        EXPECT_EQ(fused.ops["_ColumnLayerGrad"], 4);
        EXPECT_EQ(fused.devices["_ColumnLayer"],
                  (std::set<std::string>{"/cpu:0", task + "1", task + "2"}));
        // Of the input layer, next to it, for each of two devices.
        for (const char* op : {"_ColumnUnique", "_ColumnPick", "_ColumnPickGrad"}) {
          EXPECT_EQ(fused.ops[op], 2) << op;
          EXPECT_EQ(fused.devices[op], (std::set<std::string>{"/cpu:0"})) << op;
        }
      }
    }
  }
  // Not within the process, and not rows of few numbers.
  for (const bool on_a_task : {false, true}) {
    std::vector<Result> results;
    ExpectSameModel(DrawExamples(&random, 40), on_a_task ? narrow.dense : wide.dense,
                    Wide(wide.ids, {}), Optimizers()[0].second, &results,
                    {.elsewhere = !on_a_task, .on_a_task = on_a_task});
    for (const Result& fused : results) EXPECT_EQ(fused.ops.count("_ColumnUnique"), 0u);
  }
}

TEST(FusedColumns, TakeRowsOfAnotherTaskForFewExamples) {
  Random random(12);
  const Columns columns = AllColumns(true, 32);
  for (const int examples : {1, 2}) {
    SCOPED_TRACE(examples);
    std::vector<Result> results;
    ExpectSameModel(DrawExamples(&random, examples), columns.dense, Wide(columns.ids, {}),
                    Optimizers()[0].second, &results, {.on_a_task = true, .num_parts = 2});
  }
}

// --- Tables in parts -----------------------------------------------------------------------------

// The variables and slots of a model, those in parts put together: by their names without "/part_".
std::map<std::string, std::vector<float>> WholeVariables(const Result& result) {
  std::map<std::string, std::map<size_t, std::vector<float>>> parts;
  for (const auto& [name, value] : result.variables) {
    std::string whole = name;
    if (const size_t part = name.find("/part_"); part != std::string::npos) whole.erase(part, 7);
    const auto numbers = value.flat<float>();
    parts[whole][PartOf(name)].assign(numbers.begin(), numbers.end());
  }
  std::map<std::string, std::vector<float>> wholes;
  for (const auto& [name, of_name] : parts) {
    std::vector<float>& whole = wholes[name];
    for (const auto& [part, numbers] : of_name) {
      whole.insert(whole.end(), numbers.begin(), numbers.end());
    }
  }
  return wholes;
}

void ExpectSameWholes(const Result& in_parts, const Result& whole) {
  const auto own = WholeVariables(in_parts), wanted = WholeVariables(whole);
  ASSERT_EQ(own.size(), wanted.size());
  for (const auto& [name, numbers] : wanted) {
    SCOPED_TRACE(name);
    const auto found = own.find(name);
    ASSERT_TRUE(found != own.end());
    ASSERT_EQ(found->second.size(), numbers.size());
    for (size_t i = 0; i < numbers.size(); ++i) {
      EXPECT_NEAR(found->second[i], numbers[i], 1e-4 + 1e-5 * std::abs(numbers[i])) << i;
    }
  }
}

constexpr const char* kOpsOfLookUpsInParts[] = {"DynamicPartition", "ParallelDynamicStitch",
                                                "ResourceGather", "Unique"};

// After ten steps of each optimizer; many tables have fewer rows than there are parts, and then one
// part a row.
TEST(FusedColumns, TrainTablesInPartsAsWholeOnes) {
  Random random(7);
  const Columns columns = AllColumns(true);
  auto optimizers = Optimizers();
  optimizers.emplace_back("gradient descent", [] {
    return std::make_unique<GradientDescentOptimizer>(
        GradientDescentOptions{.learning_rate = 0.001});
  });
  const std::vector<FeatureColumn> wide = Wide(columns.ids, {});
  for (const auto& [name, make] : optimizers) {
    SCOPED_TRACE(name);
    const Examples examples = DrawExamples(&random, 40);
    ASSERT_OK_AND_ASSIGN(const Result whole, Train(ColumnLowering::kFused, Ids::kShared, examples,
                                                   columns.dense, wide, make, {.steps = 10}));
    for (const int parts : {1, 2, 3, 7}) {
      SCOPED_TRACE(absl::StrCat(parts, " parts"));
      const Setting setting = {.num_parts = parts, .steps = 10};
      std::vector<Result> results;
      // The portable graph of many parts is large: one number of them stands for the others.
      if (parts == 3) {
        ExpectSameModel(examples, columns.dense, wide, make, &results, setting);
        ASSERT_EQ(results.size(), 2u);
      } else {
        ASSERT_OK_AND_ASSIGN(Result fused, Train(ColumnLowering::kFused, Ids::kShared, examples,
                                                 columns.dense, wide, make, setting));
        results.push_back(std::move(fused));
      }
      for (Result& fused : results) {
        ExpectSameWholes(fused, whole);
        EXPECT_EQ(fused.ops["_ColumnLayer"], 2);
        EXPECT_EQ(fused.ops["_ColumnLayerGrad"], 2);
        for (const char* op : kOpsOfLookUpsInParts) EXPECT_EQ(fused.ops.count(op), 0u) << op;
      }
      if (HasFatalFailure()) return;
    }
  }
}

// Each device gives what its parts have: as many nodes as for whole tables, whatever number of
// parts is there.
TEST(FusedColumns, LookPartsUpWhereTheyAre) {
  Random random(8);
  const Columns columns = AllColumns(true);
  for (const int parts : {2, 3, 7}) {
    for (const bool behind_product : {false, true}) {
      if (behind_product && parts == 7) continue;
      SCOPED_TRACE(absl::StrCat(parts, " parts, ", behind_product));
      std::vector<Result> results;
      ExpectSameModel(DrawExamples(&random, 40), columns.dense, Wide(columns.ids, {}),
                      Optimizers()[0].second, &results,
                      {.behind_product = behind_product, .elsewhere = true, .num_parts = parts});
      ASSERT_EQ(results.size(), 2u);
      for (Result& fused : results) {
        EXPECT_EQ(fused.ops["_ColumnLayer"], 5);
        EXPECT_EQ(fused.ops["_ColumnLayerGrad"], 4);
        for (const char* op : kOpsOfLookUpsInParts) EXPECT_EQ(fused.ops.count(op), 0u) << op;
        EXPECT_EQ(fused.devices["_ColumnLayer"],
                  (std::set<std::string>{"/cpu:0", "/device:CPU:1", "/device:CPU:2"}));
        EXPECT_EQ(fused.devices["_ColumnLayerGrad"],
                  (std::set<std::string>{"/device:CPU:1", "/device:CPU:2"}));
      }
    }
  }
}

// One example: most parts have no row of the batch.
TEST(FusedColumns, MayHavePartsWithoutARowOfTheBatch) {
  Random random(9);
  const Columns columns = AllColumns(true);
  for (const auto& [name, make] : Optimizers()) {
    SCOPED_TRACE(name);
    std::vector<Result> results;
    ExpectSameModel(DrawExamples(&random, 1), columns.dense, Wide(columns.ids, {}), make, &results,
                    {.num_parts = 3});
  }
}

TEST(FusedColumns, TakeTheRowOfAnIdFromTheOnePartThatHasIt) {
  const auto rows = [](const std::vector<int64_t>& ids) -> StatusOr<Tensor> {
    Scope root;
    const Features features = {{"k", Const(root, Tensor::Vector<int64_t>(ids))}};
    const Output matrix = InputLayer(
        root, features,
        {EmbeddingColumn(CategoricalColumnWithIdentity("k", 8), 2, {.initializer = RowNumbers()})},
        {.partitioner = FixedSizePartitioner(3), .lowering = ColumnLowering::kFused});
    MR_ASSIGN_OR_RETURN(const std::vector<Tensor> out, RunColumns(root, {matrix}));
    return out[0];
  };
  // Parts of three, three and two rows: the first and the last of each, and none.
  ASSERT_OK_AND_ASSIGN(const Tensor all, rows({0, 2, 3, 5, 6, 7, -1}));
  ExpectTensorEqual(all, TensorOf<float>({7, 2}, {0, 0, 2, 2, 3, 3, 5, 5, 6, 6, 7, 7, 0, 0}));
  ASSERT_OK_AND_ASSIGN(const Tensor last, rows({7, 6}));
  ExpectTensorEqual(last, TensorOf<float>({2, 2}, {7, 7, 6, 6}));
  EXPECT_STATUS(rows({1, 8}), absl::StatusCode::kInvalidArgument,
                "column 'k': ids must be in [0, 8), got 8");
}

// Of the gradient that comes from a dense layer only the columns of tables are computed.
TEST(FusedColumns, AreTheSameModelBehindADenseLayer) {
  Random random(3);
  const Columns columns = AllColumns(true);
  for (const auto& [name, make] : Optimizers()) {
    SCOPED_TRACE(name);
    std::vector<Result> results;
    ExpectSameModel(DrawExamples(&random, 40), columns.dense, Wide(columns.ids, {}), make, &results,
                    {.behind_product = true});
    for (Result& fused : results) {
      EXPECT_EQ(fused.ops["_ColumnLayerGrad"], 2);
      // Forward, the gradients of both operands, and that of the columns alone.
      EXPECT_EQ(fused.ops["MatMul"], 4);
    }
  }
}

TEST(FusedColumns, LeaveOthersToThePortableLowering) {
  Random random(2);
  const Columns columns = AllColumns(false);
  for (const auto& [name, make] : Optimizers()) {
    SCOPED_TRACE(name);
    std::vector<Result> results;
    ExpectSameModel(DrawExamples(&random, 20), columns.dense, Wide(columns.ids, {}), make,
                    &results);
    for (const Result& fused : results) EXPECT_EQ(fused.ops.count("_ColumnLayer"), 0u);
  }
}

// But that the parts of a table on another task add up several values of an example, or give each
// row once.
TEST(FusedColumns, CombineSeveralValuesInThePartsOfAnotherTask) {
  Random random(6);
  const Columns columns = AllColumns(false);
  for (const auto& [name, make] : Optimizers()) {
    SCOPED_TRACE(name);
    std::vector<Result> results;
    ExpectSameModel(DrawExamples(&random, 20), columns.dense, Wide(columns.ids, {}), make, &results,
                    {.on_a_task = true, .num_parts = 2});
    for (Result& fused : results) {
      EXPECT_GT(fused.ops["_PartLists"], 0);
      EXPECT_EQ(fused.ops["_RowSums"], 2 * fused.ops["_PartLists"]);
      EXPECT_EQ(fused.ops["_RowSumsGrad"], fused.ops["_RowSums"]);
    }
  }
}

TEST(FusedColumns, AreTheSameModelWhateverColumnsThereAre) {
  const Columns taken = AllColumns(true), others = AllColumns(false);
  Columns all = taken;
  all.ids.insert(all.ids.end(), others.ids.begin(), others.ids.end());
  all.dense.insert(all.dense.end(), others.dense.begin(), others.dense.end());
  // The two of a shared table come together.
  all.dense.erase(all.dense.begin() + 7, all.dense.begin() + 9);
  for (unsigned seed = 10; seed < 22; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Random random(seed);
    const auto& [name, make] = Optimizers()[seed % Optimizers().size()];
    const int examples = seed % 4 == 0 ? 1 : 1 + Draw(&random, 60);
    std::vector<Result> results;
    ExpectSameModel(DrawExamples(&random, examples), Some(&random, all.dense),
                    Wide(Some(&random, all.ids), Some(&random, all.dense)), make, &results);
    if (HasFatalFailure()) return;
  }
}

// A column of a layer that was not told of: the layer makes its own ids, of all its columns.
TEST(FusedColumns, MakeTheirOwnWhereSharedIdsLackOne) {
  const auto words = CategoricalColumnWithHashBucket("w", 1000);
  const auto others = CategoricalColumnWithHashBucket("w", 7);  // of the same name
  const auto sums = [&](const std::vector<FeatureColumn>& told) -> StatusOr<Tensor> {
    Scope root;
    const Features features = {{"w", Const(root, Tensor::Of({"a", "", "b"}))}};
    const SharedIds shared = MakeSharedIds(root, features, {}, told);
    const Output matrix = InputLayer(root, features, {IndicatorColumn(others)},
                                     {.lowering = ColumnLowering::kFused, .shared_ids = shared});
    MR_ASSIGN_OR_RETURN(const std::vector<Tensor> out, RunColumns(root, {matrix}));
    return out[0];
  };
  ASSERT_OK_AND_ASSIGN(const Tensor own, sums({words}));
  ASSERT_OK_AND_ASSIGN(const Tensor shared, sums({others}));
  ExpectTensorEqual(own, shared);
}

TEST(FusedColumns, MayHaveNoExamples) {
  Scope root;
  const Features features = {{"x", Const(root, *Tensor::Zeros(DT_STRING, Shape{0}))},
                             {"n", Const(root, *Tensor::Zeros(DT_FLOAT, Shape{0, 1}))}};
  const auto words = CategoricalColumnWithHashBucket("x", 10);
  const BucketizedColumn buckets(NumericColumn("n"), {1});
  const Output deep = InputLayer(root, features,
                                 {EmbeddingColumn(words, 3), IndicatorColumn(words), buckets,
                                  EmbeddingColumn(CrossedColumn({"x", buckets}, 10), 2)},
                                 {.lowering = ColumnLowering::kFused});
  const Output wide =
      LinearModel(root, features, {words, buckets, CrossedColumn({"x", buckets}, 10)},
                  {.lowering = ColumnLowering::kFused});
  EXPECT_EQ(root.shape(deep).ToString(), "[0,17]");
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out, RunColumns(root, {deep, wide}));
  EXPECT_EQ(out[0].shape(), (Shape{0, 17}));
  EXPECT_EQ(out[1].shape(), (Shape{0, 1}));
}

TEST(FusedColumns, PassGradientsToNumbers) {
  Scope root;
  const Output x = Const(root, TensorOf<float>({2, 2}, {1, 2, 3, 4}));
  const Features features = {{"x", x}, {"w", Const(root, Tensor::Of({"a", "b"}))}};
  const Output y = InputLayer(root, features,
                              {NumericColumn("x", {.shape = {2}}),
                               IndicatorColumn(CategoricalColumnWithHashBucket("w", 3))},
                              {.lowering = ColumnLowering::kFused});
  const Output weights = Const(root, TensorOf<float>({2, 5}, {0, 0, 0, 1, 2, 0, 0, 0, 3, 4}));
  ASSERT_OK_AND_ASSIGN(const std::vector<Gradient> gradients,
                       AddGradients(root, {Mul(root, y, weights)}, {x}));
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out,
                       RunColumns(root, {std::get<Output>(gradients[0])}));
  ExpectTensorEqual(out[0], TensorOf<float>({2, 2}, {1, 2, 3, 4}));
}

TEST(FusedColumns, SayWhatIsWrongWithFeatures) {
  const auto words = IndicatorColumn(CategoricalColumnWithHashBucket("w", 3));
  Scope missing;
  InputLayer(missing, Features({{"v", Const(missing, Tensor::Of({"a"}))}}), {words},
             {.lowering = ColumnLowering::kFused});
  EXPECT_STATUS(missing.status(), absl::StatusCode::kInvalidArgument,
                "feature 'w' must be one of those given, 'v'");
  Scope root;
  const Features features = {{"k", Placeholder(root, DT_INT64, {-1})}};
  const Output y =
      InputLayer(root, features, {IndicatorColumn(CategoricalColumnWithIdentity("k", 3))},
                 {.lowering = ColumnLowering::kFused});
  EXPECT_STATUS(RunColumns(root, {y}, {{features["k"], Tensor::Of<int64_t>({0, 3})}}),
                absl::StatusCode::kInvalidArgument, "column 'k': ids must be in [0, 3), got 3");
}

}  // namespace
}  // namespace millrace
