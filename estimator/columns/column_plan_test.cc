// SPDX-License-Identifier: Apache-2.0
#include "estimator/columns/column_plan.h"

#include <string>
#include <vector>

#include "core/testing/tensor_testing.h"
#include "estimator/columns/column_variables.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "layers/variable.h"

// covers: columns: columns have TensorFlow's names; bad arguments are named, with the line that
//   made the column
// covers: columns: layers sort by name, lay columns out side by side, refuse two of one name, share
//   what they both use
// covers: columns: variables are named absolutely, in parts with slices, in the order of names,
//   never twice

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
using Kind = ConsumerPlan::Kind;

AskedLayer Input(std::vector<FeatureColumn> columns) {
  return {.kind = LayerPlan::Kind::kInput, .columns = std::move(columns)};
}
AskedLayer LinearOf(std::vector<FeatureColumn> columns, int64_t units = 1) {
  return {.kind = LayerPlan::Kind::kLinear, .columns = std::move(columns), .units = units};
}
AskedLayer SequenceOf(std::vector<FeatureColumn> columns) {
  return {.kind = LayerPlan::Kind::kSequence, .columns = std::move(columns)};
}

std::vector<std::string> TableNames(const LayerPlan& layer) {
  std::vector<std::string> names;
  for (const TablePlan& table : layer.tables) names.push_back(table.name + table.shape.ToString());
  return names;
}

TEST(ColumnPlan, SortsColumnsByNameAndPlacesThemBesideEachOther) {
  const auto gender = CategoricalColumnWithVocabularyList("gender", {"F", "M"});
  ASSERT_OK_AND_ASSIGN(
      const ColumnPlan plan,
      MakeColumnPlan({Input({NumericColumn("hours", {.shape = {2, 2}}),
                             EmbeddingColumn(CategoricalColumnWithHashBucket("Job", 100), 8),
                             IndicatorColumn(gender), NumericColumn("age"),
                             BucketizedColumn(NumericColumn("age"), {18, 25})})}));
  const LayerPlan& layer = plan.layers[0];
  ASSERT_EQ(layer.consumers.size(), 5u);
  const struct {
    const char* name;
    Kind kind;
    int64_t offset, width;
  } want[] = {{"Job_embedding", Kind::kEmbedding, 0, 8},
              {"age", Kind::kNumeric, 8, 1},
              {"age_bucketized", Kind::kBuckets, 9, 3},
              {"gender_indicator", Kind::kIndicator, 12, 2},
              {"hours", Kind::kNumeric, 14, 4}};
  for (size_t i = 0; i < 5; ++i) {
    const ConsumerPlan& consumer = layer.consumers[i];
    EXPECT_EQ(consumer.column->name, want[i].name);
    EXPECT_EQ(consumer.kind, want[i].kind) << want[i].name;
    EXPECT_EQ(consumer.offset, want[i].offset) << want[i].name;
    EXPECT_EQ(consumer.width, want[i].width) << want[i].name;
  }
  EXPECT_EQ(layer.width, 18);
  EXPECT_EQ(TableNames(layer), std::vector<std::string>{"Job_embedding/embedding_weights[100,8]"});
  // "age" is read once, by two numeric columns that are the same.
  EXPECT_EQ(plan.sources.size(), 4u);
  EXPECT_EQ(plan.numerics.size(), 2u);
}

TEST(ColumnPlan, LayersShareWhatTheyBothUse) {
  const NumericColumn age("age");
  const BucketizedColumn ages(age, {18, 25});
  const auto job = CategoricalColumnWithHashBucket("job", 100);
  const auto cross = CrossedColumn({"education", ages, "job"}, 1000);
  ASSERT_OK_AND_ASSIGN(
      const ColumnPlan plan,
      MakeColumnPlan({Input({age, EmbeddingColumn(job, 8)}),
                      LinearOf({CategoricalColumnWithHashBucket("job", 100), ages, cross}, 3)}));
  ASSERT_EQ(plan.sources.size(), 3u);  // age, job, education
  EXPECT_EQ(plan.numerics.size(), 1u);
  ASSERT_EQ(plan.ids.size(), 3u);  // job, ages, cross
  EXPECT_EQ(plan.layers[0].consumers[1].ids, 0);
  const LayerPlan& linear = plan.layers[1];
  EXPECT_EQ(linear.consumers[2].column->name, "job");
  EXPECT_EQ(linear.consumers[2].ids, 0);
  EXPECT_EQ(linear.consumers[0].column->name, "age_bucketized");
  EXPECT_EQ(linear.consumers[0].ids, 1);
  ASSERT_EQ(plan.ids[2].leaves.size(), 3u);
  EXPECT_EQ(plan.sources[static_cast<size_t>(plan.ids[2].leaves[0].source)].key, "education");
  EXPECT_EQ(plan.ids[2].leaves[1].ids, 1);
  EXPECT_EQ(plan.ids[2].leaves[2].source, plan.ids[0].source);
  EXPECT_EQ(TableNames(linear),
            (std::vector<std::string>{"age_bucketized/weights[3,3]",
                                      "age_bucketized_X_education_X_job/weights[1000,3]",
                                      "job/weights[100,3]", "bias_weights[3]"}));
}

