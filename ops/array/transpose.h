// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_ARRAY_TRANSPOSE_H_
#define MILLRACE_OPS_ARRAY_TRANSPOSE_H_

// Dimensions in another order. A permutation `perm` (int32 or int64 vector) names for each
// dimension of the result the dimension of the input that it is. InvalidArgument for a vector that
// is no permutation of [0, rank).

#include "graph/node_builder.h"

namespace millrace {

// result.shape[i] = x.shape[perm[i]]. All dtypes.
inline Output Transpose(ScopeAt at, Output x, Output perm) {
  return NodeBuilder(at, "Transpose").Input(x).Input(perm).Finish().output(0);
}
// The same with complex elements conjugated.
inline Output ConjugateTranspose(ScopeAt at, Output x, Output perm) {
  return NodeBuilder(at, "ConjugateTranspose").Input(x).Input(perm).Finish().output(0);
}
// y[x[i]] = i.
inline Output InvertPermutation(ScopeAt at, Output x) {
  return NodeBuilder(at, "InvertPermutation").Input(x).Finish().output(0);
}

}  // namespace millrace

#endif  // MILLRACE_OPS_ARRAY_TRANSPOSE_H_
