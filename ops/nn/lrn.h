// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_NN_LRN_H_
#define MILLRACE_OPS_NN_LRN_H_

// Local response normalisation: each value divided by a power of the squares of its neighbours
// along the last dimension (channels).
//
//   output[..., c] = input[..., c] /
//       (bias + alpha * sum over |k - c| <= depth_radius of input[..., k]^2) ^ beta
//
// Half, bfloat16 or float; rank 4. Errors: InvalidArgument for another rank, a negative radius and
// gradients of other shapes.

#include "graph/node_builder.h"

namespace millrace {

struct LRNAttrs {
  int64_t depth_radius = 5;
  float bias = 1;
  float alpha = 1;
  float beta = 0.5f;
};

inline Output LRN(ScopeAt at, Output input, const LRNAttrs& attrs = {}) {
  return BuildOp(at, "LRN", {input}, "depth_radius", attrs.depth_radius, "bias", attrs.bias,
                 "alpha", attrs.alpha, "beta", attrs.beta);
}

// The gradient of LRN's input; the three inputs have one shape.
inline Output LRNGrad(ScopeAt at, Output input_grads, Output input_image, Output output_image,
                      const LRNAttrs& attrs = {}) {
  return BuildOp(at, "LRNGrad", {input_grads, input_image, output_image}, "depth_radius",
                 attrs.depth_radius, "bias", attrs.bias, "alpha", attrs.alpha, "beta", attrs.beta);
}

}  // namespace millrace

#endif  // MILLRACE_OPS_NN_LRN_H_