TEST(ColumnPlan, ColumnsOfOneNameThatDifferAreApart) {
  ASSERT_OK_AND_ASSIGN(
      const ColumnPlan plan,
      MakeColumnPlan({Input({IndicatorColumn(CategoricalColumnWithIdentity("x", 4))}),
                      LinearOf({CategoricalColumnWithIdentity("x", 5)})}));
  EXPECT_EQ(plan.sources.size(), 1u);
  EXPECT_EQ(plan.ids.size(), 2u);
}

TEST(ColumnPlan, WeightsBelongToWhoUsesTheIds) {
  const auto words = CategoricalColumnWithHashBucket("words", 10);
  const auto weighted = WeightedCategoricalColumn(words, "w");
  ASSERT_OK_AND_ASSIGN(
      const ColumnPlan plan,
      MakeColumnPlan({Input({EmbeddingColumn(weighted, 2), EmbeddingColumn(words, 2)})}));
  EXPECT_EQ(plan.ids.size(), 1u);
  const std::vector<ConsumerPlan>& consumers = plan.layers[0].consumers;
  EXPECT_EQ(consumers[0].id_weights, -1);
  EXPECT_EQ(plan.sources[static_cast<size_t>(consumers[1].id_weights)].key, "w");
}

TEST(ColumnPlan, ALinearModelHasWeightsForDenseColumns) {
  const auto words = CategoricalColumnWithHashBucket("words", 10);
  ASSERT_OK_AND_ASSIGN(
      const ColumnPlan plan,
      MakeColumnPlan({LinearOf({NumericColumn("x", {.shape = {3}}), EmbeddingColumn(words, 4)})}));
  EXPECT_EQ(TableNames(plan.layers[0]),
            (std::vector<std::string>{"words_embedding/embedding_weights[10,4]",
                                      "words_embedding/weights[4,1]", "x/weights[3,1]",
                                      "bias_weights[1]"}));
}

TEST(ColumnPlan, SharedTablesAreThereOnce) {
  const std::vector<DenseColumn> shared = SharedEmbeddingColumns(
      {CategoricalColumnWithIdentity("b", 10), CategoricalColumnWithIdentity("a", 10)}, 4);
  ASSERT_OK_AND_ASSIGN(const ColumnPlan plan, MakeColumnPlan({Input({shared[0], shared[1]})}));
  EXPECT_EQ(TableNames(plan.layers[0]),
            std::vector<std::string>{"a_b_shared_embedding/embedding_weights[10,4]"});
  EXPECT_EQ(plan.layers[0].consumers[0].table, 0);
  EXPECT_EQ(plan.layers[0].consumers[1].table, 0);
}

TEST(ColumnPlan, RefusesWhatMakesNoLayer) {
  const NumericColumn age("age");
  const auto ids = CategoricalColumnWithIdentity("i", 10);
  const auto other = CategoricalColumnWithIdentity("j", 11);
  const SequenceColumn steps = EmbeddingColumn(SequenceCategoricalColumnWithIdentity("s", 5), 2);
  const struct {
    AskedLayer layer;
    std::string message;
  } cases[] = {
      {Input({}), "InputLayer: columns must be one or more, got none"},
      {Input({FeatureColumn()}), "InputLayer: FeatureColumn: the column must be one, got none"},
      {Input({NumericColumn("x", {.shape = {0}})}),
       "InputLayer: NumericColumn 'x': shape must have dimensions >= 1, got [0]; column made at "},
      {Input({age, NumericColumn("age")}),
       "InputLayer: columns must have different names, got 'age' twice (the first made at "},
      {Input({ids}),
       "InputLayer: columns must be dense columns, got 'i'; IndicatorColumn and "
       "EmbeddingColumn make dense ones"},
      {Input({steps}), "got 's_embedding'; SequenceInputLayer takes sequence columns"},
      {LinearOf({steps}), "LinearModel: columns must be dense or categorical columns"},
      {SequenceOf({age}), "SequenceInputLayer: columns must be sequence columns, got 'age'"},
      {LinearOf({age}, 0), "LinearModel: units must be >= 1, got 0"},
      {LinearOf({CategoricalColumnWithHashBucket("x", int64_t{1} << 40)}, 2),
       "LinearModel: table 'x/weights'"},
      {Input({IndicatorColumn(CategoricalColumnWithHashBucket("x", int64_t{1} << 31))}),
       "a dense column must be at most 2147483647 numbers wide, got 2147483648 of 'x_indicator'"},
      {Input({IndicatorColumn(CategoricalColumnWithHashBucket("x", int64_t{1} << 30)),
              IndicatorColumn(CategoricalColumnWithHashBucket("y", int64_t{1} << 30))}),
       "the columns must be at most 2147483647 numbers wide together, got 2147483648 with "
       "'y_indicator'"},
      {Input({NumericColumn("my age")}),
       "a column's name must be of letters, digits and any of _.-/\\, got 'my age'; column made "
       "at"},
      {Input({NumericColumn("_age")}), "got '_age'"},
      {Input({SharedEmbeddingColumns({ids}, 2, {{}, "a b"})[0]}), "shared_name must be of letters"},
      {Input({SharedEmbeddingColumns({ids}, 2, {{}, "t"})[0],
              SharedEmbeddingColumns({other}, 2, {{}, "t"})[0]}),
       "shared table 't/embedding_weights' must have one shape, got [10,2] in "
       "'i_shared_embedding' and [11,2]"},
      {Input({EmbeddingColumn(ids, 2), SharedEmbeddingColumns({other}, 2, {{}, "i_embedding"})[0]}),
       "table 'i_embedding/embedding_weights' must be of one column"},
  };
  for (const auto& c : cases) {
    EXPECT_STATUS(MakeColumnPlan({c.layer}).status(), kInvalid, c.message);
  }
}

