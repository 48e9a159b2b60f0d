// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_LAYERS_EMBEDDING_H_
#define MILLRACE_LAYERS_EMBEDDING_H_

// Embeddings: rows of a large table by id, where the table may be several variables on several
// parameter servers.
//
//   PartitionedVariable table = MakePartitionedVariable(scope.WithName("words"), ...);
//   Output rows = EmbeddingLookup(scope, table, ids);   // [ids..., row...]
//
// Only the rows that are asked for leave a variable's device, and the gradient of each part is
// IndexedSlices of those rows: no tensor of the table's size is ever made.

#include <vector>

#include "graph/node_builder.h"
#include "layers/variable.h"

namespace millrace {

// Which part has row `id` of n parts.
enum class PartitionStrategy {
  kMod,  // part id % n, row id / n
  kDiv,  // consecutive rows: the first (rows % n) parts have one row more than the others
};

struct EmbeddingLookupAttrs {
  PartitionStrategy strategy = PartitionStrategy::kMod;
};

// `ids`: int32 or int64, any shape. The result has shape ids.shape + a row's shape. InvalidArgument
// in the step for an id without a row; in the scope for parts that differ in dtype or row, and
// (kDiv) for parts whose row counts are not known or are not those of the strategy.
Output EmbeddingLookup(ScopeAt at, const std::vector<Variable>& parts, Output ids,
                       const EmbeddingLookupAttrs& attrs = {});
// The parts of a partitioned variable are consecutive rows: kDiv.
Output EmbeddingLookup(ScopeAt at, const PartitionedVariable& table, Output ids);

}  // namespace millrace

#endif  // MILLRACE_LAYERS_EMBEDDING_H_
