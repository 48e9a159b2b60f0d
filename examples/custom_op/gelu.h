// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_EXAMPLES_CUSTOM_OP_GELU_H_
#define MILLRACE_EXAMPLES_CUSTOM_OP_GELU_H_

// Gelu: an activation that TensorFlow 1.x does not have (Hendrycks and Gimpel, arXiv:1606.08415).
//
//   y = x Phi(x),  Phi(x) = (1 + erf(x / sqrt 2)) / 2

#include "graph/node_builder.h"

namespace millrace {

struct GeluAttrs {
  // Phi(x) by (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2, as some published models have it.
  bool approximate = false;
};

// Of the shape of x; float or double.
inline Output Gelu(ScopeAt at, Output x, const GeluAttrs& attrs = {}) {
  return BuildOp(at, "Gelu", {x}, "approximate", attrs.approximate);
}

}  // namespace millrace

#endif  // MILLRACE_EXAMPLES_CUSTOM_OP_GELU_H_
