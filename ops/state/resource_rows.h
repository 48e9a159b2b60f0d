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

struct ResourceGatherAttrs {
  // The first batch_dims dimensions of variable and indices belong together; counted from the rank
  // of indices when negative.
  int64_t batch_dims = 0;
};
// Rows `indices` (int32 or int64, any shape) of the variable: [indices..., row...]. No row is torn.
// With batch_dims = b, rows of each batch: variable[:b] + indices[b:] + variable[b + 1:]; they are
// those of one moment, and the gradient is dense.
inline Output ResourceGather(ScopeAt at, Output resource, Output indices, DType dtype,
                             const ResourceGatherAttrs& attrs = {}) {
  return BuildOp(at, "ResourceGather", {resource, indices}, "dtype", dtype, "batch_dims",
                 attrs.batch_dims);
}
// The variable's GatherNd (ops/array/gather.h), of the value of one moment. Its gradient is
// IndexedSlices where the indices are known to be rows, [n, 1], and dense otherwise.
inline Output ResourceGatherNd(ScopeAt at, Output resource, Output indices, DType dtype) {
  return BuildOp(at, "ResourceGatherNd", {resource, indices}, "dtype", dtype);
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
