// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_LINALG_QR_H_
#define MILLRACE_OPS_LINALG_QR_H_

// The QR decomposition of matrices.
//
//   input [..., m, n] = q r, the columns of q orthonormal, r upper triangular
//
// With p = min(m, n), q is [..., m, p] and r [..., p, n]; with full_matrices q is [..., m, m] and r
// [..., m, n]. The signs of r's diagonal are those of Householder's method, as in TensorFlow.
// Float, double, complex64 and complex128. There is no gradient.
//
// Errors: InvalidArgument for a rank below 2.

#include "graph/node_builder.h"

namespace millrace {

struct QrOutputs {
  Output q;
  Output r;
};
struct QrAttrs {
  bool full_matrices = false;
};
inline QrOutputs Qr(ScopeAt at, Output input, const QrAttrs& attrs = {}) {
  const BuiltNode node = BuildOp(at, "Qr", {input}, "full_matrices", attrs.full_matrices);
  return {node.output(0), node.output(1)};
}

}  // namespace millrace

#endif  // MILLRACE_OPS_LINALG_QR_H_
