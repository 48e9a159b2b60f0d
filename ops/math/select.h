// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_MATH_SELECT_H_
#define MILLRACE_OPS_MATH_SELECT_H_

// Choosing between two tensors, and limiting one.

#include "graph/node_builder.h"

namespace millrace {

// t where the condition (bool) holds, e elsewhere; t and e have one shape. The condition has that
// shape too, or is a scalar for all, or a vector that chooses whole rows. Every dtype.
// InvalidArgument for other shapes.
inline Output Select(ScopeAt at, Output condition, const TensorArg& t, const TensorArg& e) {
  return BuildOp(at, "Select", {condition, t, e});
}

// The same with NumPy's broadcasting: t where the condition (bool) holds, e elsewhere; the result
// has the shape of all three broadcast together, so a vector chooses along the last axis. Every
// dtype. InvalidArgument "condition ..., then ..., and else ... must be broadcastable" for other
// shapes.
inline Output SelectV2(ScopeAt at, Output condition, const TensorArg& t, const TensorArg& e) {
  return BuildOp(at, "SelectV2", {condition, t, e});
}

// min(max(t, clip_value_min), clip_value_max); each bound is a scalar or has t's shape. Real
// numbers. InvalidArgument for other shapes.
inline Output ClipByValue(ScopeAt at, Output t, const TensorArg& clip_value_min,
                          const TensorArg& clip_value_max) {
  return BuildOp(at, "ClipByValue", {t, clip_value_min, clip_value_max});
}

}  // namespace millrace

#endif  // MILLRACE_OPS_MATH_SELECT_H_
