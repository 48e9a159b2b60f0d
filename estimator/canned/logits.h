// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_ESTIMATOR_CANNED_LOGITS_H_
#define MILLRACE_ESTIMATOR_CANNED_LOGITS_H_

// DnnLogits, LinearLogits: what the pre-made models compute from columns, for models of one's own
// with a head, too.
//
//   dnn/input_from_feature_columns/input_layer/<column>/embedding_weights
//   dnn/hiddenlayer_<i>/{kernel,bias}, dnn/hiddenlayer_<i>/batchnorm_<i>/{gamma,beta,moving_…}
//   dnn/logits/{kernel,bias}
//   linear/linear_model/<column>/weights, linear/linear_model/bias_weights
//
// are the variables, in the order of their making (but the columns' by name), named absolutely and
// in parts (`part_<k>`) as in TensorFlow's checkpoints; the nodes are TensorFlow 1.15's. In a graph
// that trains there are its summaries: for each layer the fraction of zeros and a histogram of
// activations, the linear model's bias and its fraction of zero weights.
//
// Each may be called once in a graph.
// Failure: in the scope: of the columns; FailedPrecondition when the name "dnn" or "linear" is
// taken by other nodes; InvalidArgument for sizes and rates out of range.

#include <cstdint>
#include <optional>
#include <vector>

#include "estimator/columns/column_lowering.h"
#include "estimator/columns/feature_column.h"
#include "estimator/columns/shared_ids.h"
#include "estimator/mode.h"
#include "estimator/model_tensors.h"
#include "estimator/run_config.h"
#include "graph/scope.h"
#include "graph/table_parts.h"
#include "layers/embedding.h"
#include "layers/partitioner.h"
#include "layers/variable.h"
#include "layers/weight.h"
#include "ops/nn/activations.h"

namespace millrace {

// Fused, but for what is exported and where the program wants it portable.
ColumnLowering LoweringFor(Mode mode, const RunConfig& config);

struct DnnOptions {
  int64_t units = 1;  // of the logits
  std::vector<int64_t> hidden_units = {};
  std::vector<DenseColumn> feature_columns = {};
  Activation activation_fn = Relu;
  std::optional<double> dropout = {};        // the rate, after each hidden layer, while it trains
  bool batch_norm = false;                   // after each hidden layer and dropout; momentum 0.999
  int num_ps = 0;                            // into how many parts at most variables are cut
  Partitioner input_layer_partitioner = {};  // none: by the next
  int64_t partition_tables_above = kTablePartBytes;  // RunConfig's
  ColumnLowering lowering = ColumnLowering::kPortable;
  SharedIds shared_ids = {};  // what both networks of a model look up
};

// What a network gives, and the scope in which TensorFlow has the rest of a model of it alone.
struct NetworkLogits {
  Output logits;  // [batch, units]
  Scope scope;    // "dnn/", "linear/"
};
NetworkLogits DnnLogits(ScopeAt at, const Features& features, Mode mode, const DnnOptions& options);

struct LinearOptions {
  int64_t units = 1;
  std::vector<FeatureColumn> feature_columns = {};
  Combiner sparse_combiner = Combiner::kSum;
  int num_ps = 0;
  Partitioner partitioner = {};                      // as above
  int64_t partition_tables_above = kTablePartBytes;  // as above
  ColumnLowering lowering = ColumnLowering::kPortable;
  SharedIds shared_ids = {};  // what both networks of a model look up
};
NetworkLogits LinearLogits(ScopeAt at, const Features& features, Mode mode,
                           const LinearOptions& options);

// "<name>/fraction_of_zero_values" and "<name>/activation" of a layer's values.
void AddLayerSummary(ScopeAt at, const std::string& name, const Output& values);

// The trainable variables whose names begin with `prefix`.
std::vector<Variable> TrainablesUnder(const Scope& scope, const std::string& prefix);

}  // namespace millrace

#endif  // MILLRACE_ESTIMATOR_CANNED_LOGITS_H_
