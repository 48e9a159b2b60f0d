// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_STATE_RESOURCE_ROWS_H_
#define MILLRACE_OPS_STATE_RESOURCE_ROWS_H_

// Rows of resource variables: what an embedding reads and what its gradient changes.
//
// Errors: FailedPrecondition for a variable without value ("... uninitialized ..."),
// InvalidArgument for another dtype or shape, or an index outside of the table; then nothing
// changes.

#include "graph/node_builder.h"

namespace millrace {

// Rows `indices` (int32 or int64, any shape) of the variable: [indices..., row...]. No row is torn.
inline Output ResourceGather(ScopeAt at, Output resource, Output indices, DType dtype) {
  return BuildOp(at, "ResourceGather", {resource, indices}, "dtype", dtype);
}
// Row indices[i] += (-=, =) updates[i]; updates: [indices..., row...] or a scalar. Repeated indices
// add up (for Update, one of them wins).
inline Operation ResourceScatterAdd(ScopeAt at, Output resource, Output indices, Output updates) {
  return BuildOp(at, "ResourceScatterAdd", {resource, indices, updates});
}
inline Operation ResourceScatterSub(ScopeAt at, Output resource, Output indices, Output updates) {
  return BuildOp(at, "ResourceScatterSub", {resource, indices, updates});
}
inline Operation ResourceScatterUpdate(ScopeAt at, Output resource, Output indices,
                                       Output updates) {
  return BuildOp(at, "ResourceScatterUpdate", {resource, indices, updates});
}

}  // namespace millrace

#endif  // MILLRACE_OPS_STATE_RESOURCE_ROWS_H_
