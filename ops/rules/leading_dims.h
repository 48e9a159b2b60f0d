// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_RULES_LEADING_DIMS_H_
#define MILLRACE_OPS_RULES_LEADING_DIMS_H_

// Tensors that say something about each row of another one: their shape is how the other's begins
// (partitions, segment ids, indices of rows), and what follows is the shape of a row.
//
// Pure functions; unknown dimensions agree with everything.

#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/shape.h"
#include "core/status.h"

namespace millrace {

inline bool BeginsWith(const PartialShape& shape, const PartialShape& leading) {
  if (!shape.has_rank() || !leading.has_rank()) return true;
  if (leading.rank() > shape.rank()) return false;
  for (int d = 0; d < leading.rank(); ++d) {
    const int64_t a = shape.dim(d), b = leading.dim(d);
    if (a != b && a != -1 && b != -1) return false;
  }
  return true;
}

// `rows` (-1: unknown) rows of `data`: [rows] + what follows the dimensions of `leading`, input
// `name`. Unknown while a rank is. InvalidArgument when data does not begin so.
inline StatusOr<PartialShape> RowsBehind(int64_t rows, const PartialShape& data,
                                         const PartialShape& leading, absl::string_view name) {
  if (!BeginsWith(data, leading)) {
    return InvalidArgument("the shape of ", name, " must begin the shape of data ", data, ", got ",
                           leading);
  }
  if (!data.has_rank() || !leading.has_rank()) return PartialShape();
  std::vector<int64_t> dims = {rows};
  dims.insert(dims.end(), data.dims().begin() + leading.rank(), data.dims().end());
  return PartialShape::Make(dims);
}

}  // namespace millrace

#endif  // MILLRACE_OPS_RULES_LEADING_DIMS_H_
