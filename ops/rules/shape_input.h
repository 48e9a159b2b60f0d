// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_RULES_SHAPE_INPUT_H_
#define MILLRACE_OPS_RULES_SHAPE_INPUT_H_

// The shape that an int vector input says outright (no -1 for "as it comes"): of random tensors,
// of what is broadcast.
//
// Pure function. Failure: InvalidArgument that names the vector and its element.

#include <optional>
#include <vector>

#include "absl/strings/string_view.h"
#include "graph/op_rule.h"

namespace millrace {

// As far as it is known. "<name>[i] must be >= 0, got -1".
inline StatusOr<PartialShape> ShapeOfInput(RuleContext* c, int i, absl::string_view name) {
  MR_ASSIGN_OR_RETURN(const PartialInts ints, c->IntVector(i, name));
  if (!ints.has_size()) return PartialShape();
  std::vector<int64_t> dims;
  for (int d = 0; d < ints.size(); ++d) {
    const std::optional<int64_t> dim = ints.at(d);
    if (dim.value_or(0) < 0) return InvalidArgument(name, "[", d, "] must be >= 0, got ", *dim);
    dims.push_back(dim.value_or(-1));
  }
  return PartialShape::Make(dims);
}

}  // namespace millrace

#endif  // MILLRACE_OPS_RULES_SHAPE_INPUT_H_
