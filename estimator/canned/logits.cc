// SPDX-License-Identifier: Apache-2.0
#include "estimator/canned/logits.h"

#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/dtype.h"
#include "core/shape.h"
#include "core/status.h"
#include "core/tensor.h"
#include "estimator/columns/input_layer.h"
#include "estimator/columns/linear_model.h"
#include "graph/graph.h"
#include "layers/dense.h"
#include "layers/dropout.h"
#include "layers/normalization.h"
#include "ops/array/constant.h"
#include "ops/array/reshape.h"
#include "ops/columns/zero_fraction.h"
#include "ops/math/add_n.h"
#include "ops/math/cast.h"
#include "ops/math/cwise_binary.h"
#include "ops/math/reduction.h"
#include "train/summaries.h"

namespace millrace {
namespace {

constexpr double kBatchNormMomentum = 0.999;

// The scope "<name>/" of the graph: where the variables of a model are, by their absolute names.
Scope OwnScope(const ScopeAt& at, const std::string& name) {
  Scope own = at.scope.WithRootPrefix().WithSubScope(name);
  if (own.prefix() != name + "/") {
    own.UpdateStatus(FailedPrecondition("the name '", name,
                                        "' must be free for the variables of the model, got other "
                                        "nodes of that name"),
                     at.where);
  }
  return own;
}

// Of the tables of columns. TensorFlow's pre-made models have parts even where there is one.
Partitioner LayerPartitioner(const Partitioner& given, int num_ps, int64_t above) {
  if (given) return given;
  if (above == 0) return MinMaxVariablePartitioner({});
  return MinMaxVariablePartitioner({.max_partitions = num_ps, .min_slice_size = above});
}

Output FractionOfZeros(const ScopeAt& at, const Output& values) {
  const Scope scope = at.scope.WithSubScope("zero_fraction");
  const ScopeAt in(scope, at.where);
  return ReduceMean(in, Cast(in, Equal(in, values, Const(in, 0.0f)), DT_FLOAT));
}

// Tables that one node here may read: not in the portable lowering, and none on another device.
bool AreRead(const std::vector<PartitionedVariable>& variables, ColumnLowering lowering) {
  if (lowering != ColumnLowering::kFused) return false;
  for (const PartitionedVariable& variable : variables) {
    for (const Variable& part : variable.parts) {
      const Output& handle = part.handle;
      if (handle.dtype() != DT_RESOURCE || part.dtype != DT_FLOAT ||
          !handle.node()->requested_device().empty()) {
        return false;
      }
    }
  }
  return !variables.empty();
}

// Counted on the device of each part: only numbers travel.
Output FractionOfZeros(const ScopeAt& at, const std::vector<PartitionedVariable>& variables,
                       ColumnLowering lowering) {
  const Scope scope = at.scope.WithSubScope("zero_fraction");
  const ScopeAt in(scope, at.where);
  if (AreRead(variables, lowering)) {
    std::vector<Output> handles;
    for (const PartitionedVariable& variable : variables) {
      for (const Variable& part : variable.parts) handles.push_back(part.handle);
    }
    return ZeroFraction(in, handles);
  }
  std::vector<Output> zeros;
  double size = 0;
  for (const PartitionedVariable& variable : variables) {
    for (const Variable& part : variable.parts) {
      const Scope beside = scope.ColocatedWith(part.handle.op());
      const ScopeAt here(beside, at.where);
      zeros.push_back(
          ReduceSum(here, Cast(here, Equal(here, part.value, Const(here, 0.0f)), DT_FLOAT)));
      const StatusOr<Shape> shape = part.shape.ToShape();
      if (shape.ok()) size += static_cast<double>(shape->num_elements());
    }
  }
  if (zeros.empty()) return Output();
  return RealDiv(in, AddN(in, zeros), Const(in, static_cast<float>(size)));
}

}  // namespace

ColumnLowering LoweringFor(Mode mode, const RunConfig& config) {
  return mode == Mode::kPredict || config.portable_graph() ? ColumnLowering::kPortable
                                                           : ColumnLowering::kFused;
}

void AddLayerSummary(ScopeAt at, const std::string& name, const Output& values) {
  if (!at.scope.ok() || !values.valid()) return;
  AddScalarSummary(at, name + "/fraction_of_zero_values", FractionOfZeros(at, values));
  AddHistogramSummary(at, name + "/activation", values);
}

std::vector<Variable> TrainablesUnder(const Scope& scope, const std::string& prefix) {
  std::vector<Variable> result;
  for (Variable& variable : VariablesOf(scope, "trainable_variables")) {
    if (absl::StartsWith(variable.name, prefix)) result.push_back(std::move(variable));
  }
  return result;
}

NetworkLogits DnnLogits(ScopeAt at, const Features& features, Mode mode,
                        const DnnOptions& options) {
  if (!at.scope.ok()) return {Output(), at.scope};
  const Scope scope = OwnScope(at, "dnn");
  const ScopeAt in(scope, at.where);
  const bool trains = mode == Mode::kTrain;
  const Scope input = scope.WithSubScope("input_from_feature_columns");
  Output net =
      InputLayer({input, at.where}, features, options.feature_columns,
                 {.variable_scope = "dnn/input_from_feature_columns/input_layer",
                  .partitioner = LayerPartitioner(options.input_layer_partitioner, options.num_ps,
                                                  options.partition_tables_above),
                  .lowering = options.lowering,
                  .shared_ids = options.shared_ids});
  const Partitioner partitioner = MinMaxVariablePartitioner({.max_partitions = options.num_ps});
  for (size_t i = 0; i < options.hidden_units.size(); ++i) {
    const std::string name = absl::StrCat("hiddenlayer_", i);
    net = Dense({scope.WithName(name), at.where}, net, options.hidden_units[i],
                {.activation = options.activation_fn, .partitioner = partitioner});
    if (options.dropout && trains) net = Dropout(in, net, *options.dropout);
    if (options.batch_norm) {
      net =
          BatchNormalization({scope.WithName(absl::StrCat(name, "/batchnorm_", i)), at.where}, net,
                             trains, {.momentum = kBatchNormMomentum, .partitioner = partitioner});
    }
    if (!scope.ok()) return {Output(), scope};
    if (trains) AddLayerSummary(in, "dnn/" + name, net);
  }
  const Output logits =
      Dense({scope.WithName("logits"), at.where}, net, options.units, {.partitioner = partitioner});
  if (trains) AddLayerSummary(in, "dnn/logits", logits);
  return {logits, scope};
}

NetworkLogits LinearLogits(ScopeAt at, const Features& features, Mode mode,
                           const LinearOptions& options) {
  if (!at.scope.ok()) return {Output(), at.scope};
  const Scope scope = OwnScope(at, "linear");
  const ScopeAt in(scope, at.where);
  const LinearModelOutput model =
      LinearModel(in, features, options.feature_columns,
                  {.units = options.units,
                   .sparse_combiner = options.sparse_combiner,
                   .variable_scope = "linear/linear_model",
                   .partitioner = LayerPartitioner(options.partitioner, options.num_ps,
                                                   options.partition_tables_above),
                   .lowering = options.lowering,
                   .shared_ids = options.shared_ids});
  if (!scope.ok() || mode != Mode::kTrain) return {model, scope};
  const Output bias = WholeValue(in, model.bias);
  if (options.units > 1) {
    AddHistogramSummary(in, "bias", bias);
  } else {
    AddScalarSummary(in, "bias", Reshape(in, bias, Const(in, Tensor::Vector<int32_t>({}))));
  }
  const Output zeros = FractionOfZeros(in, model.weights, options.lowering);
  if (zeros.valid()) AddScalarSummary(in, "fraction_of_zero_weights", zeros);
  return {model, scope};
}

}  // namespace millrace
