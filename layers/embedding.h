// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_LAYERS_EMBEDDING_H_
#define MILLRACE_LAYERS_EMBEDDING_H_

// Embeddings: rows of a large table by id, where the table may be several variables on several
// parameter servers.
//
//   Output rows = Embedding(scope, ids, 1'000'000, 64,
//                           {.partitioner = FixedSizePartitioner(2)});   // [ids..., 64]
//   Output score = Linear(scope, {.ids = ids, .rows = example_of_id}, 1'000'000);
//
// Only the rows that are asked for leave a variable's device, and the gradient of each part is
// IndexedSlices of those rows: no tensor of the table's size is ever made.

#include <cstdint>
#include <vector>

#include "graph/node_builder.h"
#include "layers/initializers.h"
#include "layers/partitioner.h"  // IWYU pragma: export
#include "layers/regularizers.h"
#include "layers/variable.h"
#include "layers/weight.h"

namespace millrace {

// Which part has row `id` of n parts.
enum class PartitionStrategy {
  kMod,  // part id % n, row id / n
  kDiv,  // consecutive rows: the first (rows % n) parts have one row more than the others
};

struct EmbeddingLookupAttrs {
  PartitionStrategy strategy = PartitionStrategy::kMod;
  // No ops but TensorFlow's, also where others need fewer nodes and bytes.
  bool portable = false;
};

// `ids`: int32 or int64, any shape. The result has shape ids.shape + a row's shape. InvalidArgument
// in the step for an id without a row; in the scope for parts that differ in dtype or row, and
// (kDiv) for parts whose row counts are not known or are not those of the strategy.
//
// Parts whose slices say that they are cut along another dimension than the rows have all rows,
// each some of their columns: every part is asked for every id, whatever the strategy, and what
// they give is joined. InvalidArgument unless they are all parts of one table, in their order.
// (TensorFlow takes such parts for rows.)
//
// When a part stands on another task than the ids (their devices say so), repeated ids are looked
// up once: a row crosses the wire once each way, with the sum of its gradients. Ids are divided
// among the parts by one node, and what a part's rows get is not made unique again.
Output EmbeddingLookup(ScopeAt at, const std::vector<Variable>& parts, Output ids,
                       const EmbeddingLookupAttrs& attrs = {});
// Of a partitioned variable: its parts are consecutive rows, kDiv whatever `attrs` say, or columns.
Output EmbeddingLookup(ScopeAt at, const PartitionedVariable& table, Output ids,
                       const EmbeddingLookupAttrs& attrs = {});

// --- Several ids per example -------------------------------------------------------------------

// How the rows of an example's ids become one.
enum class Combiner {
  kSum,    // sum(w * row)
  kMean,   // sum(w * row) / sum(w)
  kSqrtN,  // sum(w * row) / sqrt(sum(w^2))
};

// Lists of ids of any length, one list per example: id i belongs to the example rows[i]. (The
// values of a SparseTensor, and the first column of its indices.)
struct IdLists {
  Output ids;   // vector, int32 or int64
  Output rows;  // vector, int32 or int64, as long as ids
  // How many examples there are (an int32 or int64 scalar). Without it there are as many as the
  // last row says, and rows must increase.
  Output num_rows = {};
  // Floating, of the table's dtype, as long as ids; 1 each without them.
  Output weights = {};
};

// One row per example: [examples, row...], as tf.nn.embedding_lookup_sparse. Each different id is
// looked up once. An example without ids, or whose weights sum to 0, has a row of zeros where
// TensorFlow divides by 0.
//
// Of a table in several parts on other tasks, a part adds up the rows of an example itself where
// that is fewer bytes than its different rows (ops/state/part_rows.h, which decides in each step).
// Lists with weights are combined here. Sums may differ from those of the whole table in their last
// bits then.
Output EmbeddingLookupSparse(ScopeAt at, const PartitionedVariable& table, const IdLists& lists,
                             Combiner combiner = Combiner::kMean);

// --- Layers --------------------------------------------------------------------------------------

struct EmbeddingAttrs {
  DType dtype = DT_FLOAT;
  // Keras's.
  Initializer initializer = RandomUniformInitializer({.minval = -0.05, .maxval = 0.05});
  Regularizer regularizer = {};         // of each part
  Partitioner partitioner = {};         // none: as the scope says (graph/table_parts.h)
  Combiner combiner = Combiner::kMean;  // of id lists
  bool trainable = true;
};

// The output, to be used as any Output, with the table: "embedding/embeddings", its parts (if there
// is a partitioner) "embedding/embeddings/part_0" and so on.
struct EmbeddingLayer : Output {
  PartitionedVariable table;  // [num_ids, dimension]
};

// Row `id` of a table: [ids..., dimension]. `ids`: int32 or int64 in [0, num_ids), any shape.
EmbeddingLayer Embedding(ScopeAt at, const Output& ids, int64_t num_ids, int64_t dimension,
                         const EmbeddingAttrs& attrs = {});
// The combined rows of each example's ids: [examples, dimension].
EmbeddingLayer Embedding(ScopeAt at, const IdLists& lists, int64_t num_ids, int64_t dimension,
                         const EmbeddingAttrs& attrs = {});

struct LinearAttrs {
  int64_t units = 1;
  DType dtype = DT_FLOAT;
  Combiner combiner = Combiner::kSum;
  bool use_bias = true;
  Initializer weights_initializer = ZerosInitializer();
  Initializer bias_initializer = ZerosInitializer();
  Regularizer weights_regularizer = {};  // of each part
  Partitioner partitioner = {};
  bool trainable = true;
};

struct LinearLayer : Output {
  PartitionedVariable weights;  // [num_ids, units]
  Variable bias;                // [units]; invalid without one
};

// A linear model of ids: for each example the combined weights of its ids, plus the bias:
// [examples, units]. Variables "linear/weights" and "linear/bias".
LinearLayer Linear(ScopeAt at, const IdLists& lists, int64_t num_ids,
                   const LinearAttrs& attrs = {});

}  // namespace millrace

#endif  // MILLRACE_LAYERS_EMBEDDING_H_
