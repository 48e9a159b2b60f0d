// SPDX-License-Identifier: Apache-2.0
// InputLayer, LinearModel, SequenceInputLayer, and ids that they share: plan, variables, then
// nodes.
#include <string>
#include <utility>
#include <vector>

#include "core/status.h"
#include "estimator/columns/column_plan.h"
#include "estimator/columns/column_variables.h"
#include "estimator/columns/feature_column.h"
#include "estimator/columns/fused_lowering.h"
#include "estimator/columns/input_layer.h"
#include "estimator/columns/linear_model.h"
#include "estimator/columns/portable_lowering.h"
#include "estimator/columns/sequence_input_layer.h"
#include "estimator/columns/shared_ids.h"
#include "estimator/model_tensors.h"
#include "graph/scope.h"
#include "layers/variable.h"

namespace millrace {
namespace {

// A layer that is planned and has its variables; `plan` has no layers after an error, which is in
// the scope.
struct Prepared {
  Scope scope;  // of the layer's nodes
  ColumnPlan plan;
  std::vector<PartitionedVariable> variables;
  bool ok() const { return !plan.layers.empty(); }
};

Prepared Prepare(const ScopeAt& at, const char* default_name, AskedLayer layer,
                 ColumnVariablesOptions options) {
  Prepared prepared = {at.scope, {}, {}};
  if (!at.scope.ok()) return prepared;
  StatusOr<ColumnPlan> plan = MakeColumnPlan({std::move(layer)});
  if (!plan.ok()) {
    at.scope.UpdateStatus(plan.status(), at.where);
    return prepared;
  }
  prepared.scope = at.here().CompositeScope(default_name);
  if (options.variable_scope.empty()) {
    const std::string& prefix = prepared.scope.prefix();
    options.variable_scope = prefix.substr(0, prefix.size() - 1);
  }
  prepared.variables = MakeColumnVariables({prepared.scope, at.where}, plan->layers[0], options);
  if (at.scope.ok()) prepared.plan = *std::move(plan);
  return prepared;
}

template <typename Column>
std::vector<FeatureColumn> AnyColumns(const std::vector<Column>& columns) {
  return {columns.begin(), columns.end()};
}

}  // namespace

SharedIds MakeSharedIds(ScopeAt at, const Features& features, const std::vector<DenseColumn>& dense,
                        const std::vector<FeatureColumn>& linear) {
  std::vector<AskedLayer> layers;
  if (!dense.empty()) {
    layers.push_back({.kind = LayerPlan::Kind::kInput, .columns = AnyColumns(dense)});
  }
  if (!linear.empty()) layers.push_back({.kind = LayerPlan::Kind::kLinear, .columns = linear});
  if (!at.scope.ok()) return {};
  const StatusOr<ColumnPlan> plan = MakeColumnPlan(layers);
  if (!plan.ok()) return {};
  const Scope scope = at.here().CompositeScope("shared_ids");
  return FusedColumns(*plan, features, {}).Ids({scope, at.where});
}

InputLayerOutput InputLayer(ScopeAt at, const Features& features,
                            const std::vector<DenseColumn>& columns,
                            const InputLayerOptions& options) {
  const Prepared layer =
      Prepare(at, "input_layer", {.kind = LayerPlan::Kind::kInput, .columns = AnyColumns(columns)},
              {options.variable_scope, options.partitioner, options.trainable});
  InputLayerOutput result;
  if (!layer.ok()) return result;
  const ScopeAt in(layer.scope, at.where);
  const LayerPlan& plan = layer.plan.layers[0];
  static_cast<Output&>(result) =
      options.lowering == ColumnLowering::kFused
          ? FusedColumns(layer.plan, features, options.shared_ids)
                .InputLayer(in, plan, layer.variables)
          : PortableColumns(layer.plan, features).InputLayer(in, plan, layer.variables);
  result.variables = layer.variables;
  return result;
}

LinearModelOutput LinearModel(ScopeAt at, const Features& features,
                              const std::vector<FeatureColumn>& columns,
                              const LinearModelOptions& options) {
  const Prepared layer = Prepare(at, "linear_model",
                                 {.kind = LayerPlan::Kind::kLinear,
                                  .columns = columns,
                                  .units = options.units,
                                  .sparse_combiner = options.sparse_combiner},
                                 {options.variable_scope, options.partitioner, options.trainable});
  LinearModelOutput result;
  if (!layer.ok()) return result;
  const ScopeAt in(layer.scope, at.where);
  const LayerPlan& plan = layer.plan.layers[0];
  static_cast<Output&>(result) =
      options.lowering == ColumnLowering::kFused
          ? FusedColumns(layer.plan, features, options.shared_ids)
                .LinearModel(in, plan, layer.variables)
          : PortableColumns(layer.plan, features).LinearModel(in, plan, layer.variables);
  for (const ConsumerPlan& consumer : plan.consumers) {
    result.weights.push_back(layer.variables[static_cast<size_t>(consumer.weights)]);
  }
  result.bias = layer.variables.back();
  result.variables = layer.variables;
  return result;
}

SequenceInputOutput SequenceInputLayer(ScopeAt at, const Features& features,
                                       const std::vector<SequenceColumn>& columns,
                                       const InputLayerOptions& options) {
  const Prepared layer =
      Prepare(at, "sequence_input_layer",
              {.kind = LayerPlan::Kind::kSequence, .columns = AnyColumns(columns)},
              {options.variable_scope, options.partitioner, options.trainable});
  SequenceInputOutput result;
  if (!layer.ok()) return result;
  PortableColumns lowering(layer.plan, features);
  const PortableColumns::Sequence sequence =
      lowering.SequenceInputLayer({layer.scope, at.where}, layer.plan.layers[0], layer.variables);
  static_cast<Output&>(result) = sequence.steps;
  result.sequence_length = sequence.length;
  result.variables = layer.variables;
  return result;
}

}  // namespace millrace