// --- Variables -----------------------------------------------------------------------------------

TEST(ColumnVariables, HaveAbsoluteNamesAndTheirPartsSlices) {
  const auto job = CategoricalColumnWithHashBucket("job", 5);
  ASSERT_OK_AND_ASSIGN(const ColumnPlan plan,
                       MakeColumnPlan({LinearOf({NumericColumn("age"), job})}));
  Scope root;
  const Scope somewhere = root.WithSubScope("a").WithSubScope("b");
  const std::vector<PartitionedVariable> made = MakeColumnVariables(
      somewhere, plan.layers[0],
      {.variable_scope = "linear/linear_model", .partitioner = FixedSizePartitioner(2)});
  ASSERT_OK(root.status());
  ASSERT_EQ(made.size(), 3u);
  EXPECT_EQ(made[0].name, "linear/linear_model/age/weights");
  EXPECT_EQ(made[0].parts.size(), 1u);
  EXPECT_EQ(made[0].parts[0].name, "linear/linear_model/age/weights/part_0");
  EXPECT_EQ(made[0].parts[0].slice.full_name, "linear/linear_model/age/weights");
  ASSERT_EQ(made[1].parts.size(), 2u);
  EXPECT_EQ(made[1].parts[1].name, "linear/linear_model/job/weights/part_1");
  EXPECT_EQ(made[1].parts[1].slice.var_offset, (std::vector<int64_t>{3, 0}));
  EXPECT_EQ(made[2].name, "linear/linear_model/bias_weights");
  // In the order of creation.
  const std::vector<Variable> all = VariablesOf(root);
  ASSERT_EQ(all.size(), 4u);
  EXPECT_EQ(all[1].name, "linear/linear_model/job/weights/part_0");
  EXPECT_EQ(VariablesOf(root, "trainable_variables").size(), 4u);
}

TEST(ColumnVariables, AreNotMadeTwice) {
  ASSERT_OK_AND_ASSIGN(const ColumnPlan plan, MakeColumnPlan({LinearOf({NumericColumn("age")})}));
  for (const Partitioner& partitioner : {Partitioner(), FixedSizePartitioner(1)}) {
    Scope root;
    const ColumnVariablesOptions options = {.variable_scope = "m", .partitioner = partitioner};
    EXPECT_EQ(MakeColumnVariables(root, plan.layers[0], options).size(), 2u);
    EXPECT_TRUE(MakeColumnVariables(root, plan.layers[0], options).empty());
    EXPECT_STATUS(root.status(), absl::StatusCode::kAlreadyExists,
                  "Variable 'm/age/weights' must not exist before its column makes it");
  }
}

TEST(ColumnVariables, AreTrainedUnlessTheColumnOrTheLayerSaysNo) {
  const auto job = CategoricalColumnWithHashBucket("job", 5);
  ASSERT_OK_AND_ASSIGN(const ColumnPlan plan,
                       MakeColumnPlan({LinearOf({EmbeddingColumn(job, 2, {.trainable = false})})}));
  Scope root;
  MakeColumnVariables(root, plan.layers[0], {.variable_scope = "m"});
  EXPECT_EQ(VariablesOf(root).size(), 3u);
  EXPECT_EQ(VariablesOf(root, "trainable_variables").size(), 2u);
  Scope frozen;
  MakeColumnVariables(frozen, plan.layers[0], {.variable_scope = "m", .trainable = false});
  EXPECT_EQ(VariablesOf(frozen, "trainable_variables").size(), 0u);
}

TEST(ColumnVariables, ACheckpointThatIsNotThereIsNamed) {
  const auto job = CategoricalColumnWithHashBucket("job", 5);
  ASSERT_OK_AND_ASSIGN(
      const ColumnPlan plan,
      MakeColumnPlan({Input({EmbeddingColumn(
          job, 2, {.ckpt_to_load_from = "/none/model.ckpt", .tensor_name_in_ckpt = "w"})})}));
  Scope root;
  EXPECT_TRUE(MakeColumnVariables(root, plan.layers[0], {.variable_scope = "m"}).empty());
  EXPECT_STATUS(root.status(), absl::StatusCode::kNotFound, "EmbeddingColumn 'job_embedding': ");
}

}  // namespace
}  // namespace millrace
