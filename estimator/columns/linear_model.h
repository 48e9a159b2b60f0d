// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_ESTIMATOR_COLUMNS_LINEAR_MODEL_H_
#define MILLRACE_ESTIMATOR_COLUMNS_LINEAR_MODEL_H_

// LinearModel: a weighted sum of columns, plus a bias.
//
//   const LinearModelOutput logits = LinearModel(scope, features, {occupation, ages, cross});
//
// A categorical column has a weight for each id (and unit): an example gets those of its ids, added
// up (or their mean: sparse_combiner). A dense column has a weight for each of its numbers. All
// weights begin at 0. Variables, in the order in which they are made, that of the columns' names:
// "<variable scope>/<column>/weights" [ids or width, units] (behind the tables of an embedding
// column), at last "<variable scope>/bias_weights" [units]; parts and failure as in
// estimator/columns/input_layer.h.

#include <cstdint>
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

struct LinearModelOptions {
  int64_t units = 1;
  Combiner sparse_combiner = Combiner::kSum;  // of a categorical column's ids
  std::string variable_scope = "";            // as InputLayerOptions; "linear_model" otherwise
  Partitioner partitioner = {};
  bool trainable = true;
  ColumnLowering lowering = ColumnLowering::kPortable;
  SharedIds shared_ids = {};  // of a fused layer; none: it makes its own
};

// [batch, units].
struct LinearModelOutput : Output {
  std::vector<PartitionedVariable> weights;  // one per column, in the order of their names
  PartitionedVariable bias;
  // All, with the tables of embedding columns, in the order in which they were made.
  std::vector<PartitionedVariable> variables;
};

// `columns`: dense and categorical ones.
LinearModelOutput LinearModel(ScopeAt at, const Features& features,
                              const std::vector<FeatureColumn>& columns,
                              const LinearModelOptions& options = {});

}  // namespace millrace

#endif  // MILLRACE_ESTIMATOR_COLUMNS_LINEAR_MODEL_H_
