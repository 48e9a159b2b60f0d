// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_MATH_CAST_H_
#define MILLRACE_OPS_MATH_CAST_H_

// Changing the element type of a tensor.

#include "graph/node_builder.h"

namespace millrace {

struct CastAttrs {
  // Narrowing floats cut their low bits off instead of rounding.
  bool truncate = false;
};

// Every element converted to `dst`: floats to integers round towards zero, wider integers keep
// their low bits, numbers to bool say whether they are not 0, complex to real drops the imaginary
// part. The value of an integer from a float that is out of its range is not specified (the
// conversion is safe). Numbers and bool; InvalidArgument in the step for others.
inline Output Cast(ScopeAt at, Output x, DType dst, const CastAttrs& attrs = {}) {
  return BuildOp(at, "Cast", {x}, "DstT", dst, "Truncate", attrs.truncate);
}

// The same bytes seen as elements of `type`. With a smaller element a last dimension is added, with
// a larger one the last dimension, which must be the ratio of the sizes, vanishes. Numbers.
inline Output Bitcast(ScopeAt at, Output input, DType type) {
  return BuildOp(at, "Bitcast", {input}, "type", type);
}

}  // namespace millrace

#endif  // MILLRACE_OPS_MATH_CAST_H_
