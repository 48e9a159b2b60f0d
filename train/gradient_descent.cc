// SPDX-License-Identifier: Apache-2.0
#include "train/gradient_descent.h"

#include <utility>

#include "ops/math/cwise_binary.h"
#include "ops/state/state.h"
#include "ops/training/training_ops.h"

namespace millrace {

GradientDescentOptimizer::GradientDescentOptimizer(const GradientDescentOptions& options)
    : Optimizer({.name = options.name,
                 .use_locking = options.use_locking,
                 .hyperparameters = {{"learning_rate", options.learning_rate}}}) {}

Operation GradientDescentOptimizer::ApplyDense(const Scope& scope, const Variable& variable,
                                               Output gradient) {
  return ResourceApplyGradientDescent(
      scope.WithName("ResourceApplyGradientDescent"), variable.handle,
      Hyperparameter(scope, "learning_rate", variable), gradient, {.use_locking = use_locking()});
}

Operation GradientDescentOptimizer::ApplySparse(const Scope& scope, const Variable& variable,
                                                Output values, Output rows) {
  const Output scaled = Mul(scope, values, Hyperparameter(scope, "learning_rate", variable));
  return ResourceScatterSub(scope, variable.handle, rows, scaled);
}

}  // namespace millrace
