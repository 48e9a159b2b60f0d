// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_TRAINING_OTHER_TRAINING_OPS_H_
#define MILLRACE_OPS_TRAINING_OTHER_TRAINING_OPS_H_

// The update rules of TensorFlow's less usual optimizers. As those of training_ops.h: forms for
// references and handles, for whole variables and (Sparse) for the rows that `indices` names.

#include "graph/node_builder.h"
#include "ops/training/training_ops.h"

namespace millrace {

struct ApplyAttrs {
  bool use_locking = false;
};

// Adadelta (Zeiler, 2012):
//   accum = rho * accum + (1 - rho) * grad^2
//   update = sqrt(accum_update + epsilon) / sqrt(accum + epsilon) * grad
//   accum_update = rho * accum_update + (1 - rho) * update^2
//   var -= lr * update
inline Output ApplyAdadelta(ScopeAt at, Output var, Output accum, Output accum_update, Output lr,
                            Output rho, Output epsilon, Output grad, const ApplyAttrs& attrs = {}) {
  return BuildOp(at, "ApplyAdadelta", {var, accum, accum_update, lr, rho, epsilon, grad},
                 "use_locking", attrs.use_locking);
}

inline Operation ResourceApplyAdadelta(ScopeAt at, Output var, Output accum, Output accum_update,
                                       Output lr, Output rho, Output epsilon, Output grad,
                                       const ApplyAttrs& attrs = {}) {
  return BuildOp(at, "ResourceApplyAdadelta", {var, accum, accum_update, lr, rho, epsilon, grad},
                 "use_locking", attrs.use_locking);
}

inline Output SparseApplyAdadelta(ScopeAt at, Output var, Output accum, Output accum_update,
                                  Output lr, Output rho, Output epsilon, Output grad,
                                  Output indices, const ApplyAttrs& attrs = {}) {
  return BuildOp(at, "SparseApplyAdadelta",
                 {var, accum, accum_update, lr, rho, epsilon, grad, indices}, "use_locking",
                 attrs.use_locking);
}

inline Operation ResourceSparseApplyAdadelta(ScopeAt at, Output var, Output accum,
                                             Output accum_update, Output lr, Output rho,
                                             Output epsilon, Output grad, Output indices,
                                             const ApplyAttrs& attrs = {}) {
  return BuildOp(at, "ResourceSparseApplyAdadelta",
                 {var, accum, accum_update, lr, rho, epsilon, grad, indices}, "use_locking",
                 attrs.use_locking);
}

// AdaMax (Kingma and Ba, 2015, section 7.1):
//   m += (1 - beta1) * (grad - m)
//   v = max(beta2 * v, |grad|)
//   var -= lr / (1 - beta1_power) * m / (v + epsilon)
inline Output ApplyAdaMax(ScopeAt at, Output var, Output m, Output v, Output beta1_power, Output lr,
                          Output beta1, Output beta2, Output epsilon, Output grad,
                          const ApplyAttrs& attrs = {}) {
  return BuildOp(at, "ApplyAdaMax", {var, m, v, beta1_power, lr, beta1, beta2, epsilon, grad},
                 "use_locking", attrs.use_locking);
}

inline Operation ResourceApplyAdaMax(ScopeAt at, Output var, Output m, Output v, Output beta1_power,
                                     Output lr, Output beta1, Output beta2, Output epsilon,
                                     Output grad, const ApplyAttrs& attrs = {}) {
  return BuildOp(at, "ResourceApplyAdaMax",
                 {var, m, v, beta1_power, lr, beta1, beta2, epsilon, grad}, "use_locking",
                 attrs.use_locking);
}

// accum += grad^2 (unless update_slots is false); var -= lr * grad / (sqrt(accum) + epsilon).
inline Output ApplyAdagradV2(ScopeAt at, Output var, Output accum, Output lr, Output epsilon,
                             Output grad, const ApplyAdagradAttrs& attrs = {}) {
  return BuildOp(at, "ApplyAdagradV2", {var, accum, lr, epsilon, grad}, "use_locking",
                 attrs.use_locking, "update_slots", attrs.update_slots);
}

inline Operation ResourceApplyAdagradV2(ScopeAt at, Output var, Output accum, Output lr,
                                        Output epsilon, Output grad,
                                        const ApplyAdagradAttrs& attrs = {}) {
  return BuildOp(at, "ResourceApplyAdagradV2", {var, accum, lr, epsilon, grad}, "use_locking",
                 attrs.use_locking, "update_slots", attrs.update_slots);
}

inline Output SparseApplyAdagradV2(ScopeAt at, Output var, Output accum, Output lr, Output epsilon,
                                   Output grad, Output indices,
                                   const ApplyAdagradAttrs& attrs = {}) {
  return BuildOp(at, "SparseApplyAdagradV2", {var, accum, lr, epsilon, grad, indices},
                 "use_locking", attrs.use_locking, "update_slots", attrs.update_slots);
}

inline Operation ResourceSparseApplyAdagradV2(ScopeAt at, Output var, Output accum, Output lr,
                                              Output epsilon, Output grad, Output indices,
                                              const ApplyAdagradAttrs& attrs = {}) {
  return BuildOp(at, "ResourceSparseApplyAdagradV2", {var, accum, lr, epsilon, grad, indices},
                 "use_locking", attrs.use_locking, "update_slots", attrs.update_slots);
}

// Adagrad by dual averaging (Duchi et al., 2011), for linear models that are to be sparse:
//   gradient_accumulator += grad
//   gradient_squared_accumulator += grad^2
//   var = -lr * sign(gradient_accumulator) *
//         max(|gradient_accumulator| - global_step * l1, 0) /
//         (global_step * lr * l2 + sqrt(gradient_squared_accumulator))
// global_step: an int64 scalar, 1 in the first step.
inline Output ApplyAdagradDA(ScopeAt at, Output var, Output gradient_accumulator,
                             Output gradient_squared_accumulator, Output grad, Output lr, Output l1,
                             Output l2, Output global_step, const ApplyAttrs& attrs = {}) {
  return BuildOp(
      at, "ApplyAdagradDA",
      {var, gradient_accumulator, gradient_squared_accumulator, grad, lr, l1, l2, global_step},
      "use_locking", attrs.use_locking);
}

inline Operation ResourceApplyAdagradDA(ScopeAt at, Output var, Output gradient_accumulator,
                                        Output gradient_squared_accumulator, Output grad, Output lr,
                                        Output l1, Output l2, Output global_step,
                                        const ApplyAttrs& attrs = {}) {
  return BuildOp(
      at, "ResourceApplyAdagradDA",
      {var, gradient_accumulator, gradient_squared_accumulator, grad, lr, l1, l2, global_step},
      "use_locking", attrs.use_locking);
}

inline Output SparseApplyAdagradDA(ScopeAt at, Output var, Output gradient_accumulator,
                                   Output gradient_squared_accumulator, Output grad, Output indices,
                                   Output lr, Output l1, Output l2, Output global_step,
                                   const ApplyAttrs& attrs = {}) {
  return BuildOp(at, "SparseApplyAdagradDA",
                 {var, gradient_accumulator, gradient_squared_accumulator, grad, indices, lr, l1,
                  l2, global_step},
                 "use_locking", attrs.use_locking);
}

inline Operation ResourceSparseApplyAdagradDA(ScopeAt at, Output var, Output gradient_accumulator,
                                              Output gradient_squared_accumulator, Output grad,
                                              Output indices, Output lr, Output l1, Output l2,
                                              Output global_step, const ApplyAttrs& attrs = {}) {
  return BuildOp(at, "ResourceSparseApplyAdagradDA",
                 {var, gradient_accumulator, gradient_squared_accumulator, grad, indices, lr, l1,
                  l2, global_step},
                 "use_locking", attrs.use_locking);
}

// A step of gradient descent that is pulled towards 0: with p = var - alpha * delta
//   var = sign(p) * max(|p| - alpha * l1, 0) / (1 + alpha * l2)
inline Output ApplyProximalGradientDescent(ScopeAt at, Output var, Output alpha, Output l1,
                                           Output l2, Output delta, const ApplyAttrs& attrs = {}) {
  return BuildOp(at, "ApplyProximalGradientDescent", {var, alpha, l1, l2, delta}, "use_locking",
                 attrs.use_locking);
}

inline Operation ResourceApplyProximalGradientDescent(ScopeAt at, Output var, Output alpha,
                                                      Output l1, Output l2, Output delta,
                                                      const ApplyAttrs& attrs = {}) {
  return BuildOp(at, "ResourceApplyProximalGradientDescent", {var, alpha, l1, l2, delta},
                 "use_locking", attrs.use_locking);
}

inline Output SparseApplyProximalGradientDescent(ScopeAt at, Output var, Output alpha, Output l1,
                                                 Output l2, Output grad, Output indices,
                                                 const ApplyAttrs& attrs = {}) {
  return BuildOp(at, "SparseApplyProximalGradientDescent", {var, alpha, l1, l2, grad, indices},
                 "use_locking", attrs.use_locking);
}

inline Operation ResourceSparseApplyProximalGradientDescent(ScopeAt at, Output var, Output alpha,
                                                            Output l1, Output l2, Output grad,
                                                            Output indices,
                                                            const ApplyAttrs& attrs = {}) {
  return BuildOp(at, "ResourceSparseApplyProximalGradientDescent",
                 {var, alpha, l1, l2, grad, indices}, "use_locking", attrs.use_locking);
}

// The same with Adagrad's rate: accum += grad^2, and lr / sqrt(accum) takes the place of alpha.
inline Output ApplyProximalAdagrad(ScopeAt at, Output var, Output accum, Output lr, Output l1,
                                   Output l2, Output grad, const ApplyAttrs& attrs = {}) {
  return BuildOp(at, "ApplyProximalAdagrad", {var, accum, lr, l1, l2, grad}, "use_locking",
                 attrs.use_locking);
}

inline Operation ResourceApplyProximalAdagrad(ScopeAt at, Output var, Output accum, Output lr,
                                              Output l1, Output l2, Output grad,
                                              const ApplyAttrs& attrs = {}) {
  return BuildOp(at, "ResourceApplyProximalAdagrad", {var, accum, lr, l1, l2, grad}, "use_locking",
                 attrs.use_locking);
}

inline Output SparseApplyProximalAdagrad(ScopeAt at, Output var, Output accum, Output lr, Output l1,
                                         Output l2, Output grad, Output indices,
                                         const ApplyAttrs& attrs = {}) {
  return BuildOp(at, "SparseApplyProximalAdagrad", {var, accum, lr, l1, l2, grad, indices},
                 "use_locking", attrs.use_locking);
}

inline Operation ResourceSparseApplyProximalAdagrad(ScopeAt at, Output var, Output accum, Output lr,
                                                    Output l1, Output l2, Output grad,
                                                    Output indices, const ApplyAttrs& attrs = {}) {
  return BuildOp(at, "ResourceSparseApplyProximalAdagrad", {var, accum, lr, l1, l2, grad, indices},
                 "use_locking", attrs.use_locking);
}

// AddSign and PowerSign (Bello et al., 2017): m += (1 - beta) * (grad - m);
//   var -= lr * (alpha + sign_decay * sign(grad) * sign(m)) * grad
inline Output ApplyAddSign(ScopeAt at, Output var, Output m, Output lr, Output alpha,
                           Output sign_decay, Output beta, Output grad,
                           const ApplyAttrs& attrs = {}) {
  return BuildOp(at, "ApplyAddSign", {var, m, lr, alpha, sign_decay, beta, grad}, "use_locking",
                 attrs.use_locking);
}

inline Operation ResourceApplyAddSign(ScopeAt at, Output var, Output m, Output lr, Output alpha,
                                      Output sign_decay, Output beta, Output grad,
                                      const ApplyAttrs& attrs = {}) {
  return BuildOp(at, "ResourceApplyAddSign", {var, m, lr, alpha, sign_decay, beta, grad},
                 "use_locking", attrs.use_locking);
}

//   var -= lr * exp(logbase * sign_decay * sign(grad) * sign(m)) * grad
inline Output ApplyPowerSign(ScopeAt at, Output var, Output m, Output lr, Output logbase,
                             Output sign_decay, Output beta, Output grad,
                             const ApplyAttrs& attrs = {}) {
  return BuildOp(at, "ApplyPowerSign", {var, m, lr, logbase, sign_decay, beta, grad}, "use_locking",
                 attrs.use_locking);
}

inline Operation ResourceApplyPowerSign(ScopeAt at, Output var, Output m, Output lr, Output logbase,
                                        Output sign_decay, Output beta, Output grad,
                                        const ApplyAttrs& attrs = {}) {
  return BuildOp(at, "ResourceApplyPowerSign", {var, m, lr, logbase, sign_decay, beta, grad},
                 "use_locking", attrs.use_locking);
}

// Momentum as Keras has it: accum = momentum * accum - lr * grad; var += accum, or with
// use_nesterov var += momentum * accum - lr * grad. On handles alone.
inline Operation ResourceApplyKerasMomentum(ScopeAt at, Output var, Output accum, Output lr,
                                            Output grad, Output momentum,
                                            const ApplyMomentumAttrs& attrs = {}) {
  return BuildOp(at, "ResourceApplyKerasMomentum", {var, accum, lr, grad, momentum}, "use_locking",
                 attrs.use_locking, "use_nesterov", attrs.use_nesterov);
}

inline Operation ResourceSparseApplyKerasMomentum(ScopeAt at, Output var, Output accum, Output lr,
                                                  Output grad, Output indices, Output momentum,
                                                  const ApplyMomentumAttrs& attrs = {}) {
  return BuildOp(at, "ResourceSparseApplyKerasMomentum", {var, accum, lr, grad, indices, momentum},
                 "use_locking", attrs.use_locking, "use_nesterov", attrs.use_nesterov);
}

}  // namespace millrace

#endif  // MILLRACE_OPS_TRAINING_OTHER_TRAINING_OPS_H_
