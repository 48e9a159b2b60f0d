// SPDX-License-Identifier: Apache-2.0
#include "train/gradient_descent.h"

#include <utility>
#include <vector>

#include "graph/node_builder.h"
#include "ops/state/state.h"
#include "train/beside_variable.h"

namespace millrace {

struct GradientDescentOptimizer::State {
  GradientDescentOptions options;
};

GradientDescentOptimizer::GradientDescentOptimizer(GradientDescentOptions options)
    : Optimizer(options.name, options.use_locking), state_(std::make_unique<State>()) {
  state_->options = std::move(options);
}
GradientDescentOptimizer::~GradientDescentOptimizer() = default;

Status GradientDescentOptimizer::CheckOptions(const Scope& scope) const {
  return CheckOption(scope, "learning_rate", state_->options.learning_rate);
}

void GradientDescentOptimizer::Prepare(const Scope&, const std::vector<Variable>&) {}

Operation GradientDescentOptimizer::ApplyDense(const Scope& scope, const Variable& variable,
                                               Output gradient) {
  return NodeBuilder(scope.WithName("ResourceApplyGradientDescent"), "ResourceApplyGradientDescent")
      .Input(variable.handle)
      .Input(ScalarLike(scope.WithName("learning_rate"), variable, state_->options.learning_rate))
      .Input(gradient)
      .Attr("use_locking", use_locking())
      .Finish()
      .operation();
}

Operation GradientDescentOptimizer::ApplySparse(const Scope& scope, const Variable& variable,
                                                Output values, Output rows) {
  const Output scaled = NodeBuilder(scope, "Mul")
                            .Input(values)
                            .Input(ScalarLike(scope.WithName("learning_rate"), variable,
                                              state_->options.learning_rate))
                            .Finish()
                            .output(0);
  return ResourceScatterSub(scope, variable.handle, rows, scaled);
}

}  // namespace millrace
