// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_MATH_REDUCTION_H_
#define MILLRACE_OPS_MATH_REDUCTION_H_

// Reductions: along some axes of a tensor, its elements become one.
//
// `reduction_indices` is an int32 or int64 scalar or vector of axes, counted from the
// end when negative; an empty one reduces nothing. Reduced dimensions vanish, or stay
// as 1 with keep_dims. The result does not depend on the number of threads.
//
// Errors: InvalidArgument for an axis that is out of range or named twice, and for axes of a rank
// above 1.
//
// ReduceSum, ReduceMean, ... take the axes as numbers: {} for all of them.

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <utility>
#include <vector>

#include "graph/node_builder.h"

namespace millrace {

struct ReductionAttrs {
  bool keep_dims = false;
};

struct ReductionBuilder {
  const char* op;
  Output operator()(ScopeAt at, Output input, const TensorArg& reduction_indices,
                    const ReductionAttrs& attrs = {}) const {
    return BuildOp(at, op, {input, reduction_indices}, "keep_dims", attrs.keep_dims);
  }
};
// The sum; 0 of nothing. All numbers; integers wrap.
inline constexpr ReductionBuilder Sum{"Sum"};
// The mean; NaN of nothing. All numbers; that of integers rounds towards zero.
inline constexpr ReductionBuilder Mean{"Mean"};
// The product; 1 of nothing. All numbers; integers wrap.
inline constexpr ReductionBuilder Prod{"Prod"};
// The largest element; of nothing the lowest value of the dtype. Real numbers; NaN wins.
inline constexpr ReductionBuilder Max{"Max"};
// The smallest element; of nothing the highest value of the dtype. Real numbers; NaN wins.
inline constexpr ReductionBuilder Min{"Min"};
// Is any element true? bool.
inline constexpr ReductionBuilder Any{"Any"};
// Are all elements true? bool.
inline constexpr ReductionBuilder All{"All"};

struct ArgMaxAttrs {
  DType output_type = DT_INT64;  // or int32
};

// The index of the largest element along `dimension` (int32 or int64 scalar); the first of equals.
// InvalidArgument when the dimension is out of range or of size 0.
inline Output ArgMax(ScopeAt at, Output input, const TensorArg& dimension,
                     const ArgMaxAttrs& attrs = {}) {
  return BuildOp(at, "ArgMax", {input, dimension}, "output_type", attrs.output_type);
}
using ArgMinAttrs = ArgMaxAttrs;
// The index of the smallest element along `dimension`; as ArgMax otherwise.
inline Output ArgMin(ScopeAt at, Output input, const TensorArg& dimension,
                     const ArgMinAttrs& attrs = {}) {
  return BuildOp(at, "ArgMin", {input, dimension}, "output_type", attrs.output_type);
}

// Half the sum of the squares of all elements: a scalar. Floats.
inline Output L2Loss(ScopeAt at, Output t) { return BuildOp(at, "L2Loss", {t}); }

// The axes as a node: a constant, or for all axes of a tensor of unknown rank Range(0,
// Rank(input)).
Output ReductionAxes(ScopeAt at, Output input, const std::vector<int64_t>& axes);

// The axes of a reduction: none (all of the tensor's), one, or several; negative ones count from
// the end.
class Axes {
 public:
  Axes() = default;
  template <std::integral T>
  Axes(T axis) : values_{static_cast<int64_t>(axis)} {}          // NOLINT
  Axes(std::initializer_list<int64_t> axes) : values_(axes) {}   // NOLINT
  Axes(std::vector<int64_t> axes) : values_(std::move(axes)) {}  // NOLINT
  const std::vector<int64_t>& values() const { return values_; }

 private:
  std::vector<int64_t> values_;
};

struct AxesReductionBuilder {
  const char* op;
  Output operator()(ScopeAt at, const Output& input, const Axes& axes = {},
                    const ReductionAttrs& attrs = {}) const;
};
// The Euclidean norm along the axes: the root of the sum of the squares. Floats. Named "norm".
Output Norm(ScopeAt at, const Output& x, const Axes& axes = {}, const ReductionAttrs& attrs = {});

inline constexpr AxesReductionBuilder ReduceSum{"Sum"};
inline constexpr AxesReductionBuilder ReduceMean{"Mean"};
inline constexpr AxesReductionBuilder ReduceProd{"Prod"};
inline constexpr AxesReductionBuilder ReduceMax{"Max"};
inline constexpr AxesReductionBuilder ReduceMin{"Min"};
inline constexpr AxesReductionBuilder ReduceAny{"Any"};
inline constexpr AxesReductionBuilder ReduceAll{"All"};

}  // namespace millrace

#endif  // MILLRACE_OPS_MATH_REDUCTION_H_
