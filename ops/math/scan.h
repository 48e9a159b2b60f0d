// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_MATH_SCAN_H_
#define MILLRACE_OPS_MATH_SCAN_H_

// Running sums and products along one axis: the result has the input's shape and dtype.
//
//   x = [a, b, c]          Cumsum: [a, a+b, a+b+c]
//   exclusive              [0, a, a+b]
//   reverse                [a+b+c, b+c, c]
//
// `axis` is an int32 or int64 scalar, counted from the end when negative. Numbers; integers wrap.
// Errors: InvalidArgument for an axis that is no scalar or out of range.

#include "graph/node_builder.h"

namespace millrace {

struct ScanAttrs {
  bool exclusive = false;
  bool reverse = false;
};

// Running sums.
inline Output Cumsum(ScopeAt at, Output x, const TensorArg& axis, const ScanAttrs& attrs = {}) {
  return BuildOp(at, "Cumsum", {x, axis}, "exclusive", attrs.exclusive, "reverse", attrs.reverse);
}

// Running products. Their gradient is right where elements are 0, too (a second one in lines with
// at most one 0).
inline Output Cumprod(ScopeAt at, Output x, const TensorArg& axis, const ScanAttrs& attrs = {}) {
  return BuildOp(at, "Cumprod", {x, axis}, "exclusive", attrs.exclusive, "reverse", attrs.reverse);
}

}  // namespace millrace

#endif  // MILLRACE_OPS_MATH_SCAN_H_
