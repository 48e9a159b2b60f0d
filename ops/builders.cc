// SPDX-License-Identifier: Apache-2.0
// The builders that do more than one call, and the one that every literal ends in: in a header,
// each program that calls them would compile them.

#include <cstdint>
#include <vector>

#include "core/shape.h"
#include "core/tensor.h"
#include "graph/node_builder.h"
#include "ops/array/constant.h"
#include "ops/array/reshape.h"
#include "ops/math/reduction.h"

namespace millrace {

Output Const(ScopeAt at, const Tensor& value) {
  return BuildOp(at, "Const", {}, "dtype", value.dtype(), "value", value);
}

Output ReductionAxes(ScopeAt at, Output input, const std::vector<int64_t>& axes) {
  std::vector<int32_t> values;
  for (const int64_t axis : axes) values.push_back(static_cast<int32_t>(axis));
  if (axes.empty()) {
    const PartialShape shape = at.scope.shape(input);
    if (!shape.has_rank()) {
      const Output rank = Rank(ScopeAt(at.scope.WithName("Rank"), at.where), input);
      const Output zero = Const(ScopeAt(at.scope.WithName("Const"), at.where), int32_t{0});
      const Output one = Const(ScopeAt(at.scope.WithName("Const"), at.where), int32_t{1});
      return Range(ScopeAt(at.scope.WithName("range"), at.where), zero, rank, one);
    }
    for (int32_t i = 0; i < shape.rank(); ++i) values.push_back(i);
  }
  return ConstVector<int32_t>(ScopeAt(at.scope.WithName("Const"), at.where), values);
}

Output AxesReductionBuilder::operator()(ScopeAt at, const Output& input,
                                        const std::vector<int64_t>& axes,
                                        const ReductionAttrs& attrs) const {
  return ReductionBuilder{op}(at, input, ReductionAxes(at, input, axes), attrs);
}

}  // namespace millrace
