// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_MATH_ADD_N_H_
#define MILLRACE_OPS_MATH_ADD_N_H_

// Sums of many tensors of one shape and dtype.
//
// Errors: InvalidArgument when the shapes differ or there is no input.

#include "graph/node_builder.h"

namespace millrace {

// inputs[0] + inputs[1] + ... Numbers.
inline Output AddN(ScopeAt at, absl::Span<const Output> inputs) {
  return BuildOp(at, "AddN", {inputs});
}

// As AddN; `shape` is the shape of every input, fully known.
inline Output AccumulateNV2(ScopeAt at, absl::Span<const Output> inputs,
                            const PartialShape& shape) {
  return BuildOp(at, "AccumulateNV2", {inputs}, "shape", shape);
}

}  // namespace millrace

#endif  // MILLRACE_OPS_MATH_ADD_N_H_
