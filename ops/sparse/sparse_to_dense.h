// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_SPARSE_SPARSE_TO_DENSE_H_
#define MILLRACE_OPS_SPARSE_SPARSE_TO_DENSE_H_

// Sparse tensors written into dense ones.

#include "ops/sparse/sparse_tensor.h"

namespace millrace {

struct SparseToDenseAttrs {
  // Indices must be in row-major order, each once.
  bool validate_indices = true;
};

// A tensor of `output_shape` that has sparse_values at sparse_indices and default_value everywhere
// else; of several values for one place the last one stays. sparse_indices: int32 or int64, a
// matrix (one row per value), a vector (for a vector as output) or a scalar; output_shape of the
// same dtype; sparse_values: as many values, or one scalar for all places; default_value: a
// scalar. All dtypes. InvalidArgument for an index that is not in the shape.
inline Output SparseToDense(ScopeAt at, Output sparse_indices, Output output_shape,
                            Output sparse_values, Output default_value,
                            const SparseToDenseAttrs& attrs = {}) {
  return BuildOp(at, "SparseToDense", {sparse_indices, output_shape, sparse_values, default_value},
                 "validate_indices", attrs.validate_indices);
}

// The sparse tensor as a dense one (tf.sparse_tensor_to_dense).
inline Output SparseTensorToDense(ScopeAt at, const SparseTensor& input, Output default_value,
                                  const SparseToDenseAttrs& attrs = {}) {
  return SparseToDense(at, input.indices, input.dense_shape, input.values, default_value, attrs);
}

// The elements of `dense` that differ from `missing` (a scalar of its dtype), with their places.
SparseTensor DenseToSparse(ScopeAt at, Output dense, Output missing);

}  // namespace millrace

#endif  // MILLRACE_OPS_SPARSE_SPARSE_TO_DENSE_H_
