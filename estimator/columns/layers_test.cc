// SPDX-License-Identifier: Apache-2.0
// InputLayer and LinearModel: values, variables, gradients, bad features.
#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/dtype.h"
#include "core/file_system.h"
#include "core/shape.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "estimator/columns/feature_column.h"
#include "estimator/columns/input_layer.h"
#include "estimator/columns/linear_model.h"
#include "estimator/columns/testing/column_values.h"
#include "graph/gradient.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "layers/initializers.h"
#include "layers/partitioner.h"
#include "layers/variable.h"
#include "ops/array/constant.h"
#include "ops/array/placeholder.h"
#include "ops/sparse/sparse_tensor.h"
#include "runtime/session.h"
#include "saver/tensor_bundle.h"

// covers: columns: embeddings and linear models: combiners, weights, empty examples, max_norm,
//   shared tables, a checkpoint's tensor, one to several parts
// covers: columns: tables may be cut into columns; the fused lowering leaves these to the portable
// covers: columns: indicators count, and add up weights

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

using Texts = std::vector<std::vector<std::string>>;
using Ids = std::vector<std::vector<int64_t>>;
using Floats = std::vector<std::vector<float>>;

Initializer Values(const Tensor& value) {
  return [value](ScopeAt at, const InitialShape& part, DType) {
    return Slice(at, Const(at, value), ConstVector<int64_t>(at, part.var_offset),
                 ConstVector<int64_t>(at, part.shape.dims()));
  };
}

// Row i is {i, 10 i}.
Tensor Table() { return Matrix<float>({{0, 0}, {1, 10}, {2, 20}, {3, 30}, {4, 40}}); }

// --- Numbers -------------------------------------------------------------------------------------

TEST(NumericColumns, AreFloatsAsTheyCome) {
  Scope root;
  const Features features = {{"a", Const<int32_t>(root, {1, 2})},
                             {"b", Const(root, Matrix<double>({{0.5, 1}, {2, -4}}))},
                             {"c", Const(root, TensorOf<float>({2, 2, 1}, {1, 2, 3, 4}))},
                             {"ignored", Const(root, Tensor::Of({"x", "y"}))}};
  const InputLayerOutput y = InputLayer(
      root, features,
      {NumericColumn("c", {.shape = {2, 1}}),
       NumericColumn("b", {.shape = {2},
                           .dtype = DT_DOUBLE,
                           .normalizer = [](const Scope& s,
                                            const Output& x) { return Mul(s, x, Const(s, 2.0)); }}),
       NumericColumn("a", {.dtype = DT_INT32})});
  EXPECT_EQ(root.shape(y).ToString(), "[2,5]");
  EXPECT_TRUE(y.variables.empty());
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out, RunColumns(root, {y}));
  ExpectTensorEqual(out[0], Matrix<float>({{1, 1, 2, 1, 2}, {2, 4, -8, 3, 4}}));
}

TEST(NumericColumns, NaNStaysNaN) {
  Scope root;
  const float nan = std::nanf("");
  ASSERT_OK_AND_ASSIGN(
      const Tensor out,
      DenseValues(root, Features({{"x", Const<float>(root, {1, nan})}}), NumericColumn("x")));
  EXPECT_EQ(out.flat<float>()[0], 1);
  EXPECT_TRUE(std::isnan(out.flat<float>()[1]));
}

TEST(NumericColumns, KeepTheBatchOpen) {
  Scope root;
  const Output x = Placeholder(root, DT_FLOAT, {-1}), z = Placeholder(root, DT_FLOAT, {-1, 3});
  const Output y = InputLayer(root, Features({{"x", x}, {"z", z}}),
                              {NumericColumn("x"), NumericColumn("z", {.shape = {3}})});
  EXPECT_EQ(root.shape(y).ToString(), "[?,4]");
}

// --- Indicators ----------------------------------------------------------------------------------

