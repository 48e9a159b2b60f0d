// SPDX-License-Identifier: Apache-2.0
#include "train/adagrad.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "core/status.h"
#include "graph/node_builder.h"
#include "train/beside_variable.h"

namespace millrace {

struct AdagradOptimizer::State {
  AdagradOptions options;
  absl::flat_hash_map<std::string, Variable> accumulators;
};

AdagradOptimizer::AdagradOptimizer(AdagradOptions options)
    : Optimizer(options.name, options.use_locking), state_(std::make_unique<State>()) {
  state_->options = std::move(options);
}
AdagradOptimizer::~AdagradOptimizer() = default;

Status AdagradOptimizer::CheckOptions(const Scope& scope) const {
  if (!(state_->options.initial_accumulator_value > 0)) {
    return InvalidArgument("Adagrad '", name(), "': initial_accumulator_value must be > 0, got ",
                           state_->options.initial_accumulator_value);
  }
  return CheckOption(scope, "learning_rate", state_->options.learning_rate);
}

void AdagradOptimizer::Prepare(const Scope& scope, const std::vector<Variable>& variables) {
  for (const Variable& variable : variables) {
    Variable& accumulator = state_->accumulators[variable.name];
    if (IsMade(accumulator, variable)) continue;
    accumulator = MakeSlot(scope, variable, state_->options.initial_accumulator_value, name());
  }
}

Operation AdagradOptimizer::ApplyDense(const Scope& scope, const Variable& variable,
                                       Output gradient) {
  return NodeBuilder(scope.WithName("ResourceApplyAdagrad"), "ResourceApplyAdagrad")
      .Input(variable.handle)
      .Input(state_->accumulators[variable.name].handle)
      .Input(ScalarLike(scope.WithName("learning_rate"), variable, state_->options.learning_rate))
      .Input(gradient)
      .Attr("use_locking", use_locking())
      .Finish()
      .operation();
}

Operation AdagradOptimizer::ApplySparse(const Scope& scope, const Variable& variable, Output values,
                                        Output rows) {
  return NodeBuilder(scope.WithName("ResourceSparseApplyAdagrad"), "ResourceSparseApplyAdagrad")
      .Input(variable.handle)
      .Input(state_->accumulators[variable.name].handle)
      .Input(ScalarLike(scope.WithName("learning_rate"), variable, state_->options.learning_rate))
      .Input(values)
      .Input(rows)
      .Attr("use_locking", use_locking())
      .Finish()
      .operation();
}

}  // namespace millrace
