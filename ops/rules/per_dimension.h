// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_RULES_PER_DIMENSION_H_
#define MILLRACE_OPS_RULES_PER_DIMENSION_H_

// Int vectors with one element for each dimension of a tensor: begins, sizes, multiples, paddings.
//
// Pure functions. Failure: InvalidArgument that names the vector.

#include <cstdint>

#include "core/shape.h"
#include "core/status.h"
#include "graph/op_rule.h"

namespace millrace {

// What is known of `input` when a vector (or matrix, by its rows) of `length` elements (-1: not
// known) says something about each of its dimensions: the rank, or whether it fits.
inline StatusOr<PartialShape> WithLength(const PartialShape& input, int64_t length,
                                         const char* name) {
  if (length == -1) return input;
  if (input.has_rank()) {
    if (length == input.rank()) return input;
    return InvalidArgument(name, " must have one element for each of the ", input.rank(),
                           " dimensions, got ", length);
  }
  if (length <= Shape::kMaxRank) return PartialShape::UnknownOfRank(static_cast<int>(length));
  return InvalidArgument(name, " must have at most ", Shape::kMaxRank, " elements, got ", length);
}
inline StatusOr<PartialShape> WithLength(const PartialShape& input, const PartialInts& vector,
                                         const char* name) {
  return WithLength(input, vector.has_size() ? vector.size() : -1, name);
}

}  // namespace millrace

#endif  // MILLRACE_OPS_RULES_PER_DIMENSION_H_
