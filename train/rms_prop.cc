// SPDX-License-Identifier: Apache-2.0
#include "train/rms_prop.h"

#include <utility>

#include "absl/container/flat_hash_map.h"
#include "core/status.h"
#include "ops/training/training_ops.h"
#include "train/beside_variable.h"

namespace millrace {

struct RMSPropOptimizer::State {
  struct Slots {
    Variable rms;
    Variable mean;  // invalid unless centered
    Variable step;
  };
  // Scalars of a variable's dtype.
  struct Rates {
    Output learning_rate, decay, momentum, epsilon;
  };
  Rates RatesFor(const Scope& scope, const Variable& variable) const {
    const auto rate = [&](const char* name, const NumberOrOutput& value) {
      return ScalarLike(scope.WithName(name), variable, value);
    };
    return {rate("learning_rate", options.learning_rate), rate("decay", options.decay),
            rate("momentum", options.momentum), rate("epsilon", options.epsilon)};
  }

  RMSPropOptions options;
  absl::flat_hash_map<std::string, Slots> slots;
};

RMSPropOptimizer::RMSPropOptimizer(RMSPropOptions options)
    : Optimizer(options.name, options.use_locking), state_(std::make_unique<State>()) {
  state_->options = std::move(options);
}
RMSPropOptimizer::~RMSPropOptimizer() = default;

Status RMSPropOptimizer::CheckOptions(const Scope& scope) const {
  const RMSPropOptions& o = state_->options;
  MR_RETURN_IF_ERROR(CheckOption(scope, "learning_rate", o.learning_rate));
  MR_RETURN_IF_ERROR(CheckOption(scope, "decay", o.decay));
  MR_RETURN_IF_ERROR(CheckOption(scope, "momentum", o.momentum));
  return CheckOption(scope, "epsilon", o.epsilon);
}

void RMSPropOptimizer::Prepare(const Scope& scope, const std::vector<Variable>& variables) {
  for (const Variable& variable : variables) {
    State::Slots& slots = state_->slots[variable.name];
    if (IsMade(slots.rms, variable)) continue;
    slots.rms = MakeSlot(scope, variable, 1, name());
    if (state_->options.centered) slots.mean = MakeSlot(scope, variable, 0, name());
    slots.step = MakeSlot(scope, variable, 0, name());
  }
}

Operation RMSPropOptimizer::ApplyDense(const Scope& scope, const Variable& variable,
                                       Output gradient) {
  const State::Slots& slots = state_->slots[variable.name];
  const State::Rates r = state_->RatesFor(scope, variable);
  const ApplyRMSPropAttrs attrs = {.use_locking = use_locking()};
  if (state_->options.centered) {
    return ResourceApplyCenteredRMSProp(scope, variable.handle, slots.mean.handle, slots.rms.handle,
                                        slots.step.handle, r.learning_rate, r.decay, r.momentum,
                                        r.epsilon, std::move(gradient), attrs);
  }
  return ResourceApplyRMSProp(scope, variable.handle, slots.rms.handle, slots.step.handle,
                              r.learning_rate, r.decay, r.momentum, r.epsilon, std::move(gradient),
                              attrs);
}

Operation RMSPropOptimizer::ApplySparse(const Scope& scope, const Variable& variable, Output values,
                                        Output rows) {
  const State::Slots& slots = state_->slots[variable.name];
  const State::Rates r = state_->RatesFor(scope, variable);
  const ApplyRMSPropAttrs attrs = {.use_locking = use_locking()};
  if (state_->options.centered) {
    return ResourceSparseApplyCenteredRMSProp(
        scope, variable.handle, slots.mean.handle, slots.rms.handle, slots.step.handle,
        r.learning_rate, r.decay, r.momentum, r.epsilon, std::move(values), std::move(rows), attrs);
  }
  return ResourceSparseApplyRMSProp(scope, variable.handle, slots.rms.handle, slots.step.handle,
                                    r.learning_rate, r.decay, r.momentum, r.epsilon,
                                    std::move(values), std::move(rows), attrs);
}

}  // namespace millrace
