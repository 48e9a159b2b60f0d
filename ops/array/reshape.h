// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_ARRAY_RESHAPE_H_
#define MILLRACE_OPS_ARRAY_RESHAPE_H_

// Shapes of tensors: asking for them, and seeing the same elements in another shape (nothing is
// copied). All take any dtype.

#include <vector>

#include "graph/node_builder.h"

namespace millrace {

// The same elements in the shape that an int32 or int64 vector gives; one dimension may be -1: what
// remains. InvalidArgument "Input to reshape is a tensor with N values, but the requested shape
// [...] has M".
inline Output Reshape(ScopeAt at, const TensorArg& tensor, const TensorArg& shape) {
  return BuildOp(at, "Reshape", {tensor, shape});
}
// With a dimension of size 1 put before position `dim` (scalar; -1 is after the last one).
inline Output ExpandDims(ScopeAt at, const TensorArg& input, const TensorArg& dim) {
  return BuildOp(at, "ExpandDims", {input, dim});
}
// Without dimensions of size 1: those of squeeze_dims (negative ones count from the end), or all
// when that is empty. InvalidArgument for a named dimension that is not 1.
struct SqueezeAttrs {
  std::vector<int64_t> squeeze_dims = {};
};
inline Output Squeeze(ScopeAt at, Output input, const SqueezeAttrs& attrs = {}) {
  return BuildOp(at, "Squeeze", {input}, "squeeze_dims", attrs.squeeze_dims);
}

// The dtype of the answer: int32 (InvalidArgument when a size does not fit) or int64.
struct ShapeAttrs {
  DType out_type = DT_INT32;
};
// The dimensions as a vector (op Shape; `Shape` is the type).
inline Output ShapeOf(ScopeAt at, Output input, const ShapeAttrs& attrs = {}) {
  return BuildOp(at, "Shape", {input}, "out_type", attrs.out_type);
}
// The same for each of several tensors of one dtype.
inline std::vector<Output> ShapeN(ScopeAt at, absl::Span<const Output> input,
                                  const ShapeAttrs& attrs = {}) {
  return BuildOp(at, "ShapeN", {input}, "out_type", attrs.out_type)
      .outputs(0, static_cast<int>(input.size()));
}
// The number of elements, a scalar.
inline Output Size(ScopeAt at, Output input, const ShapeAttrs& attrs = {}) {
  return BuildOp(at, "Size", {input}, "out_type", attrs.out_type);
}
// The number of dimensions, an int32 scalar.
inline Output Rank(ScopeAt at, Output input) { return BuildOp(at, "Rank", {input}); }

}  // namespace millrace

#endif  // MILLRACE_OPS_ARRAY_RESHAPE_H_