TEST(Indicators, CountIds) {
  Scope root;
  const SparseTensor x = SparseConst(root, Texts{{"a", "b", "a"}, {}, {"z"}, {"c", "z"}});
  ASSERT_OK_AND_ASSIGN(
      const Tensor out,
      DenseValues(root, Features({{"x", x}}),
                  IndicatorColumn(CategoricalColumnWithVocabularyList("x", {"a", "b", "c"}))));
  ExpectTensorEqual(out, Matrix<float>({{2, 1, 0}, {0, 0, 0}, {0, 0, 0}, {0, 0, 1}}));
}

TEST(Indicators, AddUpWeights) {
  const auto column =
      WeightedCategoricalColumn(CategoricalColumnWithVocabularyList("x", {"a", "b", "c"}), "w");
  Scope root;
  const Features features = {
      {"x", SparseConst(root, Texts{{"a", "b", "a"}, {}, {"z"}, {"c", "z"}})},
      {"w", SparseConst(root, Floats{{0.5f, 2, 0.25f}, {}, {7}, {-1, 7}})}};
  ASSERT_OK_AND_ASSIGN(const Tensor out, DenseValues(root, features, IndicatorColumn(column)));
  ExpectTensorEqual(out, Matrix<float>({{0.75f, 2, 0}, {0, 0, 0}, {0, 0, 0}, {0, 0, -1}}));
  // Dense: '' and a weight of 0 are missing together.
  Scope dense;
  const Features both = {{"x", Const(dense, Tensor::Of({{"a", "b"}, {"c", ""}}))},
                         {"w", Const(dense, Matrix<float>({{3, 4}, {5, 0}}))}};
  ASSERT_OK_AND_ASSIGN(const Tensor values, DenseValues(dense, both, IndicatorColumn(column)));
  ExpectTensorEqual(values, Matrix<float>({{3, 4, 0}, {0, 0, 5}}));
}

// --- Embeddings ----------------------------------------------------------------------------------

TEST(Embeddings, CombineTheRowsOfAnExample) {
  const auto column = CategoricalColumnWithVocabularyList("x", {"a", "b", "c", "d", "e"});
  const float r2 = std::sqrt(2.0f);
  const struct {
    Combiner combiner;
    Tensor want;
  } cases[] = {{Combiner::kSum, Matrix<float>({{4, 40}, {0, 0}, {2, 20}, {0, 0}, {4, 40}})},
               {Combiner::kMean, Matrix<float>({{2, 20}, {0, 0}, {2, 20}, {0, 0}, {2, 20}})},
               {Combiner::kSqrtN,
                Matrix<float>({{4 / r2, 40 / r2}, {0, 0}, {2, 20}, {0, 0}, {4 / r2, 40 / r2}})}};
  for (const auto& c : cases) {
    for (const int parts : {0, 1, 2}) {
      Scope root;
      const SparseTensor x =
          SparseConst(root, Texts{{"b", "d"}, {}, {"z", "c"}, {"z"}, {"c", "c"}});
      const InputLayerOutput y = InputLayer(
          root, Features({{"x", x}}),
          {EmbeddingColumn(column, 2, {.combiner = c.combiner, .initializer = Values(Table())})},
          {.partitioner = parts == 0 ? Partitioner() : FixedSizePartitioner(parts)});
      EXPECT_EQ(root.shape(y).ToString(), "[5,2]");
      ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out, RunColumns(root, {y}));
      ExpectTensorNear(out[0], c.want, 1e-6, 0);
    }
  }
}

