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
  return NodeBuilder(at, "ResourceGather")
      .Input(resource)
      .Input(indices)
      .Attr("dtype", dtype)
      .Finish()
      .output(0);
}
// Row indices[i] += (-=, =) updates[i]; updates: [indices..., row...] or a scalar. Repeated indices
// add up (for Update, one of them wins).
inline Operation ResourceScatterAdd(ScopeAt at, Output resource, Output indices, Output updates) {
  return NodeBuilder(at, "ResourceScatterAdd")
      .Input(resource)
      .Input(indices)
      .Input(updates)
      .Finish()
      .operation();
}
inline Operation ResourceScatterSub(ScopeAt at, Output resource, Output indices, Output updates) {
  return NodeBuilder(at, "ResourceScatterSub")
      .Input(resource)
      .Input(indices)
      .Input(updates)
      .Finish()
      .operation();
}
inline Operation ResourceScatterUpdate(ScopeAt at, Output resource, Output indices,
                                       Output updates) {
  return NodeBuilder(at, "ResourceScatterUpdate")
      .Input(resource)
      .Input(indices)
      .Input(updates)
      .Finish()
      .operation();
}

}  // namespace millrace

#endif  // MILLRACE_OPS_STATE_RESOURCE_ROWS_H_
