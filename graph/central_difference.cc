// SPDX-License-Identifier: Apache-2.0
#include "graph/central_difference.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <limits>
#include <utility>

namespace millrace {

size_t NumComponents(const Tensor& t) {
  return static_cast<size_t>(t.num_elements()) * (IsComplex(t.dtype()) ? 2 : 1);
}

double Component(const Tensor& t, size_t i) {
  switch (t.dtype()) {
    case DT_FLOAT:
      return static_cast<double>(t.flat<float>()[i]);
    case DT_DOUBLE:
      return t.flat<double>()[i];
    case DT_HALF:
      return static_cast<double>(ToFloat(t.flat<Half>()[i]));
    case DT_BFLOAT16:
      return static_cast<double>(ToFloat(t.flat<Bfloat16>()[i]));
    case DT_COMPLEX64: {
      const std::complex<float> c = t.flat<std::complex<float>>()[i / 2];
      return static_cast<double>(i % 2 == 0 ? c.real() : c.imag());
    }
    case DT_COMPLEX128: {
      const std::complex<double> c = t.flat<std::complex<double>>()[i / 2];
      return i % 2 == 0 ? c.real() : c.imag();
    }
    default:
      return std::numeric_limits<double>::quiet_NaN();
  }
}

void SetComponent(Tensor* t, size_t i, double value) {
  switch (t->dtype()) {
    case DT_FLOAT:
      t->mutable_flat<float>()[i] = static_cast<float>(value);
      break;
    case DT_DOUBLE:
      t->mutable_flat<double>()[i] = value;
      break;
    case DT_HALF:
      t->mutable_flat<Half>()[i] = ToHalf(static_cast<float>(value));
      break;
    case DT_BFLOAT16:
      t->mutable_flat<Bfloat16>()[i] = ToBfloat16(static_cast<float>(value));
      break;
    case DT_COMPLEX64: {
      std::complex<float>& c = t->mutable_flat<std::complex<float>>()[i / 2];
      i % 2 == 0 ? c.real(static_cast<float>(value)) : c.imag(static_cast<float>(value));
      break;
    }
    case DT_COMPLEX128: {
      std::complex<double>& c = t->mutable_flat<std::complex<double>>()[i / 2];
      i % 2 == 0 ? c.real(value) : c.imag(value);
      break;
    }
    default:
      break;
  }
}

// In double, a step of 1e-5 costs 2e-11 by rounding and as much by curvature (a sixth of its square
// times the third derivative). The tolerance leaves room for functions that are large or bend more.
// A float has half of the digits.
DifferenceScale DifferenceScaleOf(DType dtype) {
  const bool fine = dtype == DT_DOUBLE || dtype == DT_COMPLEX128;
  return fine ? DifferenceScale{1e-5, 1e-6} : DifferenceScale{1e-2, 2e-2};
}

StatusOr<Tensor> DrawnWeights(const Tensor& y, std::mt19937* random) {
  std::uniform_real_distribution<double> uniform(0.5, 1.5);
  MR_ASSIGN_OR_RETURN(Tensor weights, Tensor::Allocate(y.dtype(), y.shape()));
  for (size_t i = 0; i < NumComponents(weights); ++i) {
    const double sign = (*random)() % 2 == 0 ? 1 : -1;
    SetComponent(&weights, i, sign * uniform(*random));
  }
  return weights;
}

StatusOr<double> WeightedSum(absl::Span<const Tensor> ys, absl::Span<const Tensor> weights) {
  double sum = 0;
  for (size_t i = 0; i < ys.size(); ++i) {
    if (ys[i].shape() != weights[i].shape()) {
      return InvalidArgument("the shape of output ", i, " must not depend on the inputs' values, ",
                             "got ", weights[i].shape(), " and, a step away, ", ys[i].shape());
    }
    for (size_t c = 0; c < NumComponents(ys[i]); ++c) {
      sum += Component(ys[i], c) * Component(weights[i], c);
    }
  }
  return sum;
}

StatusOr<double> CentralDifference(const Tensor& x, size_t i, double step,
                                   const std::function<StatusOr<double>(Tensor)>& sum) {
  const double middle = Component(x, i);
  double at[2], sums[2];
  for (int side = 0; side < 2; ++side) {
    MR_ASSIGN_OR_RETURN(Tensor moved, x.Clone());
    SetComponent(&moved, i, side == 0 ? middle - step : middle + step);
    at[side] = Component(moved, i);
    MR_ASSIGN_OR_RETURN(sums[side], sum(std::move(moved)));
  }
  if (at[0] == at[1]) {
    return InvalidArgument("the step must be large enough to change ", middle, ", got ", step);
  }
  return (sums[1] - sums[0]) / (at[1] - at[0]);
}

double RelativeDifference(double a, double b) {
  if (!std::isfinite(a) || !std::isfinite(b)) return std::numeric_limits<double>::infinity();
  return std::abs(a - b) / std::max({1.0, std::abs(a), std::abs(b)});
}

}  // namespace millrace
