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
  return BuildOp(at, "ApplyGradientDescent", {var, alpha, delta}, "use_locking", attrs.use_locking);
}

inline Operation ResourceApplyGradientDescent(ScopeAt at, Output var, Output alpha, Output delta,
                                              const ApplyGradientDescentAttrs& attrs = {}) {
  return BuildOp(at, "ResourceApplyGradientDescent", {var, alpha, delta}, "use_locking",
                 attrs.use_locking);
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
  return BuildOp(at, "ApplyAdam",
                 {var, m, v, beta1_power, beta2_power, lr, beta1, beta2, epsilon, grad},
                 "use_locking", attrs.use_locking, "use_nesterov", attrs.use_nesterov);
}

inline Operation ResourceApplyAdam(ScopeAt at, Output var, Output m, Output v, Output beta1_power,
                                   Output beta2_power, Output lr, Output beta1, Output beta2,
                                   Output epsilon, Output grad, const ApplyAdamAttrs& attrs = {}) {
  return BuildOp(at, "ResourceApplyAdam",
                 {var, m, v, beta1_power, beta2_power, lr, beta1, beta2, epsilon, grad},
                 "use_locking", attrs.use_locking, "use_nesterov", attrs.use_nesterov);
}

struct ApplyAdagradAttrs {
  bool use_locking = false;
  bool update_slots = true;
};

// accum += grad^2 (unless update_slots is false); var -= lr * grad / sqrt(accum).
inline Output ApplyAdagrad(ScopeAt at, Output var, Output accum, Output lr, Output grad,
                           const ApplyAdagradAttrs& attrs = {}) {
  return BuildOp(at, "ApplyAdagrad", {var, accum, lr, grad}, "use_locking", attrs.use_locking,
                 "update_slots", attrs.update_slots);
}

inline Operation ResourceApplyAdagrad(ScopeAt at, Output var, Output accum, Output lr, Output grad,
                                      const ApplyAdagradAttrs& attrs = {}) {
  return BuildOp(at, "ResourceApplyAdagrad", {var, accum, lr, grad}, "use_locking",
                 attrs.use_locking, "update_slots", attrs.update_slots);
}

// The same for rows.
inline Output SparseApplyAdagrad(ScopeAt at, Output var, Output accum, Output lr, Output grad,
                                 Output indices, const ApplyAdagradAttrs& attrs = {}) {
  return BuildOp(at, "SparseApplyAdagrad", {var, accum, lr, grad, indices}, "use_locking",
                 attrs.use_locking, "update_slots", attrs.update_slots);
}

inline Operation ResourceSparseApplyAdagrad(ScopeAt at, Output var, Output accum, Output lr,
                                            Output grad, Output indices,
                                            const ApplyAdagradAttrs& attrs = {}) {
  return BuildOp(at, "ResourceSparseApplyAdagrad", {var, accum, lr, grad, indices}, "use_locking",
                 attrs.use_locking, "update_slots", attrs.update_slots);
}

struct ApplyMomentumAttrs {
  bool use_locking = false;
  bool use_nesterov = false;
};

// accum = momentum * accum + grad; var -= lr * accum, or with use_nesterov
// var -= lr * grad + lr * momentum * accum.
inline Output ApplyMomentum(ScopeAt at, Output var, Output accum, Output lr, Output grad,
                            Output momentum, const ApplyMomentumAttrs& attrs = {}) {
  return BuildOp(at, "ApplyMomentum", {var, accum, lr, grad, momentum}, "use_locking",
                 attrs.use_locking, "use_nesterov", attrs.use_nesterov);
}

inline Operation ResourceApplyMomentum(ScopeAt at, Output var, Output accum, Output lr, Output grad,
                                       Output momentum, const ApplyMomentumAttrs& attrs = {}) {
  return BuildOp(at, "ResourceApplyMomentum", {var, accum, lr, grad, momentum}, "use_locking",
                 attrs.use_locking, "use_nesterov", attrs.use_nesterov);
}

// The same for rows.
inline Output SparseApplyMomentum(ScopeAt at, Output var, Output accum, Output lr, Output grad,
                                  Output indices, Output momentum,
                                  const ApplyMomentumAttrs& attrs = {}) {
  return BuildOp(at, "SparseApplyMomentum", {var, accum, lr, grad, indices, momentum},
                 "use_locking", attrs.use_locking, "use_nesterov", attrs.use_nesterov);
}

