// SPDX-License-Identifier: Apache-2.0
#include "train/momentum.h"

#include <utility>

#include "ops/training/training_ops.h"

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
  return ResourceApplyMomentum(scope, variable.handle, GetSlot(variable, kMomentum).handle,
                               Hyperparameter(scope, "learning_rate", variable),
                               std::move(gradient), Hyperparameter(scope, kMomentum, variable),
                               {.use_locking = use_locking(), .use_nesterov = use_nesterov_});
}

Operation MomentumOptimizer::ApplySparse(const Scope& scope, const Variable& variable,
                                         Output values, Output rows) {
  return ResourceSparseApplyMomentum(scope, variable.handle, GetSlot(variable, kMomentum).handle,
                                     Hyperparameter(scope, "learning_rate", variable),
                                     std::move(values), std::move(rows),
                                     Hyperparameter(scope, kMomentum, variable),
                                     {.use_locking = use_locking(), .use_nesterov = use_nesterov_});
}

}  // namespace millrace
