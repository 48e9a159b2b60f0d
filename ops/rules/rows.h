// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_RULES_ROWS_H_
#define MILLRACE_OPS_RULES_ROWS_H_

// Tensors as rows: elements of one shape one behind the other, along a dimension put before theirs.
//
// Pure functions.

#include <cstdint>
#include <vector>

#include "core/shape.h"
#include "core/status.h"
#include "core/tensor.h"

namespace millrace {

// `n` (-1: unknown) rows of this shape; unknown where that has no rank, or is too large.
inline PartialShape ShapeOfRows(int64_t n, const PartialShape& row) {
  if (!row.has_rank()) return PartialShape();
  std::vector<int64_t> dims = {n};
  dims.insert(dims.end(), row.dims().begin(), row.dims().end());
  StatusOr<PartialShape> shape = PartialShape::Make(dims);
  return shape.ok() ? *shape : PartialShape();
}
// The same, known. InvalidArgument where it is too large.
inline StatusOr<Shape> ShapeOfRows(int64_t n, const Shape& row) {
  std::vector<int64_t> dims = {n};
  dims.insert(dims.end(), row.dims().begin(), row.dims().end());
  return Shape::Make(dims);
}

// Row i of `rows`, which has rank >= 1, in the same memory.
inline StatusOr<Tensor> RowOf(const Tensor& rows, int64_t i) {
  return rows.Rows(i, i + 1).Reshaped(rows.shape().WithoutDim(0));
}

}  // namespace millrace

#endif  // MILLRACE_OPS_RULES_ROWS_H_
