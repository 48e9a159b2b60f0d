// SPDX-License-Identifier: Apache-2.0
#include "train/adam.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "layers/variable_update.h"
#include "ops/array/identity.h"
#include "ops/math/cwise_binary.h"
#include "ops/math/cwise_unary.h"
#include "ops/training/training_ops.h"
#include "train/apply_to.h"

namespace millrace {
namespace {

constexpr char kBeta1[] = "beta1", kBeta2[] = "beta2";
constexpr char kBeta1Power[] = "beta1_power", kBeta2Power[] = "beta2_power";
constexpr char kMean[] = "m", kSquares[] = "v";

}  // namespace

AdamOptimizer::AdamOptimizer(const AdamOptions& options)
    : Optimizer({.name = options.name,
                 .use_locking = options.use_locking,
                 .hyperparameters = {{"learning_rate", options.learning_rate},
                                     {kBeta1, options.beta1},
                                     {kBeta2, options.beta2},
                                     {"epsilon", options.epsilon}},
                 .slots = {{kMean}, {kSquares}}}) {}

void AdamOptimizer::Prepare(const Scope& scope, const std::vector<Variable>& variables) {
  // The powers live with the first variable by name, so that all workers agree where they are.
  const Variable& first =
      *std::min_element(variables.begin(), variables.end(),
                        [](const Variable& a, const Variable& b) { return a.name < b.name; });
  MakeNonSlot(scope, kBeta1Power, first, given(kBeta1));
  MakeNonSlot(scope, kBeta2Power, first, given(kBeta2));
  Optimizer::Prepare(scope, variables);
}

Operation AdamOptimizer::ApplyDense(const Scope& scope, const Variable& variable, Output gradient) {
  const auto power = [&](const char* name) {
    return ScalarIn(scope, GetNonSlot(scope, name).value, variable.value);
  };
  // In this order: a hyperparameter that is an Output may make nodes.
  const Output beta1_power = power(kBeta1Power);
  const Output beta2_power = power(kBeta2Power);
  const Output rate = Hyperparameter(scope, "learning_rate", variable);
  const Output beta1 = Hyperparameter(scope, kBeta1, variable);
  const Output beta2 = Hyperparameter(scope, kBeta2, variable);
  const Output epsilon = Hyperparameter(scope, "epsilon", variable);
  return ApplyTo(variable, ResourceApplyAdam, ApplyAdam, scope, GetSlot(variable, kMean).handle,
                 GetSlot(variable, kSquares).handle, beta1_power, beta2_power, rate, beta1, beta2,
                 epsilon, gradient, ApplyAdamAttrs{.use_locking = use_locking()});
}

// As TensorFlow's: not lazy. m and v decay over the whole variable, the gradient's rows are added,
// then the whole variable moves.
Operation AdamOptimizer::ApplySparse(const Scope& scope, const Variable& variable, Output values,
                                     Output rows) {
  const auto power = [&](const char* name) {
    return ScalarIn(scope, GetNonSlot(scope, name).value, variable.value);
  };
  const Output beta1 = Hyperparameter(scope, kBeta1, variable);
  const Output beta2 = Hyperparameter(scope, kBeta2, variable);
  const Output one = ScalarIn(scope, 1, variable.value);
  // lr * sqrt(1 - beta2^t) / (1 - beta1^t)
  const Output rate = RealDiv(scope,
                              Mul(scope, Hyperparameter(scope, "learning_rate", variable),
                                  Sqrt(scope, Sub(scope, one, power(kBeta2Power)))),
                              Sub(scope, one, power(kBeta1Power)));
  // 1 - beta, rounded once where beta is a number.
  const auto rest = [&](const char* name, const Output& beta) {
    const NumberOrOutput& number = given(name);
    return number.is_number() ? ScalarIn(scope, 1 - number.number(), variable.value)
                              : Sub(scope, one, beta);
  };
  const auto decay_and_add = [&](const char* name, Output beta, Output weight, Output addend) {
    const Variable slot = GetSlot(variable, name);
    const Output old = ReadVariable(scope, slot);
    const Operation decayed = AssignVariable(scope, slot, Mul(scope, old, beta));
    const Scope then = scope.WithControlDependencies({decayed});
    const Operation added = ScatterAddVariable(then, slot, rows, Mul(scope, addend, weight));
    return ReadVariable(scope.WithControlDependencies({added}), slot);
  };
  const Output mean = decay_and_add(kMean, beta1, rest(kBeta1, beta1), values);
  const Output squares =
      decay_and_add(kSquares, beta2, rest(kBeta2, beta2), Mul(scope, values, values));
  const Output move =
      RealDiv(scope, Mul(scope, mean, rate),
              Add(scope, Sqrt(scope, squares), Hyperparameter(scope, "epsilon", variable)));
  return AssignSubVariable(scope, variable, move);
}

std::vector<Operation> AdamOptimizer::Finish(const Scope& scope,
                                             const std::vector<Operation>& updates) {
  const Variable beta1_power = GetNonSlot(scope, kBeta1Power);
  if (!beta1_power.valid()) return updates;  // an error of the scope
  // The powers used in step t are beta^t; they move on only after every update of the step. They
  // are told once of all of them.
  const Scope beside = scope.ColocatedWith(beta1_power.handle.op());
  const Operation updated = Group(beside.WithName("updated"), updates);
  const Scope after = beside.WithControlDependencies({updated});
  std::vector<Operation> all = {updated};
  for (const auto& [name, beta] :
       {std::pair(kBeta1Power, kBeta1), std::pair(kBeta2Power, kBeta2)}) {
    const Variable power = GetNonSlot(scope, name);
    const Output product = Mul(after, power.value, ScalarIn(after, given(beta), power.value));
    all.push_back(AssignVariable(after, power, product));
  }
  return all;
}

}  // namespace millrace
