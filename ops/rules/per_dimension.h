// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_RULES_PER_DIMENSION_H_
#define MILLRACE_OPS_RULES_PER_DIMENSION_H_

// Int vectors with one element for each dimension of a tensor: begins, sizes, multiples, paddings.
//
// What a shape function knows of such a vector's shape and what it knows of its value come from
// two sources, and the value may be longer than the shape tells ([?]): the length of a value is
// checked before it indexes dimensions.
//
// Pure functions. Failure: InvalidArgument that names the vector.

#include <cstddef>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "core/shape.h"
#include "core/status.h"
#include "graph/op_rule.h"

namespace millrace {

// A vector (or matrix, by its rows) that says something about every dimension of a tensor.
inline Status CheckLength(const char* name, size_t length, int rank) {
  if (static_cast<int64_t>(length) != rank) {
    return absl::InvalidArgumentError(absl::StrCat(name, " must have one element for each of the ",
                                                   rank, " dimensions, got ", length));
  }
  return absl::OkStatus();
}

// The rank that an int vector input with `n` elements gives its tensor, merged with what is known
// of the tensor.
inline StatusOr<PartialShape> WithLength(const PartialShape& input, const PartialShape& vector,
                                         const char* name) {
  if (!vector.has_rank() || vector.rank() != 1 || vector.dim(0) == -1) return input;
  if (!input.has_rank()) {
    if (vector.dim(0) > Shape::kMaxRank) {
      return absl::InvalidArgumentError(absl::StrCat(name, " must have at most ", Shape::kMaxRank,
                                                     " elements, got ", vector.dim(0)));
    }
    return PartialShape::UnknownOfRank(static_cast<int>(vector.dim(0)));
  }
  MR_RETURN_IF_ERROR(CheckLength(name, static_cast<size_t>(vector.dim(0)), input.rank()));
  return input;
}

// The same for a vector that a rule sees: the rank that it gives its tensor, or the one that it
// must fit.
inline StatusOr<PartialShape> WithLength(const PartialShape& input, const PartialInts& vector,
                                         const char* name) {
  if (!vector.has_size()) return input;
  if (input.has_rank()) {
    MR_RETURN_IF_ERROR(CheckLength(name, static_cast<size_t>(vector.size()), input.rank()));
    return input;
  }
  if (vector.size() <= Shape::kMaxRank) return PartialShape::UnknownOfRank(vector.size());
  return InvalidArgument(name, " must have at most ", Shape::kMaxRank, " elements, got ",
                         vector.size());
}

}  // namespace millrace

#endif  // MILLRACE_OPS_RULES_PER_DIMENSION_H_
