// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_TRAINING_TRAINING_OPS_H_
#define MILLRACE_OPS_TRAINING_TRAINING_OPS_H_

// The update rules of optimizers: each changes a variable (and its slots) by a gradient.
//
// Apply* take reference variables and return the variable; ResourceApply* take
// handles and return nothing. Variable, slots and gradient have one shape and one floating
// dtype; hyperparameters are scalars. Sparse forms change the rows that `indices` names: row
// indices[i] by grad[i].
//
// A dense update is one pass over the memory, serial per variable; a reader sees the values before
// or after it. Row updates work in place; a row is never torn. With use_locking a row update is
// exclusive; indices that repeat are applied one after the other.
//
// Errors: FailedPrecondition for an uninitialised variable or slot; InvalidArgument for a shape
// that differs ("var and grad do not have the same shape [2] [3]"), a hyperparameter that is no
// scalar, an index out of range.

#include "graph/node_builder.h"

namespace millrace {

struct ApplyGradientDescentAttrs {
  bool use_locking = false;
};

// var -= alpha * delta.
inline Output ApplyGradientDescent(ScopeAt at, Output var, Output alpha, Output delta,
                                   const ApplyGradientDescentAttrs& attrs = {}) {
  return NodeBuilder(at, "ApplyGradientDescent")
      .Input(var)
      .Input(alpha)
      .Input(delta)
      .Attr("use_locking", attrs.use_locking)
      .Finish()
      .output(0);
}

inline Operation ResourceApplyGradientDescent(ScopeAt at, Output var, Output alpha, Output delta,
                                              const ApplyGradientDescentAttrs& attrs = {}) {
  return NodeBuilder(at, "ResourceApplyGradientDescent")
      .Input(var)
      .Input(alpha)
      .Input(delta)
      .Attr("use_locking", attrs.use_locking)
      .Finish()
      .operation();
}

struct ApplyAdamAttrs {
  bool use_locking = false;
  bool use_nesterov = false;
};

// Adam (Kingma and Ba, 2015), in one pass:
//   lr_t = lr * sqrt(1 - beta2_power) / (1 - beta1_power)
//   m += (1 - beta1) * (grad - m)
//   v += (1 - beta2) * (grad^2 - v)
//   var -= lr_t * m / (sqrt(v) + epsilon)
// with use_nesterov (beta1 * m + (1 - beta1) * grad) takes the place of m in the last line. The
// powers are those of the step that is made (beta1 in the first).
inline Output ApplyAdam(ScopeAt at, Output var, Output m, Output v, Output beta1_power,
                        Output beta2_power, Output lr, Output beta1, Output beta2, Output epsilon,
                        Output grad, const ApplyAdamAttrs& attrs = {}) {
  return NodeBuilder(at, "ApplyAdam")
      .Input(var)
      .Input(m)
      .Input(v)
      .Input(beta1_power)
      .Input(beta2_power)
      .Input(lr)
      .Input(beta1)
      .Input(beta2)
      .Input(epsilon)
      .Input(grad)
      .Attr("use_locking", attrs.use_locking)
      .Attr("use_nesterov", attrs.use_nesterov)
      .Finish()
      .output(0);
}

inline Operation ResourceApplyAdam(ScopeAt at, Output var, Output m, Output v, Output beta1_power,
                                   Output beta2_power, Output lr, Output beta1, Output beta2,
                                   Output epsilon, Output grad, const ApplyAdamAttrs& attrs = {}) {
  return NodeBuilder(at, "ResourceApplyAdam")
      .Input(var)
      .Input(m)
      .Input(v)
      .Input(beta1_power)
      .Input(beta2_power)
      .Input(lr)
      .Input(beta1)
      .Input(beta2)
      .Input(epsilon)
      .Input(grad)
      .Attr("use_locking", attrs.use_locking)
      .Attr("use_nesterov", attrs.use_nesterov)
      .Finish()
      .operation();
}

struct ApplyAdagradAttrs {
  bool use_locking = false;
  bool update_slots = true;
};

// accum += grad^2 (unless update_slots is false); var -= lr * grad / sqrt(accum).
inline Output ApplyAdagrad(ScopeAt at, Output var, Output accum, Output lr, Output grad,
                           const ApplyAdagradAttrs& attrs = {}) {
  return NodeBuilder(at, "ApplyAdagrad")
      .Input(var)
      .Input(accum)
      .Input(lr)
      .Input(grad)
      .Attr("use_locking", attrs.use_locking)
      .Attr("update_slots", attrs.update_slots)
      .Finish()
      .output(0);
}

inline Operation ResourceApplyAdagrad(ScopeAt at, Output var, Output accum, Output lr, Output grad,
                                      const ApplyAdagradAttrs& attrs = {}) {
  return NodeBuilder(at, "ResourceApplyAdagrad")
      .Input(var)
      .Input(accum)
      .Input(lr)
      .Input(grad)
      .Attr("use_locking", attrs.use_locking)
      .Attr("update_slots", attrs.update_slots)
      .Finish()
      .operation();
}

// The same for rows.
inline Output SparseApplyAdagrad(ScopeAt at, Output var, Output accum, Output lr, Output grad,
                                 Output indices, const ApplyAdagradAttrs& attrs = {}) {
  return NodeBuilder(at, "SparseApplyAdagrad")
      .Input(var)
      .Input(accum)
      .Input(lr)
      .Input(grad)
      .Input(indices)
      .Attr("use_locking", attrs.use_locking)
      .Attr("update_slots", attrs.update_slots)
      .Finish()
      .output(0);
}

inline Operation ResourceSparseApplyAdagrad(ScopeAt at, Output var, Output accum, Output lr,
                                            Output grad, Output indices,
                                            const ApplyAdagradAttrs& attrs = {}) {
  return NodeBuilder(at, "ResourceSparseApplyAdagrad")
      .Input(var)
      .Input(accum)
      .Input(lr)
      .Input(grad)
      .Input(indices)
      .Attr("use_locking", attrs.use_locking)
      .Attr("update_slots", attrs.update_slots)
      .Finish()
      .operation();
}

struct ApplyMomentumAttrs {
  bool use_locking = false;
  bool use_nesterov = false;
};

// accum = momentum * accum + grad; var -= lr * accum, or with use_nesterov
// var -= lr * grad + lr * momentum * accum.
inline Output ApplyMomentum(ScopeAt at, Output var, Output accum, Output lr, Output grad,
                            Output momentum, const ApplyMomentumAttrs& attrs = {}) {
  return NodeBuilder(at, "ApplyMomentum")
      .Input(var)
      .Input(accum)
      .Input(lr)
      .Input(grad)
      .Input(momentum)
      .Attr("use_locking", attrs.use_locking)
      .Attr("use_nesterov", attrs.use_nesterov)
      .Finish()
      .output(0);
}

inline Operation ResourceApplyMomentum(ScopeAt at, Output var, Output accum, Output lr, Output grad,
                                       Output momentum, const ApplyMomentumAttrs& attrs = {}) {
  return NodeBuilder(at, "ResourceApplyMomentum")
      .Input(var)
      .Input(accum)
      .Input(lr)
      .Input(grad)
      .Input(momentum)
      .Attr("use_locking", attrs.use_locking)
      .Attr("use_nesterov", attrs.use_nesterov)
      .Finish()
      .operation();
}

// The same for rows.
inline Output SparseApplyMomentum(ScopeAt at, Output var, Output accum, Output lr, Output grad,
                                  Output indices, Output momentum,
                                  const ApplyMomentumAttrs& attrs = {}) {
  return NodeBuilder(at, "SparseApplyMomentum")
      .Input(var)
      .Input(accum)
      .Input(lr)
      .Input(grad)
      .Input(indices)
      .Input(momentum)
      .Attr("use_locking", attrs.use_locking)
      .Attr("use_nesterov", attrs.use_nesterov)
      .Finish()
      .output(0);
}

inline Operation ResourceSparseApplyMomentum(ScopeAt at, Output var, Output accum, Output lr,
                                             Output grad, Output indices, Output momentum,
                                             const ApplyMomentumAttrs& attrs = {}) {
  return NodeBuilder(at, "ResourceSparseApplyMomentum")
      .Input(var)
      .Input(accum)
      .Input(lr)
      .Input(grad)
      .Input(indices)
      .Input(momentum)
      .Attr("use_locking", attrs.use_locking)
      .Attr("use_nesterov", attrs.use_nesterov)
      .Finish()
      .operation();
}

}  // namespace millrace

#endif  // MILLRACE_OPS_TRAINING_TRAINING_OPS_H_