// Which node looks up rows does not matter: that of the fused lowering takes no columns.
TEST(Embeddings, MayBeCutIntoColumns) {
  const auto column = CategoricalColumnWithIdentity("x", 5);
  for (const ColumnLowering lowering : {ColumnLowering::kPortable, ColumnLowering::kFused}) {
    Scope root;
    const Features features = {{"x", Const<int64_t>(root, {4, 0, 2})}};
    const InputLayerOutput y =
        InputLayer(root, features, {EmbeddingColumn(column, 2, {.initializer = Values(Table())})},
                   {.partitioner = FixedSizePartitioner(2, 1), .lowering = lowering});
    ASSERT_OK(root.status());
    ASSERT_EQ(y.variables[0].parts.size(), 2u);
    EXPECT_EQ(y.variables[0].parts[1].shape.ToString(), "[5,1]");
    // Weights and bias of a linear model have the units as their last dimension.
    const LinearModelOutput linear =
        LinearModel(root, features, {column},
                    {.units = 2, .partitioner = FixedSizePartitioner(2, -1), .lowering = lowering});
    ASSERT_OK(root.status());
    EXPECT_EQ(linear.weights[0].parts[1].name, "linear_model/x/weights/part_1");
    EXPECT_EQ(linear.bias.parts.size(), 2u);
    ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out, RunColumns(root, {y, linear}));
    ExpectTensorEqual(out[0], Matrix<float>({{4, 40}, {0, 0}, {2, 20}}));
    ExpectTensorEqual(out[1], *Tensor::Zeros(DT_FLOAT, Shape{3, 2}));
  }
}

TEST(Embeddings, TakeWeights) {
  const auto column = WeightedCategoricalColumn(CategoricalColumnWithIdentity("x", 5), "w");
  const struct {
    Combiner combiner;
    Tensor want;
  } cases[] = {
      // A weight <= 0 counts in sums alone.
      {Combiner::kSum, Matrix<float>({{7, 70}, {0, 0}, {-2, -20}, {4, 40}})},
      {Combiner::kMean, Matrix<float>({{7.0f / 3, 70.0f / 3}, {0, 0}, {0, 0}, {4, 40}})},
      {Combiner::kSqrtN,
       Matrix<float>({{7 / std::sqrt(5.0f), 70 / std::sqrt(5.0f)}, {0, 0}, {0, 0}, {4, 40}})}};
  for (const auto& c : cases) {
    Scope root;
    const Features features = {{"x", SparseConst(root, Ids{{1, 3}, {}, {2}, {4, 0}})},
                               {"w", SparseConst(root, Floats{{1, 2}, {}, {-1}, {1, 0}})}};
    ASSERT_OK_AND_ASSIGN(
        const Tensor out,
        DenseValues(
            root, features,
            EmbeddingColumn(column, 2, {.combiner = c.combiner, .initializer = Values(Table())})));
    ExpectTensorNear(out, c.want, 1e-6, 0);
  }
  // Weights may be integers.
  Scope root;
  const Features features = {{"x", SparseConst(root, Ids{{1, 3}})},
                             {"w", SparseConst(root, Ids{{1, 3}})}};
  const auto integers =
      WeightedCategoricalColumn(CategoricalColumnWithIdentity("x", 5), "w", DT_INT64);
  ASSERT_OK_AND_ASSIGN(
      const Tensor out,
      DenseValues(root, features, EmbeddingColumn(integers, 2, {.initializer = Values(Table())})));
  ExpectTensorNear(out, Matrix<float>({{2.5f, 25}}), 1e-6, 0);
}

TEST(Embeddings, CutRowsThatAreLongerThanMaxNorm) {
  const Tensor table = Matrix<float>({{3, 4}, {0.3f, 0.4f}, {0, 0}});
  Scope root;
  const SparseTensor x = SparseConst(root, Ids{{0}, {1}, {2}, {0, 1}});
  ASSERT_OK_AND_ASSIGN(const Tensor out,
                       DenseValues(root, Features({{"x", x}}),
                                   EmbeddingColumn(CategoricalColumnWithIdentity("x", 3), 2,
                                                   {.combiner = Combiner::kSum,
                                                    .initializer = Values(table),
                                                    .max_norm = 1.0})));
  ExpectTensorNear(out, Matrix<float>({{0.6f, 0.8f}, {0.3f, 0.4f}, {0, 0}, {0.9f, 1.2f}}), 1e-6, 0);
}

