// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_ESTIMATOR_COLUMNS_TESTING_COLUMN_VALUES_H_
#define MILLRACE_ESTIMATOR_COLUMNS_TESTING_COLUMN_VALUES_H_

// What columns give for literal features, in tests: a graph with a layer of them, run once.

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "estimator/columns/feature_column.h"
#include "estimator/columns/input_layer.h"
#include "estimator/columns/linear_model.h"
#include "estimator/model_tensors.h"
#include "graph/scope.h"
#include "layers/initializers.h"
#include "layers/lookup.h"
#include "layers/variable.h"
#include "ops/ops.h"
#include "runtime/session.h"

namespace millrace {

// Rows of one length.
template <typename T>
Tensor Matrix(const std::vector<std::vector<T>>& rows) {
  std::vector<T> values;
  for (const std::vector<T>& row : rows) values.insert(values.end(), row.begin(), row.end());
  const auto n = static_cast<int64_t>(rows.size());
  const auto columns = rows.empty() ? 0 : static_cast<int64_t>(rows[0].size());
  return *Tensor::FromValues<T>(Shape{n, columns}, values);
}

// A sparse matrix: each row has what it has.
template <typename T>
SparseTensor SparseConst(const Scope& scope, const std::vector<std::vector<T>>& rows) {
  std::vector<int64_t> indices;
  std::vector<T> values;
  size_t widest = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    for (size_t j = 0; j < rows[i].size(); ++j) {
      indices.push_back(static_cast<int64_t>(i));
      indices.push_back(static_cast<int64_t>(j));
      values.push_back(rows[i][j]);
    }
    widest = std::max(widest, rows[i].size());
  }
  const auto n = static_cast<int64_t>(values.size());
  return {Const(scope, *Tensor::FromValues<int64_t>(Shape{n, 2}, indices)),
          Const(scope, *Tensor::FromValues<T>(Shape{n}, values)),
          Const<int64_t>(scope, {static_cast<int64_t>(rows.size()), static_cast<int64_t>(widest)})};
}

// The values of `fetches` from initial values, with tables filled.
inline StatusOr<std::vector<Tensor>> RunColumns(const Scope& scope,
                                                const std::vector<FetchName>& fetches,
                                                const std::vector<Feed>& feeds = {}) {
  const Operation variables = GlobalVariablesInitializer(scope), tables = TablesInitializer(scope);
  MR_RETURN_IF_ERROR(scope.status());
  MR_ASSIGN_OR_RETURN(const auto session, NewSession());
  MR_RETURN_IF_ERROR(session->Extend(scope));
  MR_RETURN_IF_ERROR(session->Run({}, {}, {variables, tables}).status());
  return session->Run(feeds, fetches);
}

// Row i of a table [n, d] is i everywhere: so a sum over looked up rows is a sum of ids.
inline Initializer RowNumbers() {
  return [](ScopeAt at, const InitialShape& part, DType dtype) {
    const auto first = static_cast<int32_t>(part.var_offset[0]);
    const auto rows = static_cast<int32_t>(part.shape.dim(0));
    const auto columns = static_cast<int32_t>(part.shape.dim(1));
    const Output numbers =
        Cast(at, Range(at, Const(at, first), Const(at, first + rows), Const(at, 1)), dtype);
    return Tile(at, Reshape(at, numbers, Const<int32_t>(at, {rows, 1})),
                Const<int32_t>(at, {1, columns}));
  };
}

// What InputLayer gives for one column.
inline StatusOr<Tensor> DenseValues(const Scope& scope, const Features& features,
                                    const DenseColumn& column) {
  const Output y = InputLayer(scope, features, {column});
  MR_ASSIGN_OR_RETURN(const std::vector<Tensor> out, RunColumns(scope, {y}));
  return out[0];
}

// The sum of the ids of each example, and how many there are: [batch, 2].
inline StatusOr<Tensor> IdSums(const Scope& scope, const Features& features,
                               const CategoricalColumn& column) {
  const DenseColumn sum =
      EmbeddingColumn(column, 1, {.combiner = Combiner::kSum, .initializer = RowNumbers()});
  const DenseColumn count =
      EmbeddingColumn(column, 1, {.combiner = Combiner::kSum, .initializer = OnesInitializer()});
  const Output y = ConcatV2(scope,
                            {InputLayer(scope.WithName("sum"), features, {sum}),
                             InputLayer(scope.WithName("count"), features, {count})},
                            Const(scope, 1));
  MR_ASSIGN_OR_RETURN(const std::vector<Tensor> out, RunColumns(scope, {y}));
  return out[0];
}

}  // namespace millrace

#endif  // MILLRACE_ESTIMATOR_COLUMNS_TESTING_COLUMN_VALUES_H_
