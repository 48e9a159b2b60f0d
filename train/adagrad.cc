// SPDX-License-Identifier: Apache-2.0
#include "train/adagrad.h"

#include "core/status.h"
#include "ops/training/training_ops.h"
#include "train/apply_to.h"

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
  return ApplyTo(variable, ResourceApplyAdagrad, ApplyAdagrad, scope,
                 GetSlot(variable, kAccumulator).handle,
                 Hyperparameter(scope, "learning_rate", variable), gradient,
                 ApplyAdagradAttrs{.use_locking = use_locking()});
}

Operation AdagradOptimizer::ApplySparse(const Scope& scope, const Variable& variable, Output values,
                                        Output rows) {
  return ApplyTo(variable, ResourceSparseApplyAdagrad, SparseApplyAdagrad, scope,
                 GetSlot(variable, kAccumulator).handle,
                 Hyperparameter(scope, "learning_rate", variable), values, rows,
                 ApplyAdagradAttrs{.use_locking = use_locking()});
}

}  // namespace millrace
