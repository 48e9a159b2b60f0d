// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_SPARSE_SPARSE_MATMUL_H_
#define MILLRACE_OPS_SPARSE_SPARSE_MATMUL_H_

// SparseTensorDenseMatMul: a sparse matrix times a dense one.

#include "ops/sparse/sparse_tensor.h"

namespace millrace {

struct SparseTensorDenseMatMulAttrs {
  bool adjoint_a = false;  // transposed and, if complex, conjugated
  bool adjoint_b = false;
};

// product[i, :] = sum over the elements of row i of a of a[i, k] * b[k, :]. Indices of `a`: int32
// or int64, in any order, those of one place add up. float, double, int32,
// complex.
// InvalidArgument for an index that is not in the shape and for inner dimensions that differ.
inline Output SparseTensorDenseMatMul(ScopeAt at, const SparseTensor& a, Output b,
                                      const SparseTensorDenseMatMulAttrs& attrs = {}) {
  return BuildOp(at, "SparseTensorDenseMatMul", {a.indices, a.values, a.dense_shape, b},
                 "adjoint_a", attrs.adjoint_a, "adjoint_b", attrs.adjoint_b);
}

}  // namespace millrace

#endif  // MILLRACE_OPS_SPARSE_SPARSE_MATMUL_H_
