// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_MATH_BROADCAST_GRADIENT_H_
#define MILLRACE_OPS_MATH_BROADCAST_GRADIENT_H_

// The way back through a broadcast: a gradient of the broadcast result is summed over
// the axes along which an input was repeated.
//
// What static shapes tell is used: equal shapes add no node, a bias adds one Sum; only
// when two unknown sizes meet are the shapes compared in the step.

#include <algorithm>
#include <vector>

#include "core/shape.h"
#include "graph/scope.h"
#include "ops/array/constant.h"
#include "ops/array/reshape.h"
#include "ops/math/cwise_binary.h"
#include "ops/math/reduction.h"

namespace millrace {

// `gradient`, which has the shape of `input` broadcast with `other`, as the gradient of `input`.
inline Output SumToInput(const Scope& scope, Output gradient, Output input, Output other) {
  const PartialShape own = scope.shape(input), others = scope.shape(other);
  const int rank = std::max(own.rank(), others.rank());
  const int missing = rank - own.rank();  // axes of the result that the input lacks
  bool is_known = own.has_rank() && others.has_rank();
  std::vector<int64_t> axes;
  bool has_ones = false;  // the input has one of the axes, with size 1
  for (int axis = 0; is_known && axis < rank; ++axis) {
    if (axis >= missing) {
      const int64_t size = own.dim(axis - missing);
      const int other_axis = axis - (rank - others.rank());
      const bool is_repeated = other_axis >= 0 && others.dim(other_axis) != 1;
      if (!is_repeated || size > 1 || size == 0) continue;
      is_known = size == 1;
      has_ones = true;
    }
    axes.push_back(axis);
  }
  if (!is_known) {
    const Output shape = ShapeOf(scope, input);
    const Output other_shape = ShapeOf(scope, other);
    const Output in_step = BroadcastGradientArgs(scope, shape, other_shape).r0;
    return Reshape(scope, Sum(scope, gradient, in_step), shape);
  }
  if (axes.empty()) return gradient;
  const Output sum = ReduceSum(scope, gradient, axes, {.keep_dims = has_ones && missing == 0});
  return has_ones && missing > 0 ? Reshape(scope, sum, ShapeOf(scope, input)) : sum;
}

}  // namespace millrace

#endif  // MILLRACE_OPS_MATH_BROADCAST_GRADIENT_H_
