// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_ESTIMATOR_COLUMNS_INPUT_LAYER_H_
#define MILLRACE_ESTIMATOR_COLUMNS_INPUT_LAYER_H_

// InputLayer: the dense columns of a model as one matrix, the first layer of a network.
//
//   const InputLayerOutput input = InputLayer(scope, features, {age, EmbeddingColumn(words, 8)});
//   Output hidden = Dense(scope, input, 100, {.activation = Relu});
//
// The columns stand next to each other in the order of their names, whatever the order in which
// they are given: the layout of the first weights of a model in a checkpoint. Variables are
// "<variable scope>/<column>/embedding_weights", of a shared table "<variable
// scope>/<shared name>/embedding_weights", made in that order before anything else (so that every
// task of a cluster places them alike); with a partitioner they are "…/part_0" and so on, even when
// there is one part. The nodes are TensorFlow 1.15's unless the options ask for
// fewer (estimator/columns/column_lowering.h).
//
// The gradient of a table is IndexedSlices of the rows that were looked up.
//
// Failure: an error in the scope with the line that made the column, or that called this: columns
// that are wrong in themselves, two of one name, a feature that is missing or does not fit its
// column, a variable that exists, examples of different number. A feature without a column is
// ignored.

#include <string>
#include <vector>

#include "estimator/columns/column_lowering.h"
#include "estimator/columns/feature_column.h"
#include "estimator/columns/shared_ids.h"
#include "estimator/model_tensors.h"
#include "graph/scope.h"
#include "layers/embedding.h"
#include "layers/variable.h"

namespace millrace {

struct InputLayerOptions {
  // The full name before those of the variables, without a slash at its end. "": that of the
  // layer's nodes ("input_layer", or what WithName says, in the scope).
  std::string variable_scope = "";
  Partitioner partitioner = {};  // none: as the scope says (graph/table_parts.h)
  bool trainable = true;
  ColumnLowering lowering = ColumnLowering::kPortable;
  SharedIds shared_ids = {};  // of a fused layer; none: it makes its own
};

// The matrix [batch, sum of the columns' widths], to be used as any Output.
struct InputLayerOutput : Output {
  // The tables, in the order in which they were made. One that is not partitioned has one part.
  std::vector<PartitionedVariable> variables;
};

InputLayerOutput InputLayer(ScopeAt at, const Features& features,
                            const std::vector<DenseColumn>& columns,
                            const InputLayerOptions& options = {});

}  // namespace millrace

#endif  // MILLRACE_ESTIMATOR_COLUMNS_INPUT_LAYER_H_
