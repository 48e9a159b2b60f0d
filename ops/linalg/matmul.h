// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_LINALG_MATMUL_H_
#define MILLRACE_OPS_LINALG_MATMUL_H_

// Products of matrices.
//
// Both inputs have one dtype: bfloat16, half, float, double, int32, int64, complex64 or
// complex128. An inner dimension of size 0 gives zeros.
//
// Errors: InvalidArgument when a rank is wrong or the inner dimensions differ.

#include "graph/node_builder.h"

namespace millrace {

struct MatMulAttrs {
  bool transpose_a = false;
  bool transpose_b = false;
};

// product[m,n] = a[m,k] * b[k,n]; a is given as [k,m] with transpose_a, b as [n,k] with
// transpose_b.
inline Output MatMul(ScopeAt at, Output a, Output b, const MatMulAttrs& attrs = {}) {
  return BuildOp(at, "MatMul", {a, b}, "transpose_a", attrs.transpose_a, "transpose_b",
                 attrs.transpose_b);
}

struct BatchMatMulAttrs {
  // Adjoint: transposed, and conjugated when complex.
  bool adj_x = false;
  bool adj_y = false;
};

// output[...,m,n] = x[...,m,k] * y[...,k,n]; the leading dimensions of x and y are equal.
inline Output BatchMatMul(ScopeAt at, Output x, Output y, const BatchMatMulAttrs& attrs = {}) {
  return BuildOp(at, "BatchMatMul", {x, y}, "adj_x", attrs.adj_x, "adj_y", attrs.adj_y);
}

// As BatchMatMul; the leading dimensions are broadcast together.
inline Output BatchMatMulV2(ScopeAt at, Output x, Output y, const BatchMatMulAttrs& attrs = {}) {
  return BuildOp(at, "BatchMatMulV2", {x, y}, "adj_x", attrs.adj_x, "adj_y", attrs.adj_y);
}

}  // namespace millrace

#endif  // MILLRACE_OPS_LINALG_MATMUL_H_
