// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_MATH_BROADCAST_GRADIENT_H_
#define MILLRACE_OPS_MATH_BROADCAST_GRADIENT_H_

// The way back through a broadcast: a gradient of the broadcast result is summed over
// the axes along which an input was repeated.
//
// What static shapes tell is used: equal shapes add no node, a bias adds one Sum; only
// when two unknown sizes meet are the shapes compared in the step.

#include <algorithm>
#include <optional>
#include <vector>

#include "core/shape.h"
#include "graph/scope.h"
#include "ops/array/constant.h"
#include "ops/array/reshape.h"
#include "ops/math/cwise_binary.h"
#include "ops/math/reduction.h"

namespace millrace {

// How static shapes decide; see SumToInput.
struct StaticUnbroadcast {
  std::vector<int64_t> axes;  // of the result, to be summed
  bool inner = false;         // an axis that the input has with size 1
  bool outer = false;         // an axis that the input lacks
};

// Empty when the shapes leave it open.
inline std::optional<StaticUnbroadcast> UnbroadcastAxes(const PartialShape& input,
                                                        const PartialShape& other) {
  if (!input.has_rank() || !other.has_rank()) return std::nullopt;
  StaticUnbroadcast result;
  const int rank = std::max(input.rank(), other.rank());
  for (int axis = 0; axis < rank; ++axis) {
    const int own_axis = axis - (rank - input.rank());
    const int other_axis = axis - (rank - other.rank());
    if (own_axis < 0) {
      result.axes.push_back(axis);
      result.outer = true;
      continue;
    }
    const int64_t own = input.dim(own_axis);
    const int64_t others = other_axis < 0 ? 1 : other.dim(other_axis);
    if (others == 1 || own > 1 || own == 0) continue;  // the input is not repeated here
    if (own != 1) return std::nullopt;
    result.axes.push_back(axis);
    result.inner = true;
  }
  return result;
}

// `gradient`, which has the shape of `input` broadcast with `other`, as the gradient of `input`.
inline Output SumToInput(const Scope& scope, Output gradient, Output input, Output other) {
  const std::optional<StaticUnbroadcast> known =
      UnbroadcastAxes(scope.shape(input), scope.shape(other));
  Output sum;
  if (known.has_value()) {
    if (known->axes.empty()) return gradient;
    sum = ReduceSum(scope, gradient, known->axes, {.keep_dims = known->inner && !known->outer});
    if (!known->inner || !known->outer) return sum;
  } else {
    const Output input_shape = ShapeOf(scope, input);
    const Output other_shape = ShapeOf(scope, other);
    sum = Sum(scope, gradient, BroadcastGradientArgs(scope, input_shape, other_shape).r0);
    return Reshape(scope, sum, input_shape);
  }
  return Reshape(scope, sum, ShapeOf(scope, input));
}

}  // namespace millrace

#endif  // MILLRACE_OPS_MATH_BROADCAST_GRADIENT_H_