inline Operation ResourceSparseApplyMomentum(ScopeAt at, Output var, Output accum, Output lr,
                                             Output grad, Output indices, Output momentum,
                                             const ApplyMomentumAttrs& attrs = {}) {
  return BuildOp(at, "ResourceSparseApplyMomentum", {var, accum, lr, grad, indices, momentum},
                 "use_locking", attrs.use_locking, "use_nesterov", attrs.use_nesterov);
}

struct ApplyRMSPropAttrs {
  bool use_locking = false;
};

// RMSProp (Hinton, 2012), with momentum:
//   ms += (1 - rho) * (grad^2 - ms)
//   mom = momentum * mom + lr * grad / sqrt(ms + epsilon)
//   var -= mom
inline Output ApplyRMSProp(ScopeAt at, Output var, Output ms, Output mom, Output lr, Output rho,
                           Output momentum, Output epsilon, Output grad,
                           const ApplyRMSPropAttrs& attrs = {}) {
  return BuildOp(at, "ApplyRMSProp", {var, ms, mom, lr, rho, momentum, epsilon, grad},
                 "use_locking", attrs.use_locking);
}

inline Operation ResourceApplyRMSProp(ScopeAt at, Output var, Output ms, Output mom, Output lr,
                                      Output rho, Output momentum, Output epsilon, Output grad,
                                      const ApplyRMSPropAttrs& attrs = {}) {
  return BuildOp(at, "ResourceApplyRMSProp", {var, ms, mom, lr, rho, momentum, epsilon, grad},
                 "use_locking", attrs.use_locking);
}

// The same for rows.
inline Output SparseApplyRMSProp(ScopeAt at, Output var, Output ms, Output mom, Output lr,
                                 Output rho, Output momentum, Output epsilon, Output grad,
                                 Output indices, const ApplyRMSPropAttrs& attrs = {}) {
  return BuildOp(at, "SparseApplyRMSProp",
                 {var, ms, mom, lr, rho, momentum, epsilon, grad, indices}, "use_locking",
                 attrs.use_locking);
}

inline Operation ResourceSparseApplyRMSProp(ScopeAt at, Output var, Output ms, Output mom,
                                            Output lr, Output rho, Output momentum, Output epsilon,
                                            Output grad, Output indices,
                                            const ApplyRMSPropAttrs& attrs = {}) {
  return BuildOp(at, "ResourceSparseApplyRMSProp",
                 {var, ms, mom, lr, rho, momentum, epsilon, grad, indices}, "use_locking",
                 attrs.use_locking);
}

// The same divided by the standard deviation of the gradients instead of their mean square:
//   mg += (1 - rho) * (grad - mg)
//   mom = momentum * mom + lr * grad / sqrt(ms - mg^2 + epsilon)
inline Output ApplyCenteredRMSProp(ScopeAt at, Output var, Output mg, Output ms, Output mom,
                                   Output lr, Output rho, Output momentum, Output epsilon,
                                   Output grad, const ApplyRMSPropAttrs& attrs = {}) {
  return BuildOp(at, "ApplyCenteredRMSProp", {var, mg, ms, mom, lr, rho, momentum, epsilon, grad},
                 "use_locking", attrs.use_locking);
}

inline Operation ResourceApplyCenteredRMSProp(ScopeAt at, Output var, Output mg, Output ms,
                                              Output mom, Output lr, Output rho, Output momentum,
                                              Output epsilon, Output grad,
                                              const ApplyRMSPropAttrs& attrs = {}) {
  return BuildOp(at, "ResourceApplyCenteredRMSProp",
                 {var, mg, ms, mom, lr, rho, momentum, epsilon, grad}, "use_locking",
                 attrs.use_locking);
}

// The same for rows.
inline Output SparseApplyCenteredRMSProp(ScopeAt at, Output var, Output mg, Output ms, Output mom,
                                         Output lr, Output rho, Output momentum, Output epsilon,
                                         Output grad, Output indices,
                                         const ApplyRMSPropAttrs& attrs = {}) {
  return BuildOp(at, "SparseApplyCenteredRMSProp",
                 {var, mg, ms, mom, lr, rho, momentum, epsilon, grad, indices}, "use_locking",
                 attrs.use_locking);
}

inline Operation ResourceSparseApplyCenteredRMSProp(ScopeAt at, Output var, Output mg, Output ms,
                                                    Output mom, Output lr, Output rho,
                                                    Output momentum, Output epsilon, Output grad,
                                                    Output indices,
                                                    const ApplyRMSPropAttrs& attrs = {}) {
  return BuildOp(at, "ResourceSparseApplyCenteredRMSProp",
                 {var, mg, ms, mom, lr, rho, momentum, epsilon, grad, indices}, "use_locking",
                 attrs.use_locking);
}

