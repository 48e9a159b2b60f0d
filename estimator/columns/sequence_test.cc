// SPDX-License-Identifier: Apache-2.0
// SequenceInputLayer: values, lengths, bad features.
#include <string>
#include <vector>

#include "core/shape.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "estimator/columns/feature_column.h"
#include "estimator/columns/sequence_input_layer.h"
#include "estimator/columns/testing/column_values.h"
#include "estimator/model_tensors.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "ops/array/constant.h"
#include "ops/sparse/sparse_tensor.h"

// covers: columns: sequences: steps, lengths, numbers of several elements a step

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

using Ids = std::vector<std::vector<int64_t>>;
using Floats = std::vector<std::vector<float>>;

TEST(SequenceInputLayer, HasARowForEachStep) {
  Scope root;
  const Features features = {{"clicks", SparseConst(root, Ids{{2, 0}, {1}, {}})},
                             {"price", SparseConst(root, Floats{{10, 20}, {30}, {}})}};
  const auto clicks = SequenceCategoricalColumnWithIdentity("clicks", 3);
  const SequenceInputOutput y = SequenceInputLayer(
      root, features,
      {SequenceNumericColumn("price"), EmbeddingColumn(clicks, 1, {.initializer = RowNumbers()}),
       IndicatorColumn(clicks)});
  ASSERT_OK(root.status());
  EXPECT_EQ(root.shape(y).ToString(), "[3,2,5]");
  ASSERT_EQ(y.variables.size(), 1u);
  EXPECT_EQ(y.variables[0].name, "sequence_input_layer/clicks_embedding/embedding_weights");
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out, RunColumns(root, {y, y.sequence_length}));
  ExpectTensorEqual(out[0], Tensor::Of<float>({{{2, 0, 0, 1, 10}, {0, 1, 0, 0, 20}},
                                               {{1, 0, 1, 0, 30}, {0, 0, 0, 0, 0}},
                                               {{0, 0, 0, 0, 0}, {0, 0, 0, 0, 0}}}));
  ExpectTensorEqual(out[1], Tensor::Of<int64_t>({2, 1, 0}));
}

TEST(SequenceInputLayer, WordsOutsideOfAVocabularyAreSteps) {
  Scope root;
  const SparseTensor words =
      SparseConst(root, std::vector<std::vector<std::string>>{{"z"}, {"b", "z", "a"}});
  const SequenceInputOutput y = SequenceInputLayer(
      root, Features({{"w", words}}),
      {IndicatorColumn(SequenceCategoricalColumnWithVocabularyList("w", {"a", "b"}))});
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out, RunColumns(root, {y, y.sequence_length}));
  ExpectTensorEqual(out[0],
                    Tensor::Of<float>({{{0, 0}, {0, 0}, {0, 0}}, {{0, 1}, {0, 0}, {1, 0}}}));
  ExpectTensorEqual(out[1], Tensor::Of<int64_t>({1, 3}));
}

TEST(SequenceInputLayer, NumbersOfSeveralElementsAStepHaveDefaults) {
  Scope root;
  const SparseTensor x = SparseConst(root, Floats{{1, 2, 3, 4}, {5, 6}});
  const SequenceInputOutput y = SequenceInputLayer(
      root, Features({{"x", x}}),
      {SequenceNumericColumn(
          "x",
          {.shape = {2}, .default_value = -1, .normalizer = [](const Scope& s, const Output& v) {
             return Mul(s, v, Const(s, 2.0f));
           }})});
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out, RunColumns(root, {y, y.sequence_length}));
  ExpectTensorEqual(out[0], Tensor::Of<float>({{{2, 4}, {6, 8}}, {{10, 12}, {-1, -1}}}));
  ExpectTensorEqual(out[1], Tensor::Of<int64_t>({2, 1}));
}

TEST(SequenceInputLayer, MayHaveNoSteps) {
  for (const Ids& rows : {Ids{{}, {}}, Ids{}}) {
    Scope root;
    const Features features = {{"clicks", SparseConst(root, rows)},
                               {"price", SparseConst(root, Floats(rows.size()))}};
    const auto clicks = SequenceCategoricalColumnWithIdentity("clicks", 3);
    const SequenceInputOutput y = SequenceInputLayer(
        root, features,
        {SequenceNumericColumn("price"), EmbeddingColumn(clicks, 2), IndicatorColumn(clicks)});
    ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out, RunColumns(root, {y, y.sequence_length}));
    const auto batch = static_cast<int64_t>(rows.size());
    EXPECT_EQ(out[0].shape(), (Shape{batch, 0, 6}));
    ExpectTensorEqual(out[1], *Tensor::Zeros(DT_INT64, Shape{batch}));
  }
}

TEST(SequenceInputLayer, RefusesColumnsOfDifferentSteps) {
  Scope root;
  const Features features = {{"a", SparseConst(root, Floats{{1, 2}, {1}})},
                             {"b", SparseConst(root, Floats{{1}, {1, 2}})}};
  const SequenceInputOutput y =
      SequenceInputLayer(root, features, {SequenceNumericColumn("a"), SequenceNumericColumn("b")});
  EXPECT_STATUS(RunColumns(root, {y.sequence_length}), kInvalid,
                "SequenceInputLayer: columns must have as many steps in each example, got of a "
                "and of b:] [2 1] [1 2]");
}

TEST(SequenceInputLayer, RefusesADenseFeatureOfNumbers) {
  Scope root;
  SequenceInputLayer(root, Features({{"x", Const(root, Matrix<float>({{1, 2}}))}}),
                     {SequenceNumericColumn("x")});
  EXPECT_STATUS(root.status(), kInvalid,
                "column 'x': feature 'x' must be sparse, got a dense one; column made at");
}

}  // namespace
}  // namespace millrace
