// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_SPARSE_SPARSE_TENSOR_H_
#define MILLRACE_OPS_SPARSE_SPARSE_TENSOR_H_

// SparseTensor: a tensor of a graph of which only some elements are there, as three tensors.
//
//   [[0, a, 0],      indices      [[0, 1],     the place of each element: int64 [n, rank]
//    [0, 0, 0],                    [2, 0],
//    [b, 0, c]]                    [2, 2]]
//                    values       [a, b, c]    any dtype: [n]
//                    dense_shape  [3, 3]       int64 [rank]
//
// Ops want the places in row-major order, each once, unless they say otherwise; SparseReorder
// makes it so. A matrix of ids, one row per example and as many ids in it as there are, is how
// features with several values come (data/parse_example.h).
//
// A value; what the tensors say is checked by the ops that read it, in the step.

#include "graph/node_builder.h"  // IWYU pragma: export

namespace millrace {

struct SparseTensor {
  Output indices;
  Output values;
  Output dense_shape;

  bool valid() const { return indices.valid() && values.valid() && dense_shape.valid(); }
  DType dtype() const { return values.dtype(); }  // requires valid()
};

// Outputs [first, first + 3) of a node: the usual order.
inline SparseTensor SparseTensorAt(const BuiltNode& node, int first) {
  return {node.output(first), node.output(first + 1), node.output(first + 2)};
}

}  // namespace millrace

#endif  // MILLRACE_OPS_SPARSE_SPARSE_TENSOR_H_
