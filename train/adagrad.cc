// SPDX-License-Identifier: Apache-2.0
#include "train/adagrad.h"

#include <utility>

#include "core/status.h"
#include "graph/node_builder.h"

namespace millrace {
namespace {

constexpr char kAccumulator[] = "accumulator";

}  // namespace

AdagradOptimizer::AdagradOptimizer(const AdagradOptions& options)
    : Optimizer({.name = options.name,
                 .use_locking = options.use_locking,
                 .hyperparameters = {{"learning_rate", options.learning_rate}},
                 .slots = {{kAccumulator, options.initial_accumulator_value}}}),
      initial_accumulator_value_(options.initial_accumulator_value) {}

Status AdagradOptimizer::CheckOptions(const Scope& scope) const {
  if (!(initial_accumulator_value_ > 0)) {
    return InvalidArgument("Adagrad '", name(), "': initial_accumulator_value must be > 0, got ",
                           initial_accumulator_value_);
  }
  return Optimizer::CheckOptions(scope);
}

Operation AdagradOptimizer::ApplyDense(const Scope& scope, const Variable& variable,
                                       Output gradient) {
  return NodeBuilder(scope.WithName("ResourceApplyAdagrad"), "ResourceApplyAdagrad")
      .Input(variable.handle)
      .Input(GetSlot(variable, kAccumulator).handle)
      .Input(Hyperparameter(scope, "learning_rate", variable))
      .Input(gradient)
      .Attr("use_locking", use_locking())
      .Finish()
      .operation();
}

Operation AdagradOptimizer::ApplySparse(const Scope& scope, const Variable& variable, Output values,
                                        Output rows) {
  return NodeBuilder(scope.WithName("ResourceSparseApplyAdagrad"), "ResourceSparseApplyAdagrad")
      .Input(variable.handle)
      .Input(GetSlot(variable, kAccumulator).handle)
      .Input(Hyperparameter(scope, "learning_rate", variable))
      .Input(values)
      .Input(rows)
      .Attr("use_locking", use_locking())
      .Finish()
      .operation();
}

}  // namespace millrace
