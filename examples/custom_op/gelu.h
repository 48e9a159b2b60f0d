// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_EXAMPLES_CUSTOM_OP_GELU_H_
#define MILLRACE_EXAMPLES_CUSTOM_OP_GELU_H_

// Gelu: an activation that TensorFlow 1.x does not have (Hendrycks and Gimpel, arXiv:1606.08415).
//
//   y = x Phi(x),  Phi(x) = (1 + erf(x / sqrt 2)) / 2
//
// One op with one kernel. In a namespace of its own, as an op of somebody else should be: names of
// millrace may come to mean something there (millrace::Gelu is the same formula of many ops).

#include "graph/node_builder.h"

namespace custom_op {

using millrace::Output;
using millrace::ScopeAt;

struct GeluAttrs {
  // Phi(x) by (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2, as some published models have it.
  bool approximate = false;
};

// Of the shape of x; float or double.
inline Output Gelu(ScopeAt at, Output x, const GeluAttrs& attrs = {}) {
  return millrace::BuildOp(at, "Gelu", {x}, "approximate", attrs.approximate);
}

}  // namespace custom_op

#endif  // MILLRACE_EXAMPLES_CUSTOM_OP_GELU_H_
