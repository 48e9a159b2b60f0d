// SPDX-License-Identifier: Apache-2.0
#include "train/momentum.h"

#include <utility>

#include "absl/container/flat_hash_map.h"
#include "core/status.h"
#include "ops/training/training_ops.h"
#include "train/beside_variable.h"

namespace millrace {

struct MomentumOptimizer::State {
  MomentumOptions options;
  absl::flat_hash_map<std::string, Variable> accumulators;
};

MomentumOptimizer::MomentumOptimizer(MomentumOptions options)
    : Optimizer(options.name, options.use_locking), state_(std::make_unique<State>()) {
  state_->options = std::move(options);
}
MomentumOptimizer::~MomentumOptimizer() = default;

Status MomentumOptimizer::CheckOptions(const Scope& scope) const {
  MR_RETURN_IF_ERROR(CheckOption(scope, "learning_rate", state_->options.learning_rate));
  return CheckOption(scope, "momentum", state_->options.momentum);
}

void MomentumOptimizer::Prepare(const Scope& scope, const std::vector<Variable>& variables) {
  for (const Variable& variable : variables) {
    Variable& accumulator = state_->accumulators[variable.name];
    if (!IsMade(accumulator, variable)) accumulator = MakeSlot(scope, variable, 0, name());
  }
}

Operation MomentumOptimizer::ApplyDense(const Scope& scope, const Variable& variable,
                                        Output gradient) {
  const MomentumOptions& o = state_->options;
  return ResourceApplyMomentum(
      scope, variable.handle, state_->accumulators[variable.name].handle,
      ScalarLike(scope.WithName("learning_rate"), variable, o.learning_rate), std::move(gradient),
      ScalarLike(scope.WithName("momentum"), variable, o.momentum),
      {.use_locking = use_locking(), .use_nesterov = o.use_nesterov});
}

Operation MomentumOptimizer::ApplySparse(const Scope& scope, const Variable& variable,
                                         Output values, Output rows) {
  const MomentumOptions& o = state_->options;
  return ResourceSparseApplyMomentum(
      scope, variable.handle, state_->accumulators[variable.name].handle,
      ScalarLike(scope.WithName("learning_rate"), variable, o.learning_rate), std::move(values),
      std::move(rows), ScalarLike(scope.WithName("momentum"), variable, o.momentum),
      {.use_locking = use_locking(), .use_nesterov = o.use_nesterov});
}

}  // namespace millrace