TEST(Embeddings, MayShareATable) {
  const std::vector<DenseColumn> shared = SharedEmbeddingColumns(
      {CategoricalColumnWithIdentity("b", 5), CategoricalColumnWithIdentity("a", 5)}, 2,
      {{.initializer = Values(Table())}});
  Scope root;
  const Features features = {{"a", Const<int64_t>(root, {1, 2})},
                             {"b", Const<int64_t>(root, {3, 4})}};
  const InputLayerOutput y = InputLayer(root, features, shared);
  ASSERT_EQ(y.variables.size(), 1u);
  EXPECT_EQ(y.variables[0].name, "input_layer/a_b_shared_embedding/embedding_weights");
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out, RunColumns(root, {y}));
  ExpectTensorEqual(out[0], Matrix<float>({{1, 10, 3, 30}, {2, 20, 4, 40}}));
}

TEST(Embeddings, BeginTruncatedNormal) {
  Scope root;
  root.SetGraphSeed(1);
  const InputLayerOutput y =
      InputLayer(root, Features({{"x", Const<int64_t>(root, {1})}}),
                 {EmbeddingColumn(CategoricalColumnWithIdentity("x", 2000), 16)});
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out,
                       RunColumns(root, {y.variables[0].parts[0].value}));
  double squares = 0;
  for (const float v : out[0].flat<float>()) {
    EXPECT_LE(std::abs(v), 2 * 0.25f);
    squares += static_cast<double>(v) * static_cast<double>(v);
  }
  // Of the truncated values: 0.8796 / sqrt(dimension).
  EXPECT_NEAR(std::sqrt(squares / 32000), 0.8796 / 4, 0.005);
}

TEST(Embeddings, MayBeginWithATensorOfACheckpoint) {
  const std::string prefix = testing::TempDir() + "/words.ckpt";
  {
    ASSERT_OK_AND_ASSIGN(auto writer, BundleWriter::Open(FileSystem::Posix(), prefix));
    ASSERT_OK(writer->Add("old/table", Table()));
    ASSERT_OK(writer->Finish());
  }
  const auto column = [&](int64_t rows, const char* tensor) {
    return EmbeddingColumn(CategoricalColumnWithIdentity("x", rows), 2,
                           {.ckpt_to_load_from = prefix, .tensor_name_in_ckpt = tensor});
  };
  for (const int parts : {0, 1, 2}) {
    Scope root;
    const Output x = Const<int64_t>(root, {4, 0, 2});
    const Output y =
        InputLayer(root, Features({{"x", x}}), {column(5, "old/table")},
                   {.partitioner = parts == 0 ? Partitioner() : FixedSizePartitioner(parts)});
    ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out, RunColumns(root, {y}));
    ExpectTensorEqual(out[0], Matrix<float>({{4, 40}, {0, 0}, {2, 20}}));
  }
  Scope columns;
  const Output y =
      InputLayer(columns, Features({{"x", Const<int64_t>(columns, {4, 2})}}),
                 {column(5, "old/table")}, {.partitioner = FixedSizePartitioner(2, 1)});
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> rows, RunColumns(columns, {y}));
  ExpectTensorEqual(rows[0], Matrix<float>({{4, 40}, {2, 20}}));
  Scope shape;
  InputLayer(shape, Features({{"x", Const<int64_t>(shape, {1})}}), {column(4, "old/table")});
  EXPECT_STATUS(shape.status(), kInvalid,
                "EmbeddingColumn 'x_embedding': tensor_name_in_ckpt must name a tensor "
                "float[4,2], got 'old/table' of float[5,2] in '");
  Scope name;
  InputLayer(name, Features({{"x", Const<int64_t>(name, {1})}}), {column(5, "table")});
  EXPECT_STATUS(name.status(), absl::StatusCode::kNotFound, "table");
}

