// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_SPARSE_SPARSE_RESHAPE_H_
#define MILLRACE_OPS_SPARSE_SPARSE_RESHAPE_H_

// The same elements in another shape (SparseReshape), or listed in another order (SparseReorder).
// All dtypes.

#include "ops/sparse/sparse_tensor.h"

namespace millrace {

// Row-major, as Reshape: the elements are those of `input`, each where its place in the dense
// tensor would be. new_shape: int64 vector; one dimension may be -1, which is computed.
// InvalidArgument for a shape of another size, a second -1, and an index that is not in the
// shape.
inline SparseTensor SparseReshape(ScopeAt at, const SparseTensor& input, Output new_shape) {
  const BuiltNode node =
      BuildOp(at, "SparseReshape", {input.indices, input.dense_shape, new_shape});
  return {node.output(0), input.values, node.output(1)};
}

// The elements in row-major order of their places; those of one place stay in their order.
inline SparseTensor SparseReorder(ScopeAt at, const SparseTensor& input) {
  const BuiltNode node =
      BuildOp(at, "SparseReorder", {input.indices, input.values, input.dense_shape});
  return {node.output(0), node.output(1), input.dense_shape};
}

}  // namespace millrace

#endif  // MILLRACE_OPS_SPARSE_SPARSE_RESHAPE_H_
