// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_ARRAY_PLACEHOLDER_H_
#define MILLRACE_OPS_ARRAY_PLACEHOLDER_H_

// Placeholders: tensors that the caller of a step feeds.

#include "graph/node_builder.h"

namespace millrace {

// A tensor of this dtype that must be fed; -1 in the shape is a dimension that may vary.
// InvalidArgument at the step: "You must feed a value for placeholder tensor '<name>' ...".
inline Output Placeholder(ScopeAt at, DType dtype, const PartialShape& shape = {}) {
  return BuildOp(at, "Placeholder", {}, "dtype", dtype, "shape", shape);
}

// Deprecated form of old graphs; the same.
inline Output PlaceholderV2(ScopeAt at, DType dtype, const PartialShape& shape) {
  return BuildOp(at, "PlaceholderV2", {}, "dtype", dtype, "shape", shape);
}

// `input` unless something is fed. `input`'s shape must be compatible with `shape`.
inline Output PlaceholderWithDefault(ScopeAt at, Output input, const PartialShape& shape) {
  return BuildOp(at, "PlaceholderWithDefault", {input}, "shape", shape);
}

}  // namespace millrace

#endif  // MILLRACE_OPS_ARRAY_PLACEHOLDER_H_
