// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_SPARSE_SPARSE_FILL_EMPTY_ROWS_H_
#define MILLRACE_OPS_SPARSE_SPARSE_FILL_EMPTY_ROWS_H_

// Rows of sparse tensors: empty ones filled, elements left out. All dtypes.

#include "ops/sparse/sparse_tensor.h"

namespace millrace {

struct SparseFillEmptyRowsOutputs {
  SparseTensor output;         // in the order of rows; elements of one row stay in their order
  Output empty_row_indicator;  // bool [rows]: the row had no element
  Output reverse_index_map;    // int64 [n]: where element i of the input stands in the output
};

// Every row (dimension 0) without an element gets one at [row, 0, ...]: default_value (a scalar).
// InvalidArgument for a shape of rank 0 and an index that is not in the shape.
inline SparseFillEmptyRowsOutputs SparseFillEmptyRows(ScopeAt at, const SparseTensor& input,
                                                      Output default_value) {
  const BuiltNode node = BuildOp(at, "SparseFillEmptyRows",
                                 {input.indices, input.values, input.dense_shape, default_value});
  return {{node.output(0), node.output(1), input.dense_shape}, node.output(2), node.output(3)};
}

struct SparseFillEmptyRowsGradOutputs {
  Output d_values;         // of the input's values
  Output d_default_value;  // a scalar: the sum of the gradients of what was filled in
};
inline SparseFillEmptyRowsGradOutputs SparseFillEmptyRowsGrad(ScopeAt at, Output reverse_index_map,
                                                              Output grad_values) {
  const BuiltNode node = BuildOp(at, "SparseFillEmptyRowsGrad", {reverse_index_map, grad_values});
  return {node.output(0), node.output(1)};
}

// The elements for which `to_retain` (bool [n]) is true, in the same shape (tf.sparse_retain).
SparseTensor SparseRetain(ScopeAt at, const SparseTensor& input, Output to_retain);

}  // namespace millrace

#endif  // MILLRACE_OPS_SPARSE_SPARSE_FILL_EMPTY_ROWS_H_
