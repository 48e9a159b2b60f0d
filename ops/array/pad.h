// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_ARRAY_PAD_H_
#define MILLRACE_OPS_ARRAY_PAD_H_

// Tensors with a border around them: zeros, a value, or the tensor's own elements mirrored. All
// dtypes unless an op says otherwise.
//
// Paddings are an int32 or int64 matrix [rank, 2]: how many before and how many after. Errors:
// InvalidArgument for a negative padding, for one that is longer than what can be mirrored and for
// a matrix of another shape.

#include <string>

#include "graph/node_builder.h"

namespace millrace {

// `paddings[d]` = how many zeros before and after in dimension d.
inline Output Pad(ScopeAt at, Output input, const TensorArg& paddings) {
  return BuildOp(at, "Pad", {input, paddings});
}
// The same with a scalar instead of zeros.
inline Output PadV2(ScopeAt at, Output input, const TensorArg& paddings,
                    const TensorArg& constant_values) {
  return BuildOp(at, "PadV2", {input, paddings, constant_values});
}
// Padding with the tensor's own elements, mirrored at its border: mode "REFLECT" does not repeat
// the border itself (paddings < size), "SYMMETRIC" does (paddings <= size).
inline Output MirrorPad(ScopeAt at, Output input, const TensorArg& paddings,
                        const std::string& mode) {
  return BuildOp(at, "MirrorPad", {input, paddings}, "mode", mode);
}
// The gradient of MirrorPad: adds up what comes from copies of one element. Numbers only.
inline Output MirrorPadGrad(ScopeAt at, Output input, Output paddings, const std::string& mode) {
  return BuildOp(at, "MirrorPadGrad", {input, paddings}, "mode", mode);
}

}  // namespace millrace

#endif  // MILLRACE_OPS_ARRAY_PAD_H_
