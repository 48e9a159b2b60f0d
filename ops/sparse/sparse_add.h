// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_SPARSE_SPARSE_ADD_H_
#define MILLRACE_OPS_SPARSE_SPARSE_ADD_H_

// Element-wise arithmetic of sparse tensors with sparse and dense ones. Numbers.
//
// Indices of two sparse tensors are in row-major order, each once.

#include "ops/sparse/sparse_tensor.h"

namespace millrace {

// a + b, of equal shape, where either has an element. Sums whose absolute value is below `thresh`
// (a scalar of the values' real type; 0: none) are left out.
inline SparseTensor SparseAdd(ScopeAt at, const SparseTensor& a, const SparseTensor& b,
                              Output thresh) {
  return SparseTensorAt(
      BuildOp(at, "SparseAdd",
              {a.indices, a.values, a.dense_shape, b.indices, b.values, b.dense_shape, thresh}),
      0);
}

struct SparseAddGradOutputs {
  Output a_val_grad;
  Output b_val_grad;
};
inline SparseAddGradOutputs SparseAddGrad(ScopeAt at, Output backprop_val_grad, Output a_indices,
                                          Output b_indices, Output sum_indices) {
  const BuiltNode node =
      BuildOp(at, "SparseAddGrad", {backprop_val_grad, a_indices, b_indices, sum_indices});
  return {node.output(0), node.output(1)};
}

// a + b as a dense tensor; `a` may have several elements in one place. Indices and shape of `a`:
// int32 or int64. Rank 1 to 5 in TensorFlow, any here.
inline Output SparseTensorDenseAdd(ScopeAt at, const SparseTensor& a, Output b) {
  return BuildOp(at, "SparseTensorDenseAdd", {a.indices, a.values, a.dense_shape, b});
}

// The larger (smaller) of both where either has an element; no element counts as 0.
struct SparseSparseBuilder {
  const char* op;
  SparseTensor operator()(ScopeAt at, const SparseTensor& a, const SparseTensor& b) const {
    const BuiltNode node =
        BuildOp(at, op, {a.indices, a.values, a.dense_shape, b.indices, b.values, b.dense_shape});
    return {node.output(0), node.output(1), a.dense_shape};
  }
};
inline constexpr SparseSparseBuilder SparseSparseMaximum{"SparseSparseMaximum"};
inline constexpr SparseSparseBuilder SparseSparseMinimum{"SparseSparseMinimum"};

// The elements of `sparse` multiplied with (divided by, added to) what `dense`, broadcast to the
// sparse shape, has in their places.
struct SparseDenseCwiseBuilder {
  const char* op;
  SparseTensor operator()(ScopeAt at, const SparseTensor& sparse, Output dense) const {
    return {sparse.indices,
            BuildOp(at, op, {sparse.indices, sparse.values, sparse.dense_shape, dense}),
            sparse.dense_shape};
  }
};
inline constexpr SparseDenseCwiseBuilder SparseDenseCwiseAdd{"SparseDenseCwiseAdd"};
inline constexpr SparseDenseCwiseBuilder SparseDenseCwiseMul{"SparseDenseCwiseMul"};
inline constexpr SparseDenseCwiseBuilder SparseDenseCwiseDiv{"SparseDenseCwiseDiv"};

}  // namespace millrace

#endif  // MILLRACE_OPS_SPARSE_SPARSE_ADD_H_
