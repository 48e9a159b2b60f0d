// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_ARRAY_GATHER_H_
#define MILLRACE_OPS_ARRAY_GATHER_H_

// Rows by index: picking slices of a tensor, and putting slices into one.
//
// Indices are int32 or int64. InvalidArgument "indices[1,0] = 7 is not in [0, 5)" for one that is
// outside.

#include "graph/node_builder.h"

namespace millrace {

struct GatherV2Attrs {
  // The first batch_dims dimensions of params and indices belong together.
  int64_t batch_dims = 0;
};
// params[..., indices, ...] at dimension `axis` (scalar): the shape of params with the dimension
// replaced by the shape of indices (without batch dimensions). All dtypes. The gradient for axis 0
// is IndexedSlices.
inline Output GatherV2(ScopeAt at, Output params, const TensorArg& indices, const TensorArg& axis,
                       const GatherV2Attrs& attrs = {}) {
  return BuildOp(at, "GatherV2", {params, indices, axis}, "batch_dims", attrs.batch_dims);
}
// The form of old graphs, (params, indices): axis 0.
inline constexpr BinaryBuilder Gather{"Gather"};
// (params, indices): the last dimension of indices is an index into the first dimensions of params,
// the result has shape indices.shape[:-1] + params.shape[indices.shape[-1]:]. All dtypes.
inline constexpr BinaryBuilder GatherNd{"GatherNd"};
// Zeros of shape `shape` with updates added at indices (as GatherNd reads them). Repeated indices
// add up. half, bfloat16 (rounded after each addition), float, double, int32, int64 and complex.
inline Output ScatterNd(ScopeAt at, const TensorArg& indices, const TensorArg& updates,
                        const TensorArg& shape) {
  return BuildOp(at, "ScatterNd", {indices, updates, shape});
}

}  // namespace millrace

#endif  // MILLRACE_OPS_ARRAY_GATHER_H_
