// SPDX-License-Identifier: Apache-2.0
#include "train/gradient_descent.h"

#include "layers/variable_update.h"
#include "ops/math/cwise_binary.h"
#include "ops/training/training_ops.h"
#include "train/apply_to.h"

namespace millrace {

GradientDescentOptimizer::GradientDescentOptimizer(const GradientDescentOptions& options)
    : Optimizer({.name = options.name,
                 .use_locking = options.use_locking,
                 .hyperparameters = {{"learning_rate", options.learning_rate}}}) {}

Operation GradientDescentOptimizer::ApplyDense(const Scope& scope, const Variable& variable,
                                               Output gradient) {
  const Output rate = Hyperparameter(scope, "learning_rate", variable);
  return ApplyTo(variable, ResourceApplyGradientDescent, ApplyGradientDescent, scope, rate,
                 gradient, ApplyGradientDescentAttrs{.use_locking = use_locking()});
}

Operation GradientDescentOptimizer::ApplySparse(const Scope& scope, const Variable& variable,
                                                Output values, Output rows) {
  const Output scaled = Mul(scope, values, Hyperparameter(scope, "learning_rate", variable));
  return ScatterSubVariable(scope, variable, rows, scaled);
}

}  // namespace millrace
