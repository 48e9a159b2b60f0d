// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_NN_ACTIVATIONS_H_
#define MILLRACE_OPS_NN_ACTIVATIONS_H_

// Activation functions of neural networks and their gradient helpers: element by
// element, the result has the input's shape and dtype. "Floats" are bfloat16, half,
// float and double; "real numbers" are floats and all integers.
//
// A gradient helper's two inputs have one shape and dtype: InvalidArgument otherwise.
// Sigmoid and Tanh are in ops/math/cwise_unary.h.

#include "graph/node_builder.h"

namespace millrace {

// max(x, 0). Real numbers.
inline Output Relu(ScopeAt at, Output features) { return BuildOp(at, "Relu", {features}); }

// min(max(x, 0), 6). Real numbers.
inline Output Relu6(ScopeAt at, Output features) { return BuildOp(at, "Relu6", {features}); }

// x for x >= 0, exp(x) - 1 below. Floats.
inline Output Elu(ScopeAt at, Output features) { return BuildOp(at, "Elu", {features}); }

// scale * x for x >= 0, scale * alpha * (exp(x) - 1) below, with the constants that keep
// activations at mean 0 and variance 1. Floats.
inline Output Selu(ScopeAt at, Output features) { return BuildOp(at, "Selu", {features}); }

// log(1 + exp(x)). Floats.
inline Output Softplus(ScopeAt at, Output features) { return BuildOp(at, "Softplus", {features}); }

// x / (1 + |x|). Floats.
inline Output Softsign(ScopeAt at, Output features) { return BuildOp(at, "Softsign", {features}); }

struct LeakyReluAttrs {
  float alpha = 0.2f;
};

// x for x > 0, alpha * x otherwise. Floats.
inline Output LeakyRelu(ScopeAt at, Output features, const LeakyReluAttrs& attrs = {}) {
  return BuildOp(at, "LeakyRelu", {features}, "alpha", attrs.alpha);
}

// --- Gradient helpers ----------------------------------------------------------------------------

// `gradients` where features > 0, else 0. `features` may be the input or the output of Relu.
inline Output ReluGrad(ScopeAt at, Output gradients, Output features) {
  return BuildOp(at, "ReluGrad", {gradients, features});
}

// `gradients` where 0 < features < 6, else 0. `features` may be the input or the output of Relu6.
inline Output Relu6Grad(ScopeAt at, Output gradients, Output features) {
  return BuildOp(at, "Relu6Grad", {gradients, features});
}

// `gradients` times the derivative of Elu, from its `outputs`.
inline Output EluGrad(ScopeAt at, Output gradients, Output outputs) {
  return BuildOp(at, "EluGrad", {gradients, outputs});
}

// `gradients` times the derivative of Selu, from its `outputs`.
inline Output SeluGrad(ScopeAt at, Output gradients, Output outputs) {
  return BuildOp(at, "SeluGrad", {gradients, outputs});
}

// `gradients` times the derivative of Softplus, from its `features`.
inline Output SoftplusGrad(ScopeAt at, Output gradients, Output features) {
  return BuildOp(at, "SoftplusGrad", {gradients, features});
}

// `gradients` times the derivative of Softsign, from its `features`.
inline Output SoftsignGrad(ScopeAt at, Output gradients, Output features) {
  return BuildOp(at, "SoftsignGrad", {gradients, features});
}

// `gradients` where features > 0, alpha * gradients otherwise.
inline Output LeakyReluGrad(ScopeAt at, Output gradients, Output features,
                            const LeakyReluAttrs& attrs = {}) {
  return BuildOp(at, "LeakyReluGrad", {gradients, features}, "alpha", attrs.alpha);
}

}  // namespace millrace

#endif  // MILLRACE_OPS_NN_ACTIVATIONS_H_
