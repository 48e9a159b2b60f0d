// SPDX-License-Identifier: Apache-2.0
#include "train/proximal.h"

#include "core/status.h"
#include "ops/training/other_training_ops.h"
#include "train/apply_to.h"

namespace millrace {
namespace {

constexpr char kAccumulator[] = "accumulator";
constexpr char kRate[] = "learning_rate";
constexpr char kL1[] = "l1_regularization_strength", kL2[] = "l2_regularization_strength";

}  // namespace

// --- Gradient descent ----------------------------------------------------------------------------

ProximalGradientDescentOptimizer::ProximalGradientDescentOptimizer(
    const ProximalGradientDescentOptions& options)
    : Optimizer({.name = options.name,
                 .use_locking = options.use_locking,
                 .hyperparameters = {{kRate, options.learning_rate},
                                     {kL1, options.l1_regularization_strength},
                                     {kL2, options.l2_regularization_strength}}}) {}

Operation ProximalGradientDescentOptimizer::ApplyDense(const Scope& scope, const Variable& variable,
                                                       Output gradient) {
  const auto rate = [&](const char* name) { return Hyperparameter(scope, name, variable); };
  const Output learning_rate = rate(kRate), l1 = rate(kL1), l2 = rate(kL2);
  return ApplyTo(variable, ResourceApplyProximalGradientDescent, ApplyProximalGradientDescent,
                 scope, learning_rate, l1, l2, gradient, ApplyAttrs{.use_locking = use_locking()});
}

Operation ProximalGradientDescentOptimizer::ApplySparse(const Scope& scope,
                                                        const Variable& variable, Output values,
                                                        Output rows) {
  const auto rate = [&](const char* name) { return Hyperparameter(scope, name, variable); };
  const Output learning_rate = rate(kRate), l1 = rate(kL1), l2 = rate(kL2);
  return ApplyTo(variable, ResourceSparseApplyProximalGradientDescent,
                 SparseApplyProximalGradientDescent, scope, learning_rate, l1, l2, values, rows,
                 ApplyAttrs{.use_locking = use_locking()});
}

// --- Adagrad -------------------------------------------------------------------------------------

ProximalAdagradOptimizer::ProximalAdagradOptimizer(const ProximalAdagradOptions& options)
    : Optimizer({.name = options.name,
                 .use_locking = options.use_locking,
                 .hyperparameters = {{kRate, options.learning_rate},
                                     {kL1, options.l1_regularization_strength},
                                     {kL2, options.l2_regularization_strength}},
                 .slots = {{kAccumulator, options.initial_accumulator_value}}}),
      initial_accumulator_value_(options.initial_accumulator_value) {}

Status ProximalAdagradOptimizer::CheckOptions(const Scope& scope) const {
  if (!(initial_accumulator_value_ > 0)) {
    return InvalidArgument("ProximalAdagrad '", name(),
                           "': initial_accumulator_value must be > 0, got ",
                           initial_accumulator_value_);
  }
  return Optimizer::CheckOptions(scope);
}

Operation ProximalAdagradOptimizer::ApplyDense(const Scope& scope, const Variable& variable,
                                               Output gradient) {
  const auto rate = [&](const char* name) { return Hyperparameter(scope, name, variable); };
  const Output learning_rate = rate(kRate), l1 = rate(kL1), l2 = rate(kL2);
  return ApplyTo(variable, ResourceApplyProximalAdagrad, ApplyProximalAdagrad, scope,
                 GetSlot(variable, kAccumulator).handle, learning_rate, l1, l2, gradient,
                 ApplyAttrs{.use_locking = use_locking()});
}

Operation ProximalAdagradOptimizer::ApplySparse(const Scope& scope, const Variable& variable,
                                                Output values, Output rows) {
  const auto rate = [&](const char* name) { return Hyperparameter(scope, name, variable); };
  const Output learning_rate = rate(kRate), l1 = rate(kL1), l2 = rate(kL2);
  return ApplyTo(variable, ResourceSparseApplyProximalAdagrad, SparseApplyProximalAdagrad, scope,
                 GetSlot(variable, kAccumulator).handle, learning_rate, l1, l2, values, rows,
                 ApplyAttrs{.use_locking = use_locking()});
}

}  // namespace millrace
