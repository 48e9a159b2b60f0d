// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_SPARSE_SPARSE_CONCAT_H_
#define MILLRACE_OPS_SPARSE_SPARSE_CONCAT_H_

// Sparse tensors joined along a dimension and taken apart again. All dtypes.

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "ops/sparse/sparse_tensor.h"

namespace millrace {

// Two or more, whose shapes differ in dimension concat_dim (negative: from the end) alone. The
// result is in row-major order when the inputs are.
SparseTensor SparseConcat(ScopeAt at, absl::Span<const SparseTensor> inputs, int64_t concat_dim);

// num_split parts along dimension split_dim (int64 scalar). When it cannot be divided evenly the
// first parts are one longer.
std::vector<SparseTensor> SparseSplit(ScopeAt at, Output split_dim, const SparseTensor& input,
                                      int num_split);

// The box of `size` elements from `start` (int64 vectors, one number per dimension): what of it
// lies in the tensor.
inline SparseTensor SparseSlice(ScopeAt at, const SparseTensor& input, Output start, Output size) {
  return SparseTensorAt(
      BuildOp(at, "SparseSlice", {input.indices, input.values, input.dense_shape, start, size}), 0);
}

// The gradient of the input's values: that of the output's where there are some, else 0. Both
// lists of indices are in row-major order.
inline Output SparseSliceGrad(ScopeAt at, Output backprop_val_grad, Output input_indices,
                              Output input_start, Output output_indices) {
  return BuildOp(at, "SparseSliceGrad",
                 {backprop_val_grad, input_indices, input_start, output_indices});
}

}  // namespace millrace

#endif  // MILLRACE_OPS_SPARSE_SPARSE_CONCAT_H_