// covers: columns: gradients of tables are IndexedSlices of the rows looked up
// No tensor of the table's size is ever made: the gradient is of the rows that were looked up.
TEST(Embeddings, HaveSparseGradients) {
  const auto ids = CategoricalColumnWithIdentity("x", 5);
  for (const bool weighted : {false, true}) {
    for (const Combiner combiner : {Combiner::kSum, Combiner::kMean, Combiner::kSqrtN}) {
      Scope root;
      const Features features = {{"x", SparseConst(root, Ids{{1, 3}, {}, {3}})},
                                 {"w", SparseConst(root, Floats{{1, 3}, {}, {2}})}};
      const CategoricalColumn column = weighted ? WeightedCategoricalColumn(ids, "w") : ids;
      const InputLayerOutput y = InputLayer(
          root, features,
          {EmbeddingColumn(column, 2, {.combiner = combiner, .initializer = Values(Table())})});
      const Output loss =
          ReduceSum(root, Mul(root, y, Const(root, Matrix<float>({{1, 2}, {5, 5}, {3, 4}}))));
      ASSERT_OK_AND_ASSIGN(const std::vector<Gradient> gradients,
                           AddGradients(root, {loss}, {y.variables[0].parts[0].handle}));
      const auto* slices = std::get_if<IndexedSlices>(&gradients[0]);
      ASSERT_NE(slices, nullptr);
      ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out,
                           RunColumns(root, {slices->indices, slices->values}));
      // By hand: the weights of rows 1 and 3 of the first example, 3 of the third.
      double first = 1, second = 1, third = 1;
      if (weighted) first = 1, second = 3, third = 2;
      double divisor = 1, own = 1;
      if (combiner == Combiner::kMean) divisor = first + second, own = third;
      if (combiner == Combiner::kSqrtN) {
        divisor = std::sqrt(first * first + second * second), own = third;
      }
      Tensor dense = *Tensor::Zeros(DT_FLOAT, Shape{5, 2});
      const auto into = dense.mutable_flat<float>();
      for (int64_t i = 0; i < out[0].num_elements(); ++i) {
        const int64_t row = out[0].dtype() == DT_INT64
                                ? out[0].flat<int64_t>()[static_cast<size_t>(i)]
                                : out[0].flat<int32_t>()[static_cast<size_t>(i)];
        for (int64_t j = 0; j < 2; ++j) {
          into[static_cast<size_t>(row * 2 + j)] +=
              out[1].flat<float>()[static_cast<size_t>(i * 2 + j)];
        }
      }
      const auto f = [](double x) { return static_cast<float>(x); };
      ExpectTensorNear(dense,
                       Matrix<float>({{0, 0},
                                      {f(first / divisor), f(2 * first / divisor)},
                                      {0, 0},
                                      {f(second / divisor + 3 * third / own),
                                       f(2 * second / divisor + 4 * third / own)},
                                      {0, 0}}),
                       1e-5, 1e-6);
      // Only rows that were asked for (and row 0, which stands in for the empty example, with 0).
      EXPECT_LE(out[0].num_elements(), 3);
    }
  }
}

// --- The layer -----------------------------------------------------------------------------------

