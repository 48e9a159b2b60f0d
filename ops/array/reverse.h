// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_ARRAY_REVERSE_H_
#define MILLRACE_OPS_ARRAY_REVERSE_H_

// ReverseV2: turns dimensions of a tensor around. All dtypes.
//
// `axis` is an int32 or int64 vector; negative ones count from the end. Errors: InvalidArgument for
// an axis that the tensor does not have or that comes twice.

#include "graph/node_builder.h"

namespace millrace {

// The dimensions in `axis` (a vector) backwards.
inline Output ReverseV2(ScopeAt at, Output tensor, Output axis) {
  return BuildOp(at, "ReverseV2", {tensor, axis});
}

}  // namespace millrace

#endif  // MILLRACE_OPS_ARRAY_REVERSE_H_
