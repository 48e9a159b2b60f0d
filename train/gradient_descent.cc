// SPDX-License-Identifier: Apache-2.0
#include "train/gradient_descent.h"

#include <utility>

#include "graph/node_builder.h"
#include "ops/state/state.h"

namespace millrace {

GradientDescentOptimizer::GradientDescentOptimizer(const GradientDescentOptions& options)
    : Optimizer({.name = options.name,
                 .use_locking = options.use_locking,
                 .hyperparameters = {{"learning_rate", options.learning_rate}}}) {}

Operation GradientDescentOptimizer::ApplyDense(const Scope& scope, const Variable& variable,
                                               Output gradient) {
  return NodeBuilder(scope.WithName("ResourceApplyGradientDescent"), "ResourceApplyGradientDescent")
      .Input(variable.handle)
      .Input(Hyperparameter(scope, "learning_rate", variable))
      .Input(gradient)
      .Attr("use_locking", use_locking())
      .Finish()
      .operation();
}

Operation GradientDescentOptimizer::ApplySparse(const Scope& scope, const Variable& variable,
                                                Output values, Output rows) {
  const Output scaled = NodeBuilder(scope, "Mul")
                            .Input(values)
                            .Input(Hyperparameter(scope, "learning_rate", variable))
                            .Finish()
                            .output(0);
  return ResourceScatterSub(scope, variable.handle, rows, scaled);
}

}  // namespace millrace