TEST(InputLayer, StandsInTheOrderOfNamesUnderAbsoluteNames) {
  const auto job = CategoricalColumnWithIdentity("job", 5);
  Scope root;
  const Features features = {{"job", Const<int64_t>(root, {1})}, {"age", Const<float>(root, {7})}};
  const InputLayerOutput y = InputLayer(
      root.WithSubScope("dnn").WithSubScope("input_from_feature_columns"), features,
      {EmbeddingColumn(job, 2, {.initializer = Values(Table())}), NumericColumn("age")},
      {.partitioner =
           MinMaxVariablePartitioner({.max_partitions = 3, .min_slice_size = int64_t{64} << 20})});
  ASSERT_OK(root.status());
  EXPECT_EQ(y.variables[0].name,
            "dnn/input_from_feature_columns/input_layer/job_embedding/embedding_weights");
  EXPECT_EQ(y.variables[0].parts[0].name,
            "dnn/input_from_feature_columns/input_layer/job_embedding/embedding_weights/part_0");
  EXPECT_EQ(y.node()->name(), "dnn/input_from_feature_columns/input_layer/concat");
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out, RunColumns(root, {y}));
  ExpectTensorEqual(out[0], Matrix<float>({{7, 1, 10}}));

  Scope named;
  const InputLayerOutput z = InputLayer(named.WithSubScope("x").WithName("z"),
                                        Features({{"job", Const<int64_t>(named, {1})}}),
                                        {EmbeddingColumn(job, 2)}, {.variable_scope = "elsewhere"});
  EXPECT_EQ(z.variables[0].name, "elsewhere/job_embedding/embedding_weights");
  EXPECT_EQ(z.node()->name(), "x/z/concat");
  // Of one scope there is one.
  InputLayer(named, Features({{"job", Const<int64_t>(named, {1})}}), {EmbeddingColumn(job, 2)},
             {.variable_scope = "elsewhere"});
  EXPECT_STATUS(named.status(), absl::StatusCode::kAlreadyExists,
                "Variable 'elsewhere/job_embedding/embedding_weights' must not exist");
}

// covers: columns: features that do not fit, that are missing, of another number of examples
TEST(InputLayer, RefusesFeaturesThatDoNotFit) {
  const auto words = CategoricalColumnWithHashBucket("x", 10);
  const auto weighted = WeightedCategoricalColumn(words, "w");
  using MakeFeatures = std::function<Features(const Scope&)>;
  const auto floats = [](const Scope& s) { return Features({{"x", Const<float>(s, {1, 2})}}); };
  const auto texts = [](const Scope& s) { return Features({{"x", Const(s, Tensor::Of({"a"}))}}); };
  const auto ints = [](const Scope& s) { return Features({{"x", Const<int64_t>(s, {1})}}); };
  const auto sparse = [](const Scope& s) { return Features({{"x", SparseConst(s, Floats{{1}})}}); };
  const struct {
    MakeFeatures features;
    DenseColumn column;
    std::string message;
  } cases[] = {
      {floats, NumericColumn("age"),
       "column 'age': feature 'age' must be one of those given, 'x'; column made at "},
      {[](const Scope&) {
         return Features({{"x", Output()}});
       },
       NumericColumn("x"), "column 'x': feature 'x' must be a tensor, got an invalid Output"},
      {[](const Scope& s) {
         return Features({{"x", Const(s, 1.0f)}});
       },
       NumericColumn("x"), "feature 'x' must have rank >= 1, got shape []"},
      {floats, NumericColumn("x", {.shape = {3}}),
       "feature 'x' must have 3 values per example, got shape [2,1]"},
      {[](const Scope& s) {
         return Features({{"x", Placeholder(s, DT_FLOAT, {-1, 2})}});
       },
       NumericColumn("x"), "feature 'x' must have 1 value per example, got shape [?,2]"},
      {texts, NumericColumn("x"), "feature 'x' must be a number, got string"},
      {sparse, NumericColumn("x"), "feature 'x' must be dense, got a sparse one"},
      {floats,
       NumericColumn("x", {.normalizer = [](const Scope&, const Output&) { return Output(); }}),
       "the normalizer must give a tensor"},
      {floats, IndicatorColumn(words), "feature 'x' must be string or an integer, got float"},
      {ints, IndicatorColumn(words),
       "feature 'x' must be string as the column's dtype is, got int64"},
      {texts, IndicatorColumn(CategoricalColumnWithIdentity("x", 3)),
       "feature 'x' must be an integer as the column's dtype is, got string"},
      {texts, IndicatorColumn(CategoricalColumnWithVocabularyList("x", {1, 2})),
       "feature 'x' must be an integer as the column's dtype is, got string"},
      {texts, IndicatorColumn(CrossedColumn({"x", "y"}, 3)),
       "column 'x_X_y': feature 'y' must be one of those given, 'x'"},
      {texts, IndicatorColumn(weighted), "feature 'w' must be one of those given"},
      {[](const Scope& s) {
         return Features({{"x", Const(s, Tensor::Of({"a"}))}, {"w", Const<int64_t>(s, {1})}});
       },
       IndicatorColumn(weighted), "column 'x_weighted_by_w': weights 'w' must be float, got int64"},
  };
  for (const auto& c : cases) {
    Scope root;
    InputLayer(root, c.features(root), {c.column});
    EXPECT_STATUS(root.status(), kInvalid, c.message);
    EXPECT_STATUS(root.status(), kInvalid, "; built at estimator/columns/layers_test.cc:");
  }
  Scope root;
  InputLayer(root,
             Features({{"a", Const<float>(root, {1, 2})}, {"b", Const<float>(root, {1, 2, 3})}}),
             {NumericColumn("a"), NumericColumn("b")});
  EXPECT_STATUS(root.status(), kInvalid,
                "column 'b': features must have as many examples, got 3 here and 2 of column 'a'");
}

