// SPDX-License-Identifier: Apache-2.0
#include "train/momentum.h"

#include "ops/training/training_ops.h"
#include "train/apply_to.h"

namespace millrace {
namespace {

constexpr char kMomentum[] = "momentum";  // the slot and the hyperparameter

}  // namespace

MomentumOptimizer::MomentumOptimizer(const MomentumOptions& options)
    : Optimizer({.name = options.name,
                 .use_locking = options.use_locking,
                 .hyperparameters = {{"learning_rate", options.learning_rate},
                                     {kMomentum, options.momentum}},
                 .slots = {{kMomentum}}}),
      use_nesterov_(options.use_nesterov) {}

Operation MomentumOptimizer::ApplyDense(const Scope& scope, const Variable& variable,
                                        Output gradient) {
  const Output rate = Hyperparameter(scope, "learning_rate", variable);
  const Output momentum = Hyperparameter(scope, kMomentum, variable);
  return ApplyTo(variable, ResourceApplyMomentum, ApplyMomentum, scope,
                 GetSlot(variable, kMomentum).handle, rate, gradient, momentum,
                 ApplyMomentumAttrs{.use_locking = use_locking(), .use_nesterov = use_nesterov_});
}

Operation MomentumOptimizer::ApplySparse(const Scope& scope, const Variable& variable,
                                         Output values, Output rows) {
  const Output rate = Hyperparameter(scope, "learning_rate", variable);
  const Output momentum = Hyperparameter(scope, kMomentum, variable);
  return ApplyTo(variable, ResourceSparseApplyMomentum, SparseApplyMomentum, scope,
                 GetSlot(variable, kMomentum).handle, rate, values, rows, momentum,
                 ApplyMomentumAttrs{.use_locking = use_locking(), .use_nesterov = use_nesterov_});
}

}  // namespace millrace
