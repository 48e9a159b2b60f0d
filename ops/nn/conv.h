// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_NN_CONV_H_
#define MILLRACE_OPS_NN_CONV_H_

// Two-dimensional convolution and its gradients.
//
//   input  [batch, rows, columns, in_channels]  ([batch, in_channels, rows, columns] for NCHW)
//   filter [rows, columns, in_channels, out_channels] for either format; it is not flipped
//   output [batch, output rows, output columns, out_channels]
//
// Dtypes: half, bfloat16 (both computed in float and rounded once), float, double; kernels for
// NHWC. Padding "SAME", "VALID" or "EXPLICIT" with explicit_paddings (two numbers per dimension);
// output sizes are those of ops/rules/window.h.
//
// Errors: InvalidArgument for shapes that do not fit, strides or dilations < 1 (other than 1 for
// batch and channels); Unimplemented for NCHW and for grouped filters.

#include <initializer_list>
#include <string>
#include <vector>

#include "graph/node_builder.h"

namespace millrace {

struct Conv2DAttrs {
  std::vector<int64_t> strides = {1, 1, 1, 1};
  std::string padding = "SAME";
  bool use_cudnn_on_gpu = true;
  std::vector<int64_t> explicit_paddings = {};
  std::string data_format = "NHWC";
  std::vector<int64_t> dilations = {1, 1, 1, 1};
};

// The three ops have the same attrs.
inline Output BuildConvolution(ScopeAt at, absl::string_view op,
                               std::initializer_list<BuilderInput> inputs,
                               const Conv2DAttrs& attrs) {
  return BuildOp(at, op, inputs, "strides", attrs.strides, "padding", attrs.padding,
                 "use_cudnn_on_gpu", attrs.use_cudnn_on_gpu, "explicit_paddings",
                 attrs.explicit_paddings, "data_format", attrs.data_format, "dilations",
                 attrs.dilations);
}

inline Output Conv2D(ScopeAt at, Output input, Output filter, const Conv2DAttrs& attrs = {}) {
  return BuildConvolution(at, "Conv2D", {input, filter}, attrs);
}

// The gradient of a convolution's input, whose shape is input_sizes (int32, 4 values): also known
// as transposed convolution. out_backprop has the shape of the convolution's output.
inline Output Conv2DBackpropInput(ScopeAt at, Output input_sizes, Output filter,
                                  Output out_backprop, const Conv2DAttrs& attrs = {}) {
  return BuildConvolution(at, "Conv2DBackpropInput", {input_sizes, filter, out_backprop}, attrs);
}

// The gradient of a convolution's filter, whose shape is filter_sizes (int32, 4 values).
inline Output Conv2DBackpropFilter(ScopeAt at, Output input, Output filter_sizes,
                                   Output out_backprop, const Conv2DAttrs& attrs = {}) {
  return BuildConvolution(at, "Conv2DBackpropFilter", {input, filter_sizes, out_backprop}, attrs);
}

}  // namespace millrace

#endif  // MILLRACE_OPS_NN_CONV_H_