// --- The linear model ----------------------------------------------------------------------------

TEST(LinearModel, AddsUpWeightsAndABias) {
  const auto words = CategoricalColumnWithIdentity("words", 5);
  const BucketizedColumn ages(NumericColumn("age"), {18, 25});
  Scope root;
  const Features features = {{"words", SparseConst(root, Ids{{1, 3}, {}, {4}})},
                             {"age", Const<float>(root, {17, 20, 30})},
                             {"x", Const(root, Matrix<float>({{1, 2}, {3, 4}, {5, 6}}))}};
  const LinearModelOutput y =
      LinearModel(root, features, {words, ages, NumericColumn("x", {.shape = {2}})}, {.units = 2});
  EXPECT_EQ(root.shape(y).ToString(), "[3,2]");
  ASSERT_EQ(y.weights.size(), 3u);
  EXPECT_EQ(y.weights[0].name, "linear_model/age_bucketized/weights");
  EXPECT_EQ(y.weights[1].name, "linear_model/words/weights");
  EXPECT_EQ(y.weights[2].name, "linear_model/x/weights");
  EXPECT_EQ(y.bias.name, "linear_model/bias_weights");
  EXPECT_EQ(y.variables.size(), 4u);
  EXPECT_EQ(y.node()->name(), "linear_model/weighted_sum");

  const Operation init = GlobalVariablesInitializer(root);
  const auto assign = [&](const PartitionedVariable& variable, const Tensor& value) {
    return AssignVariableOp(root, variable.parts[0].handle, Const(root, value));
  };
  const std::vector<Operation> sets = {
      assign(y.weights[0], Matrix<float>({{100, 0}, {200, 0}, {300, 0}})),
      assign(y.weights[1], Table()), assign(y.weights[2], Matrix<float>({{1000, 0}, {0, 1}})),
      assign(y.bias, Tensor::Of<float>({0.5f, -0.5f}))};
  ASSERT_OK(root.status());
  ASSERT_OK_AND_ASSIGN(const auto session, NewSession());
  ASSERT_OK(session->Extend(root));
  ASSERT_OK(session->Run({}, {}, {init}).status());
  ASSERT_OK_AND_ASSIGN(std::vector<Tensor> out, session->Run({}, {y}));
  ExpectTensorEqual(out[0], *Tensor::Zeros(DT_FLOAT, Shape{3, 2}));
  ASSERT_OK(session->Run({}, {}, {sets.begin(), sets.end()}).status());
  ASSERT_OK_AND_ASSIGN(out, session->Run({}, {y}));
  ExpectTensorNear(out[0], Matrix<float>({{1104.5f, 41.5f}, {3200.5f, 3.5f}, {5304.5f, 45.5f}}),
                   1e-6, 0);
}

