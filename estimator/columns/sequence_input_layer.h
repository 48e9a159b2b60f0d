// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_ESTIMATOR_COLUMNS_SEQUENCE_INPUT_LAYER_H_
#define MILLRACE_ESTIMATOR_COLUMNS_SEQUENCE_INPUT_LAYER_H_

// SequenceInputLayer: sequence columns as one tensor with a row for each step, for recurrent
// networks (tf.contrib.feature_column.sequence_input_layer).
//
//   const SequenceInputOutput input =
//       SequenceInputLayer(scope, features, {EmbeddingColumn(words, 8),
//       SequenceNumericColumn("t")});
//
// Order, variables ("sequence_input_layer/<column>/embedding_weights") and failure as in
// estimator/columns/input_layer.h. All columns must have the same steps: an error of the step
// otherwise.

#include <vector>

#include "estimator/columns/feature_column.h"
#include "estimator/columns/input_layer.h"
#include "estimator/model_tensors.h"
#include "graph/scope.h"
#include "layers/variable.h"

namespace millrace {

// [batch, steps, sum of the columns' widths]; steps behind an example's last are 0 (of a numeric
// column: its default).
struct SequenceInputOutput : Output {
  Output sequence_length;  // int64 [batch]
  std::vector<PartitionedVariable> variables;
};

SequenceInputOutput SequenceInputLayer(ScopeAt at, const Features& features,
                                       const std::vector<SequenceColumn>& columns,
                                       const InputLayerOptions& options = {});

}  // namespace millrace

#endif  // MILLRACE_ESTIMATOR_COLUMNS_SEQUENCE_INPUT_LAYER_H_
