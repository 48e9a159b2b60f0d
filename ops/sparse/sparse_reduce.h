// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_SPARSE_SPARSE_REDUCE_H_
#define MILLRACE_OPS_SPARSE_SPARSE_REDUCE_H_

// Sparse tensors reduced along dimensions, and softmax over the elements of their rows.

#include "ops/sparse/sparse_tensor.h"

namespace millrace {

struct SparseReduceAttrs {
  bool keep_dims = false;  // reduced dimensions stay, with size 1
};

// Sum (Max) along reduction_axes (int32 scalar or vector; negative ones count from the end; none:
// all), as a dense tensor. A place without an element is 0.
struct SparseReduceBuilder {
  const char* op;
  Output operator()(ScopeAt at, const SparseTensor& input, Output reduction_axes,
                    const SparseReduceAttrs& attrs = {}) const {
    return BuildOp(at, op, {input.indices, input.values, input.dense_shape, reduction_axes},
                   "keep_dims", attrs.keep_dims);
  }
};
inline constexpr SparseReduceBuilder SparseReduceSum{"SparseReduceSum"};
inline constexpr SparseReduceBuilder SparseReduceMax{"SparseReduceMax"};

// The same as a sparse tensor.
struct SparseReduceSparseBuilder {
  const char* op;
  SparseTensor operator()(ScopeAt at, const SparseTensor& input, Output reduction_axes,
                          const SparseReduceAttrs& attrs = {}) const {
    return SparseTensorAt(
        BuildOp(at, op, {input.indices, input.values, input.dense_shape, reduction_axes},
                "keep_dims", attrs.keep_dims),
        0);
  }
};
inline constexpr SparseReduceSparseBuilder SparseReduceSumSparse{"SparseReduceSumSparse"};
inline constexpr SparseReduceSparseBuilder SparseReduceMaxSparse{"SparseReduceMaxSparse"};

// Softmax over the elements that are there in each row of the last dimension. float, double; rank 2
// or more; indices in row-major order.
inline SparseTensor SparseSoftmax(ScopeAt at, const SparseTensor& input) {
  return {input.indices,
          BuildOp(at, "SparseSoftmax", {input.indices, input.values, input.dense_shape}),
          input.dense_shape};
}

}  // namespace millrace

#endif  // MILLRACE_OPS_SPARSE_SPARSE_REDUCE_H_