TEST(LinearModel, CombinesIdsAsItIsTold) {
  const auto words = CategoricalColumnWithIdentity("words", 5);
  const auto weighted = WeightedCategoricalColumn(words, "w");
  const float r2 = std::sqrt(2.0f);
  const struct {
    Combiner combiner;
    std::vector<float> plain, weights;
  } cases[] = {{Combiner::kSum, {4, 0, 4}, {1 - 3 * 2, 0, 12}},
               {Combiner::kMean, {2, 0, 4}, {1, 0, 4}},
               {Combiner::kSqrtN, {4 / r2, 0, 4}, {1, 0, 4}}};
  for (const auto& c : cases) {
    Scope root;
    const Features features = {{"words", SparseConst(root, Ids{{1, 3}, {}, {4}})},
                               {"w", SparseConst(root, Floats{{1, -2}, {}, {3}})}};
    const LinearModelOutput plain =
        LinearModel(root.WithName("plain"), features, {words}, {.sparse_combiner = c.combiner});
    const LinearModelOutput weights = LinearModel(root.WithName("weights"), features, {weighted},
                                                  {.sparse_combiner = c.combiner});
    const Tensor rows = Matrix<float>({{0}, {1}, {2}, {3}, {4}});
    const Operation one =
        AssignVariableOp(root, plain.weights[0].parts[0].handle, Const(root, rows));
    const Operation two =
        AssignVariableOp(root, weights.weights[0].parts[0].handle, Const(root, rows));
    const Operation init = GlobalVariablesInitializer(root);
    ASSERT_OK(root.status());
    ASSERT_OK_AND_ASSIGN(const auto session, NewSession());
    ASSERT_OK(session->Extend(root));
    ASSERT_OK(session->Run({}, {}, {init}).status());
    ASSERT_OK(session->Run({}, {}, {one, two}).status());
    ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out, session->Run({}, {plain, weights}));
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_NEAR(out[0].flat<float>()[i], c.plain[i], 1e-6) << i;
      EXPECT_NEAR(out[1].flat<float>()[i], c.weights[i], 1e-6) << i;
    }
  }
}

TEST(LinearModel, TakesDenseColumnsOfIds) {
  const auto words = CategoricalColumnWithIdentity("words", 5);
  Scope root;
  const Features features = {{"words", SparseConst(root, Ids{{1, 3}, {}})}};
  const LinearModelOutput y = LinearModel(
      root, features,
      {EmbeddingColumn(words, 2, {.initializer = Values(Table())}), IndicatorColumn(words)});
  ASSERT_OK(root.status());
  EXPECT_EQ(y.variables.size(), 4u);
  EXPECT_EQ(y.variables[0].name, "linear_model/words_embedding/embedding_weights");
  EXPECT_EQ(y.weights[0].name, "linear_model/words_embedding/weights");
  EXPECT_EQ(y.weights[1].name, "linear_model/words_indicator/weights");
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out, RunColumns(root, {y}));
  ExpectTensorEqual(out[0], Matrix<float>({{0}, {0}}));
}

TEST(LinearModel, HasSparseGradients) {
  const auto words = CategoricalColumnWithIdentity("words", 5);
  Scope root;
  const Features features = {{"words", SparseConst(root, Ids{{1, 3}, {}, {3}})}};
  const LinearModelOutput y = LinearModel(root, features, {words});
  const Output loss = ReduceSum(root, Mul(root, y, Const(root, Matrix<float>({{1}, {10}, {100}}))));
  ASSERT_OK_AND_ASSIGN(
      const std::vector<Gradient> gradients,
      AddGradients(root, {loss}, {y.weights[0].parts[0].handle, y.bias.parts[0].handle}));
  ASSERT_NE(std::get_if<IndexedSlices>(&gradients[0]), nullptr);
  const Output dense = DenseGradient(root, gradients[0]), bias = DenseGradient(root, gradients[1]);
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out, RunColumns(root, {dense, bias}));
  ExpectTensorEqual(out[0], Matrix<float>({{0}, {1}, {0}, {101}, {0}}));
  ExpectTensorEqual(out[1], Tensor::Of<float>({111}));
}

}  // namespace
}  // namespace millrace
