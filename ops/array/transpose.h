// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_ARRAY_TRANSPOSE_H_
#define MILLRACE_OPS_ARRAY_TRANSPOSE_H_

// Dimensions in another order. A permutation `perm` (int32 or int64 vector) names for each
// dimension of the result the dimension of the input that it is. InvalidArgument for a vector that
// is no permutation of [0, rank).

#include "graph/node_builder.h"

namespace millrace {

// result.shape[i] = x.shape[perm[i]]. All dtypes.
inline Output Transpose(ScopeAt at, Output x, const TensorArg& perm) {
  return BuildOp(at, "Transpose", {x, perm});
}
// The same with complex elements conjugated.
inline Output ConjugateTranspose(ScopeAt at, Output x, const TensorArg& perm) {
  return BuildOp(at, "ConjugateTranspose", {x, perm});
}
// y[x[i]] = i.
inline Output InvertPermutation(ScopeAt at, Output x) {
  return BuildOp(at, "InvertPermutation", {x});
}

}  // namespace millrace

#endif  // MILLRACE_OPS_ARRAY_TRANSPOSE_H_
