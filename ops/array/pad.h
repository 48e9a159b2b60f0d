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
inline Output Pad(ScopeAt at, Output input, Output paddings) {
  return NodeBuilder(at, "Pad").Input(input).Input(paddings).Finish().output(0);
}
// The same with a scalar instead of zeros.
inline Output PadV2(ScopeAt at, Output input, Output paddings, Output constant_values) {
  return NodeBuilder(at, "PadV2")
      .Input(input)
      .Input(paddings)
      .Input(constant_values)
      .Finish()
      .output(0);
}
// Padding with the tensor's own elements, mirrored at its border: mode "REFLECT" does not repeat
// the border itself (paddings < size), "SYMMETRIC" does (paddings <= size).
inline Output MirrorPad(ScopeAt at, Output input, Output paddings, const std::string& mode) {
  return NodeBuilder(at, "MirrorPad")
      .Input(input)
      .Input(paddings)
      .Attr("mode", mode)
      .Finish()
      .output(0);
}
// The gradient of MirrorPad: adds up what comes from copies of one element. Numbers only.
inline Output MirrorPadGrad(ScopeAt at, Output input, Output paddings, const std::string& mode) {
  return NodeBuilder(at, "MirrorPadGrad")
      .Input(input)
      .Input(paddings)
      .Attr("mode", mode)
      .Finish()
      .output(0);
}

}  // namespace millrace

#endif  // MILLRACE_OPS_ARRAY_PAD_H_