struct ApplyFtrlAttrs {
  bool use_locking = false;
};

// FTRL-Proximal (McMahan et al., 2013), with p = -lr_power:
//   new_accum = accum + grad^2
//   linear += grad - (new_accum^p - accum^p) / lr * var
//   var = |linear| > l1 ? (sign(linear) * l1 - linear) / (new_accum^p / lr + 2 * l2) : 0
// FtrlV2 adds 2 * l2_shrinkage * var to the gradient in the line of `linear`. InvalidArgument
// unless lr > 0, l1, l2, l2_shrinkage >= 0 and lr_power <= 0.
inline Output ApplyFtrl(ScopeAt at, Output var, Output accum, Output linear, Output grad, Output lr,
                        Output l1, Output l2, Output lr_power, const ApplyFtrlAttrs& attrs = {}) {
  return BuildOp(at, "ApplyFtrl", {var, accum, linear, grad, lr, l1, l2, lr_power}, "use_locking",
                 attrs.use_locking);
}

inline Operation ResourceApplyFtrl(ScopeAt at, Output var, Output accum, Output linear, Output grad,
                                   Output lr, Output l1, Output l2, Output lr_power,
                                   const ApplyFtrlAttrs& attrs = {}) {
  return BuildOp(at, "ResourceApplyFtrl", {var, accum, linear, grad, lr, l1, l2, lr_power},
                 "use_locking", attrs.use_locking);
}

inline Output ApplyFtrlV2(ScopeAt at, Output var, Output accum, Output linear, Output grad,
                          Output lr, Output l1, Output l2, Output l2_shrinkage, Output lr_power,
                          const ApplyFtrlAttrs& attrs = {}) {
  return BuildOp(at, "ApplyFtrlV2", {var, accum, linear, grad, lr, l1, l2, l2_shrinkage, lr_power},
                 "use_locking", attrs.use_locking);
}

inline Operation ResourceApplyFtrlV2(ScopeAt at, Output var, Output accum, Output linear,
                                     Output grad, Output lr, Output l1, Output l2,
                                     Output l2_shrinkage, Output lr_power,
                                     const ApplyFtrlAttrs& attrs = {}) {
  return BuildOp(at, "ResourceApplyFtrlV2",
                 {var, accum, linear, grad, lr, l1, l2, l2_shrinkage, lr_power}, "use_locking",
                 attrs.use_locking);
}

// The same for rows.
inline Output SparseApplyFtrl(ScopeAt at, Output var, Output accum, Output linear, Output grad,
                              Output indices, Output lr, Output l1, Output l2, Output lr_power,
                              const ApplyFtrlAttrs& attrs = {}) {
  return BuildOp(at, "SparseApplyFtrl", {var, accum, linear, grad, indices, lr, l1, l2, lr_power},
                 "use_locking", attrs.use_locking);
}

inline Operation ResourceSparseApplyFtrl(ScopeAt at, Output var, Output accum, Output linear,
                                         Output grad, Output indices, Output lr, Output l1,
                                         Output l2, Output lr_power,
                                         const ApplyFtrlAttrs& attrs = {}) {
  return BuildOp(at, "ResourceSparseApplyFtrl",
                 {var, accum, linear, grad, indices, lr, l1, l2, lr_power}, "use_locking",
                 attrs.use_locking);
}

inline Output SparseApplyFtrlV2(ScopeAt at, Output var, Output accum, Output linear, Output grad,
                                Output indices, Output lr, Output l1, Output l2,
                                Output l2_shrinkage, Output lr_power,
                                const ApplyFtrlAttrs& attrs = {}) {
  return BuildOp(at, "SparseApplyFtrlV2",
                 {var, accum, linear, grad, indices, lr, l1, l2, l2_shrinkage, lr_power},
                 "use_locking", attrs.use_locking);
}

inline Operation ResourceSparseApplyFtrlV2(ScopeAt at, Output var, Output accum, Output linear,
                                           Output grad, Output indices, Output lr, Output l1,
                                           Output l2, Output l2_shrinkage, Output lr_power,
                                           const ApplyFtrlAttrs& attrs = {}) {
  return BuildOp(at, "ResourceSparseApplyFtrlV2",
                 {var, accum, linear, grad, indices, lr, l1, l2, l2_shrinkage, lr_power},
                 "use_locking", attrs.use_locking);
}

}  // namespace millrace

#endif  // MILLRACE_OPS_TRAINING_TRAINING_OPS_H_
