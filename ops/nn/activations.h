// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_NN_ACTIVATIONS_H_
#define MILLRACE_OPS_NN_ACTIVATIONS_H_

// Activation functions of neural networks and their gradient helpers: element by
// element, the result has the input's shape and dtype. "Floats" are bfloat16, half,
// float and double; "real numbers" are floats and all integers.
//
// A gradient helper takes (gradients, features or outputs), of one shape and dtype: InvalidArgument
// otherwise.
// Sigmoid and Tanh are in ops/math/cwise_unary.h.

#include "graph/node_builder.h"

namespace millrace {

// max(x, 0). Real numbers.
inline constexpr UnaryBuilder Relu{"Relu"};

// min(max(x, 0), 6). Real numbers.
inline constexpr UnaryBuilder Relu6{"Relu6"};

// x for x >= 0, exp(x) - 1 below. Floats.
inline constexpr UnaryBuilder Elu{"Elu"};

// scale * x for x >= 0, scale * alpha * (exp(x) - 1) below, with the constants that keep
// activations at mean 0 and variance 1. Floats.
inline constexpr UnaryBuilder Selu{"Selu"};

// log(1 + exp(x)). Floats.
inline constexpr UnaryBuilder Softplus{"Softplus"};

// x / (1 + |x|). Floats.
inline constexpr UnaryBuilder Softsign{"Softsign"};

struct LeakyReluAttrs {
  float alpha = 0.2f;
};

// x for x > 0, alpha * x otherwise. Floats.
inline Output LeakyRelu(ScopeAt at, Output features, const LeakyReluAttrs& attrs = {}) {
  return BuildOp(at, "LeakyRelu", {features}, "alpha", attrs.alpha);
}

struct GeluAttrs {
  // (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2 for Phi(x), as some published models have it.
  bool approximate = false;
};

// x Phi(x), with Phi(x) = (1 + erf(x / sqrt 2)) / 2: the input times the normal distribution, as
// tf.nn.gelu of TensorFlow 2 (arXiv:1606.08415). Floats; InvalidArgument otherwise. No op, but a
// formula of some, named "Gelu": a graph with it runs in stock TensorFlow, and all gradients are
// those of its parts. Of -infinity it is NaN, as there.
Output Gelu(ScopeAt at, const Output& features, const GeluAttrs& attrs = {});

// --- Gradient helpers ----------------------------------------------------------------------------

// `gradients` where features > 0, else 0. `features` may be the input or the output of Relu.
inline constexpr BinaryBuilder ReluGrad{"ReluGrad"};

// `gradients` where 0 < features < 6, else 0. `features` may be the input or the output of Relu6.
inline constexpr BinaryBuilder Relu6Grad{"Relu6Grad"};

// `gradients` times the derivative of Elu, from its `outputs`.
inline constexpr BinaryBuilder EluGrad{"EluGrad"};

// `gradients` times the derivative of Selu, from its `outputs`.
inline constexpr BinaryBuilder SeluGrad{"SeluGrad"};

// `gradients` times the derivative of Softplus, from its `features`.
inline constexpr BinaryBuilder SoftplusGrad{"SoftplusGrad"};

// `gradients` times the derivative of Softsign, from its `features`.
inline constexpr BinaryBuilder SoftsignGrad{"SoftsignGrad"};

// `gradients` where features > 0, alpha * gradients otherwise.
inline Output LeakyReluGrad(ScopeAt at, Output gradients, Output features,
                            const LeakyReluAttrs& attrs = {}) {
  return BuildOp(at, "LeakyReluGrad", {gradients, features}, "alpha", attrs.alpha);
}

}  // namespace millrace

#endif  // MILLRACE_OPS_NN_ACTIVATIONS_H_
