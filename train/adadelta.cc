// SPDX-License-Identifier: Apache-2.0
#include "train/adadelta.h"

#include "ops/training/other_training_ops.h"
#include "train/apply_to.h"

namespace millrace {
namespace {

constexpr char kAccum[] = "accum", kUpdates[] = "accum_update";

}  // namespace

AdadeltaOptimizer::AdadeltaOptimizer(const AdadeltaOptions& options)
    : Optimizer({.name = options.name,
                 .use_locking = options.use_locking,
                 .hyperparameters = {{"lr", options.learning_rate},
                                     {"rho", options.rho},
                                     {"epsilon", options.epsilon}},
                 .slots = {{kAccum}, {kUpdates}}}) {}

Operation AdadeltaOptimizer::ApplyDense(const Scope& scope, const Variable& variable,
                                        Output gradient) {
  const auto slot = [&](const char* name) { return GetSlot(variable, name).handle; };
  const auto rate = [&](const char* name) { return Hyperparameter(scope, name, variable); };
  const Output lr = rate("lr"), rho = rate("rho"), epsilon = rate("epsilon");
  return ApplyTo(variable, ResourceApplyAdadelta, ApplyAdadelta, scope, slot(kAccum),
                 slot(kUpdates), lr, rho, epsilon, gradient,
                 ApplyAttrs{.use_locking = use_locking()});
}

Operation AdadeltaOptimizer::ApplySparse(const Scope& scope, const Variable& variable,
                                         Output values, Output rows) {
  const auto slot = [&](const char* name) { return GetSlot(variable, name).handle; };
  const auto rate = [&](const char* name) { return Hyperparameter(scope, name, variable); };
  const Output lr = rate("lr"), rho = rate("rho"), epsilon = rate("epsilon");
  return ApplyTo(variable, ResourceSparseApplyAdadelta, SparseApplyAdadelta, scope, slot(kAccum),
                 slot(kUpdates), lr, rho, epsilon, values, rows,
                 ApplyAttrs{.use_locking = use_locking()});
}

}  // namespace millrace
