// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_STATE_COUNT_UP_TO_H_
#define MILLRACE_OPS_STATE_COUNT_UP_TO_H_

// ResourceCountUpTo: a variable that counts, up to a limit: epochs of an input queue, say.
//
//   output = value;  value = value + 1     while value < limit
//
// At the limit the op fails with OutOfRange "Reached limit of N", the end of the data, and the
// value stays. Steps that count at the same time get different numbers. No gradient.

#include <cstdint>

#include "graph/node_builder.h"

namespace millrace {

// `resource`: a scalar variable of `dtype`, int32 or int64.
inline Output ResourceCountUpTo(ScopeAt at, Output resource, int64_t limit, DType dtype) {
  return BuildOp(at, "ResourceCountUpTo", {resource}, "limit", limit, "T", dtype);
}

}  // namespace millrace

#endif  // MILLRACE_OPS_STATE_COUNT_UP_TO_H_
