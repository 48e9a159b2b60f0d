// SPDX-License-Identifier: Apache-2.0
#include "layers/weight.h"

#include <cstdint>

#include "absl/strings/strip.h"
#include "core/dtype.h"
#include "core/shape.h"
#include "graph/graph.h"

namespace millrace {
bool CheckLayerTensor(const ScopeAt& at, absl::string_view layer, absl::string_view default_name,
                      const Output& x, int min_rank, int max_rank, absl::string_view name) {
  const auto fail = [&](const auto&... parts) {
    LayerError(at, layer, default_name, name, parts...);
    return false;
  };
  if (!x.valid()) return fail(" must be the output of a node, got an invalid Output");
  if (x.node()->graph() != at.scope.graph()) {
    return fail(" must be of the same graph, got '", x.name(), "' of another");
  }
  const PartialShape shape = at.scope.shape(x);
  if (!shape.has_rank() || (shape.rank() >= min_rank && shape.rank() <= max_rank)) return true;
  return fail(" must have rank ", min_rank == max_rank ? "" : ">= ", min_rank, ", got shape ",
              shape, " of '", x.name(), "'");
}

bool CheckLayerInput(const ScopeAt& at, absl::string_view layer, absl::string_view default_name,
                     const Output& x, int min_rank, int max_rank) {
  if (!CheckLayerTensor(at, layer, default_name, x, min_rank, max_rank)) return false;
  if (IsFloating(WithoutRef(x.dtype()))) return true;
  LayerError(at, layer, default_name, "x must be floating, got ", x.dtype(), " from '", x.name(),
             "'");
  return false;
}

PartitionedVariable MakeWeightParts(const ScopeAt& at, const std::string& name,
                                    std::initializer_list<int64_t> dims, DType dtype,
                                    const Partitioner& partitioner, const WeightAttrs& attrs) {
  const StatusOr<Shape> shape = Shape::Make(dims);
  if (!shape.ok()) {
    at.scope.UpdateStatus(
        Prefixed(absl::StrCat("Variable '", at.scope.prefix(), name, "'"), shape.status()),
        at.where);
    return {};
  }
  const Scope named_scope = at.scope.WithName(name);
  const ScopeAt named(named_scope, at.where);
  const VariableAttrs variable_attrs{.trainable = attrs.trainable};
  PartitionedVariable weight;
  if (partitioner) {
    weight =
        MakeVariableInParts(named, *shape, dtype, partitioner, attrs.initializer, variable_attrs);
  } else {
    const Variable whole = MakeVariable(named, *shape, dtype, attrs.initializer, variable_attrs);
    weight = {.name = whole.name, .parts = {whole}, .full_shape = *shape};
  }
  for (const Variable& part : weight.parts) AddRegularizationLoss(at, part, attrs.regularizer);
  return weight;
}

Variable MakeWeight(const ScopeAt& at, const std::string& name, std::initializer_list<int64_t> dims,
                    DType dtype, const WeightAttrs& attrs) {
  const PartitionedVariable whole = MakeWeightParts(at, name, dims, dtype, {}, attrs);
  return whole.parts.empty() ? Variable() : whole.parts[0];
}

void AddRegularizationLoss(const ScopeAt& at, const Variable& weight,
                           const Regularizer& regularizer) {
  if (!regularizer || !weight.valid()) return;
  const Scope scope = at.scope.OutsideControlFlow()
                          .WithoutControlDependencies()
                          .WithRootPrefix()
                          .WithSubScope(weight.name + "/Regularizer")
                          .ColocatedWith(weight.handle.op());
  AddRegularizationLoss(ScopeAt(scope, at.where), regularizer, weight.value);
}

std::string ReserveName(const Scope& scope, absl::string_view default_name) {
  const std::string asked = scope.RequestedName(default_name);
  absl::string_view full = asked;
  return absl::ConsumeSuffix(&full, "/") ? std::string(full) : scope.UniqueName(asked);
}

}  // namespace millrace
