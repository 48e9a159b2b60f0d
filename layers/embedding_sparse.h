// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_LAYERS_EMBEDDING_SPARSE_H_
#define MILLRACE_LAYERS_EMBEDDING_SPARSE_H_

// Embeddings of sparse tensors of ids, by TensorFlow's own nodes unless they may be others: what
// feature columns are made of.
//
//   Output rows = SafeEmbeddingLookupSparse(scope, table, ids, weights);   // [examples, dimension]
//
// (layers/embedding.h has lists of ids, with fewer nodes.) Each different id is looked up once, and
// the gradient of the table is IndexedSlices of those rows.

#include <optional>

#include "graph/scope.h"
#include "layers/embedding.h"
#include "layers/variable.h"
#include "ops/sparse/sparse_tensor.h"

namespace millrace {

struct SparseLookupAttrs {
  Combiner combiner = Combiner::kMean;
  // Looked up rows longer than this (L2) are cut to it before they are combined.
  std::optional<double> max_norm = std::nullopt;
  // No ops but TensorFlow's. Otherwise parts of a table on other tasks are looked up in fewer nodes
  // and bytes, and give sums, as in layers/embedding.h (without weights and max_norm).
  bool portable = true;
};

// tf.nn.embedding_lookup_sparse: for each row of `ids`, a matrix of int32 or int64 ids in row-major
// order, the combined rows of the table: [rows, dimension...]. Every row must have an id: those
// behind the last one with an id are missing in the result, and those between are 0.
// `weights`: as `ids`, of a floating dtype; 1 each when it is invalid.
Output EmbeddingLookupSparse(ScopeAt at, const PartitionedVariable& table, const SparseTensor& ids,
                             const SparseTensor& weights = {}, const SparseLookupAttrs& attrs = {});

// tf.nn.safe_embedding_lookup_sparse: the same for ids of any rank from 2 on and rows without ids,
// which are 0: [all dimensions of ids but the last..., dimension]. Ids < 0 count as nothing, as do
// weights <= 0 unless they are summed up. The rank of `ids` is known: InvalidArgument otherwise.
Output SafeEmbeddingLookupSparse(ScopeAt at, const PartitionedVariable& table,
                                 const SparseTensor& ids, const SparseTensor& weights = {},
                                 const SparseLookupAttrs& attrs = {});

}  // namespace millrace

#endif  // MILLRACE_LAYERS_EMBEDDING_SPARSE_H_
