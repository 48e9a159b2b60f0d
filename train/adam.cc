// SPDX-License-Identifier: Apache-2.0
#include "train/adam.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "core/status.h"
#include "graph/node_builder.h"
#include "ops/array/identity.h"
#include "ops/state/state.h"
#include "train/beside_variable.h"

namespace millrace {

struct AdamOptimizer::State {
  AdamOptions options;
  Variable beta1_power, beta2_power;
  absl::flat_hash_map<std::string, std::pair<Variable, Variable>> slots;  // m and v by variable
};

AdamOptimizer::AdamOptimizer(AdamOptions options)
    : Optimizer(options.name, options.use_locking), state_(std::make_unique<State>()) {
  state_->options = std::move(options);
}
AdamOptimizer::~AdamOptimizer() = default;

Status AdamOptimizer::CheckOptions(const Scope& scope) const {
  const AdamOptions& o = state_->options;
  MR_RETURN_IF_ERROR(CheckOption(scope, "learning_rate", o.learning_rate));
  MR_RETURN_IF_ERROR(CheckOption(scope, "beta1", o.beta1));
  MR_RETURN_IF_ERROR(CheckOption(scope, "beta2", o.beta2));
  return CheckOption(scope, "epsilon", o.epsilon);
}

void AdamOptimizer::Prepare(const Scope& scope, const std::vector<Variable>& variables) {
  // The powers live with the first variable by name, so that all workers agree where they are.
  const Variable& first =
      *std::min_element(variables.begin(), variables.end(),
                        [](const Variable& a, const Variable& b) { return a.name < b.name; });
  const Scope near = scope.ColocatedWith(first.handle.op());
  VariableAttrs attrs;
  attrs.trainable = false;
  const auto power = [&](const char* name, const NumberOrOutput& value) {
    const Output initial =
        ScalarLike(near.WithName(std::string(name) + "/initial_value"), first, value);
    return MakeVariable(near.WithName(name), initial, attrs);
  };
  if (!IsMade(state_->beta1_power, first)) {
    state_->beta1_power = power("beta1_power", state_->options.beta1);
    state_->beta2_power = power("beta2_power", state_->options.beta2);
  }
  for (const Variable& variable : variables) {
    if (IsMade(state_->slots[variable.name].first, variable)) continue;
    Variable m = MakeSlot(scope, variable, 0, name());
    Variable v = MakeSlot(scope, variable, 0, name());
    state_->slots[variable.name] = {std::move(m), std::move(v)};
  }
}

Operation AdamOptimizer::ApplyDense(const Scope& scope, const Variable& variable, Output gradient) {
  const auto& [m, v] = state_->slots[variable.name];
  const AdamOptions& o = state_->options;
  const auto number = [&](const char* name, const NumberOrOutput& value) {
    return ScalarLike(scope.WithName(name), variable, value);
  };
  return NodeBuilder(scope.WithName("ResourceApplyAdam"), "ResourceApplyAdam")
      .Input(variable.handle)
      .Input(m.handle)
      .Input(v.handle)
      .Input(CastTo(scope, variable, state_->beta1_power))
      .Input(CastTo(scope, variable, state_->beta2_power))
      .Input(number("learning_rate", o.learning_rate))
      .Input(number("beta1", o.beta1))
      .Input(number("beta2", o.beta2))
      .Input(number("epsilon", o.epsilon))
      .Input(gradient)
      .Attr("use_locking", use_locking())
      .Finish()
      .operation();
}

// As TensorFlow's: not lazy. m and v decay over the whole variable, the gradient's rows are added,
// then the whole variable moves.
Operation AdamOptimizer::ApplySparse(const Scope& scope, const Variable& variable, Output values,
                                     Output rows) {
  const auto& [m, v] = state_->slots[variable.name];
  const AdamOptions& o = state_->options;
  const auto number = [&](const NumberOrOutput& value) {
    return ScalarLike(scope, variable, value);
  };
  const auto binary = [&](const Scope& s, const char* op, Output a, Output b) {
    return NodeBuilder(s, op).Input(a).Input(b).Finish().output(0);
  };
  const auto unary = [&](const Scope& s, const char* op, Output a) {
    return NodeBuilder(s, op).Input(a).Finish().output(0);
  };
  const Output beta1 = number(o.beta1);
  const Output beta2 = number(o.beta2);
  // lr * sqrt(1 - beta2^t) / (1 - beta1^t)
  const Output one = number(1);
  const Output beta1_power = CastTo(scope, variable, state_->beta1_power);
  const Output beta2_power = CastTo(scope, variable, state_->beta2_power);
  const Output rate = binary(scope, "RealDiv",
                             binary(scope, "Mul", number(o.learning_rate),
                                    unary(scope, "Sqrt", binary(scope, "Sub", one, beta2_power))),
                             binary(scope, "Sub", one, beta1_power));
  const auto rest = [&](const NumberOrOutput& beta) {
    return beta.is_number() ? number(1 - beta.number()) : binary(scope, "Sub", one, number(beta));
  };
  const auto decay_and_add = [&](const Variable& slot, Output beta, Output weight, Output addend) {
    const Output old = ReadVariableOp(scope, slot.handle, slot.dtype);
    const Operation decayed = AssignVariableOp(scope, slot.handle, binary(scope, "Mul", old, beta));
    const Scope then = scope.WithControlDependencies({decayed});
    const Operation added =
        ResourceScatterAdd(then, slot.handle, rows, binary(scope, "Mul", addend, weight));
    return ReadVariableOp(scope.WithControlDependencies({added}), slot.handle, slot.dtype);
  };
  const Output new_m = decay_and_add(m, beta1, rest(o.beta1), values);
  const Output new_v = decay_and_add(v, beta2, rest(o.beta2), binary(scope, "Mul", values, values));
  const Output move = binary(scope, "RealDiv", binary(scope, "Mul", new_m, rate),
                             binary(scope, "Add", unary(scope, "Sqrt", new_v), number(o.epsilon)));
  return AssignSubVariableOp(scope, variable.handle, move);
}

std::vector<Operation> AdamOptimizer::Finish(const Scope& scope,
                                             const std::vector<Operation>& updates) {
  // The powers used in step t are beta^t; they move on only after every update of the step. They
  // are told once of all of them.
  const Scope beside = NextTo(scope, state_->beta1_power);
  const Operation updated = Group(beside.WithName("updated"), updates);
  const Scope after = beside.WithControlDependencies({updated});
  std::vector<Operation> all = {updated};
  const auto multiply = [&](const Variable& power, const NumberOrOutput& beta) {
    const Output product = NodeBuilder(after, "Mul")
                               .Input(power.value)
                               .Input(ScalarLike(after, power, beta))
                               .Finish()
                               .output(0);
    all.push_back(AssignVariableOp(after, power.handle, product));
  };
  multiply(state_->beta1_power, state_->options.beta1);
  multiply(state_->beta2_power, state_->options.beta2);
  return all;
}

}  // namespace millrace
