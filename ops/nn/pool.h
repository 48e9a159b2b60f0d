// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_NN_POOL_H_
#define MILLRACE_OPS_NN_POOL_H_

// Poolings: the largest or mean value of each window of an image, per channel.
//
//   input  [batch, rows, columns, channels]  ([batch, channels, rows, columns] for NCHW)
//   output [batch, output rows, output columns, channels], sizes as ops/rules/window.h computes
//
// Padding never counts: not as a value, not in the number that a mean divides by. Of
// equal largest values the first in row-major order gets the gradient. Kernels: NHWC; MaxPool
// for all integer and floating types, AvgPool for the floating ones. Without padding, a window that
// is larger than the image by less than two strides gives an empty result, as in Conv2D.
//
// MaxPool with ksize [1, 1, 1, n] and the same strides takes the largest of each n channels; n
// divides their number.
//
// Errors: InvalidArgument for ksize or strides < 1, for others than 1 along the batch, for other
// windows along the channels, for a window that is larger still, and for gradients of other shapes;
// Unimplemented for NCHW.

#include <initializer_list>
#include <string>
#include <vector>

#include "graph/node_builder.h"

namespace millrace {

struct PoolAttrs {
  std::vector<int64_t> ksize = {1, 2, 2, 1};
  std::vector<int64_t> strides = {1, 2, 2, 1};
  std::string padding = "SAME";
  std::string data_format = "NHWC";
};

inline Output BuildPool(ScopeAt at, absl::string_view op,
                        std::initializer_list<BuilderInput> inputs, const PoolAttrs& attrs) {
  return BuildOp(at, op, inputs, "ksize", attrs.ksize, "strides", attrs.strides, "padding",
                 attrs.padding, "data_format", attrs.data_format);
}

inline Output MaxPool(ScopeAt at, Output input, const PoolAttrs& attrs = {}) {
  return BuildPool(at, "MaxPool", {input}, attrs);
}

// The gradient of MaxPool's input: grad, shaped as orig_output, goes to the largest elements of
// orig_input.
inline Output MaxPoolGrad(ScopeAt at, Output orig_input, Output orig_output, Output grad,
                          const PoolAttrs& attrs = {}) {
  return BuildPool(at, "MaxPoolGrad", {orig_input, orig_output, grad}, attrs);
}

// The gradient of MaxPoolGrad's grad: of `grad`, shaped as orig_input, the elements where
// orig_input is largest.
inline Output MaxPoolGradGrad(ScopeAt at, Output orig_input, Output orig_output, Output grad,
                              const PoolAttrs& attrs = {}) {
  return BuildPool(at, "MaxPoolGradGrad", {orig_input, orig_output, grad}, attrs);
}

inline Output AvgPool(ScopeAt at, Output value, const PoolAttrs& attrs = {}) {
  return BuildPool(at, "AvgPool", {value}, attrs);
}

// The gradient of AvgPool's value, whose shape is orig_input_shape (int32, 4 values).
inline Output AvgPoolGrad(ScopeAt at, Output orig_input_shape, Output grad,
                          const PoolAttrs& attrs = {}) {
  return BuildPool(at, "AvgPoolGrad", {orig_input_shape, grad}, attrs);
}

// The same with ksize and strides as int32 vectors of 4 elements.
struct MaxPoolV2Attrs {
  std::string padding = "SAME";
  std::string data_format = "NHWC";
};
inline Output BuildPoolV2(ScopeAt at, absl::string_view op,
                          std::initializer_list<BuilderInput> inputs, const MaxPoolV2Attrs& attrs) {
  return BuildOp(at, op, inputs, "padding", attrs.padding, "data_format", attrs.data_format);
}
inline Output MaxPoolV2(ScopeAt at, Output input, Output ksize, Output strides,
                        const MaxPoolV2Attrs& attrs = {}) {
  return BuildPoolV2(at, "MaxPoolV2", {input, ksize, strides}, attrs);
}
inline Output MaxPoolGradV2(ScopeAt at, Output orig_input, Output orig_output, Output grad,
                            Output ksize, Output strides, const MaxPoolV2Attrs& attrs = {}) {
  return BuildPoolV2(at, "MaxPoolGradV2", {orig_input, orig_output, grad, ksize, strides}, attrs);
}
inline Output MaxPoolGradGradV2(ScopeAt at, Output orig_input, Output orig_output, Output grad,
                                Output ksize, Output strides, const MaxPoolV2Attrs& attrs = {}) {
  return BuildPoolV2(at, "MaxPoolGradGradV2", {orig_input, orig_output, grad, ksize, strides},
                     attrs);
}

}  // namespace millrace

#endif  // MILLRACE_OPS_NN_POOL_H_
