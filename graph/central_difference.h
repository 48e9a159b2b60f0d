// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_GRAPH_CENTRAL_DIFFERENCE_H_
#define MILLRACE_GRAPH_CENTRAL_DIFFERENCE_H_

// Central differences: the numeric half of a check of gradients. Programs have it as GradientError
// (train/gradient_error.h), tests of ops as ExpectGradientsMatch (runtime/testing/op_test.h).
//
// What is differentiated is one number: the sum of all components of all outputs, each times a
// weight of its own. The weights, as gradients of the outputs, give the same from a graph.
//
// Pure functions, except for the state of a caller's random generator.

#include <cstddef>
#include <functional>
#include <random>

#include "absl/types/span.h"
#include "core/dtype.h"
#include "core/status.h"
#include "core/tensor.h"

namespace millrace {

// The real numbers of a tensor of a floating or complex type: one per element, or two, its real and
// its imaginary part.
size_t NumComponents(const Tensor& t);
// Component i < NumComponents(t). NaN for a tensor of another type.
double Component(const Tensor& t, size_t i);
// Changes nothing in a tensor of another type.
void SetComponent(Tensor* t, size_t i, double value);

// By how much a component is moved to each side, and how far a difference may then be from a right
// gradient (as RelativeDifference): what rounding and curvature make of it.
struct DifferenceScale {
  double step, tolerance;
};
// For numbers of this type.
DifferenceScale DifferenceScaleOf(DType dtype);

// A weight for each component of `y`: of either sign, its absolute value between 0.5 and 1.5, so
// that each component counts, and none like another. ResourceExhausted without memory.
StatusOr<Tensor> DrawnWeights(const Tensor& y, std::mt19937* random);

// The sum of all components of `ys` times those of `weights`, one tensor for each. InvalidArgument
// where the shapes are not the same: the shape of an output depends on what is moved.
StatusOr<double> WeightedSum(absl::Span<const Tensor> ys, absl::Span<const Tensor> weights);

// (sum(x + step) - sum(x - step)) / (2 step), where component i of `x` alone is moved. The type of
// `x` rounds both places; the difference is divided by what is left of their distance.
// InvalidArgument when nothing is left; errors of `sum`.
StatusOr<double> CentralDifference(const Tensor& x, size_t i, double step,
                                   const std::function<StatusOr<double>(Tensor)>& sum);

// |a - b| / max(1, |a|, |b|); infinite when a or b is not finite.
double RelativeDifference(double a, double b);

}  // namespace millrace

#endif  // MILLRACE_GRAPH_CENTRAL_DIFFERENCE_H_
