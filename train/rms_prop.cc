// SPDX-License-Identifier: Apache-2.0
#include "train/rms_prop.h"

#include <vector>

#include "ops/training/training_ops.h"
#include "train/apply_to.h"

namespace millrace {
namespace {

constexpr char kSquares[] = "rms", kMean[] = "mg";
constexpr char kMomentum[] = "momentum";  // the slot of the last step, and the hyperparameter

std::vector<OptimizerSpec::Slot> SlotsOf(const RMSPropOptions& options) {
  if (options.centered) return {{kSquares, 1}, {kMean}, {kMomentum}};
  return {{kSquares, 1}, {kMomentum}};
}

}  // namespace

RMSPropOptimizer::RMSPropOptimizer(const RMSPropOptions& options)
    : Optimizer({.name = options.name,
                 .use_locking = options.use_locking,
                 .hyperparameters = {{"learning_rate", options.learning_rate},
                                     {"decay", options.decay},
                                     {kMomentum, options.momentum},
                                     {"epsilon", options.epsilon}},
                 .slots = SlotsOf(options)}),
      centered_(options.centered) {}

Operation RMSPropOptimizer::ApplyDense(const Scope& scope, const Variable& variable,
                                       Output gradient) {
  const auto slot = [&](const char* name) { return GetSlot(variable, name).handle; };
  const auto rate = [&](const char* name) { return Hyperparameter(scope, name, variable); };
  const Output learning_rate = rate("learning_rate"), decay = rate("decay"),
               momentum = rate(kMomentum), epsilon = rate("epsilon");
  const ApplyRMSPropAttrs attrs = {.use_locking = use_locking()};
  if (centered_) {
    return ApplyTo(variable, ResourceApplyCenteredRMSProp, ApplyCenteredRMSProp, scope, slot(kMean),
                   slot(kSquares), slot(kMomentum), learning_rate, decay, momentum, epsilon,
                   gradient, attrs);
  }
  return ApplyTo(variable, ResourceApplyRMSProp, ApplyRMSProp, scope, slot(kSquares),
                 slot(kMomentum), learning_rate, decay, momentum, epsilon, gradient, attrs);
}

Operation RMSPropOptimizer::ApplySparse(const Scope& scope, const Variable& variable, Output values,
                                        Output rows) {
  const auto slot = [&](const char* name) { return GetSlot(variable, name).handle; };
  const auto rate = [&](const char* name) { return Hyperparameter(scope, name, variable); };
  const Output learning_rate = rate("learning_rate"), decay = rate("decay"),
               momentum = rate(kMomentum), epsilon = rate("epsilon");
  const ApplyRMSPropAttrs attrs = {.use_locking = use_locking()};
  if (centered_) {
    return ApplyTo(variable, ResourceSparseApplyCenteredRMSProp, SparseApplyCenteredRMSProp, scope,
                   slot(kMean), slot(kSquares), slot(kMomentum), learning_rate, decay, momentum,
                   epsilon, values, rows, attrs);
  }
  return ApplyTo(variable, ResourceSparseApplyRMSProp, SparseApplyRMSProp, scope, slot(kSquares),
                 slot(kMomentum), learning_rate, decay, momentum, epsilon, values, rows, attrs);
}

}  // namespace millrace
