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
  return NodeBuilder(at, "LRN")
      .Input(input)
      .Attr("depth_radius", attrs.depth_radius)
      .Attr("bias", attrs.bias)
      .Attr("alpha", attrs.alpha)
      .Attr("beta", attrs.beta)
      .Finish()
      .output(0);
}

// The gradient of LRN's input; the three inputs have one shape.
inline Output LRNGrad(ScopeAt at, Output input_grads, Output input_image, Output output_image,
                      const LRNAttrs& attrs = {}) {
  return NodeBuilder(at, "LRNGrad")
      .Input(input_grads)
      .Input(input_image)
      .Input(output_image)
      .Attr("depth_radius", attrs.depth_radius)
      .Attr("bias", attrs.bias)
      .Attr("alpha", attrs.alpha)
      .Attr("beta", attrs.beta)
      .Finish()
      .output(0);
}

}  // namespace millrace

#endif  // MILLRACE_OPS_NN_LRN_H_
