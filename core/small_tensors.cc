// SPDX-License-Identifier: Apache-2.0
#include "core/small_tensors.h"

#include <cmath>
#include <complex>
#include <limits>
#include <type_traits>
#include <vector>

namespace millrace {
namespace {

template <typename Number>
Status DoesNotFit(DType dtype, Number value) {
  return InvalidArgument("a number must be a value of the dtype ", dtype, ", got ", value);
}

// In the range of T, and whole?
template <typename T>
bool Fits(int64_t value) {
  using Limits = std::numeric_limits<T>;
  if constexpr (std::is_unsigned_v<T>) {
    return value >= 0 && static_cast<uint64_t>(value) <= Limits::max();
  } else {
    return value >= Limits::min() && value <= Limits::max();
  }
}
template <typename T>
bool Fits(double value) {
  // 2^63 and 2^64 are doubles, the largest integers below them are not.
  const double limit = std::ldexp(1.0, std::numeric_limits<T>::digits);
  const double lowest = std::is_unsigned_v<T> ? 0 : -limit;
  return value >= lowest && value < limit && value == std::trunc(value);
}

template <typename T, typename Number>
StatusOr<Tensor> Integer(DType dtype, Number value) {
  if (!Fits<T>(value)) return DoesNotFit(dtype, value);
  return Tensor::Scalar<T>(static_cast<T>(value));
}

template <typename Number>
StatusOr<Tensor> Make(DType dtype, Number value) {
  const double wide = static_cast<double>(value);
  const float narrow = static_cast<float>(wide);
  const auto rounded = [&](float result, Tensor tensor) -> StatusOr<Tensor> {
    if (std::isinf(result) && !std::isinf(wide)) return DoesNotFit(dtype, value);
    return tensor;
  };
  switch (dtype) {
    case DT_FLOAT:
      return rounded(narrow, Tensor::Scalar<float>(narrow));
    case DT_DOUBLE:
      return Tensor::Scalar<double>(wide);
    case DT_HALF:
      return rounded(ToFloat(ToHalf(narrow)), Tensor::Scalar<Half>(ToHalf(narrow)));
    case DT_BFLOAT16:
      return rounded(ToFloat(ToBfloat16(narrow)), Tensor::Scalar<Bfloat16>(ToBfloat16(narrow)));
    case DT_COMPLEX64:
      return rounded(narrow, Tensor::Scalar<std::complex<float>>(narrow));
    case DT_COMPLEX128:
      return Tensor::Scalar<std::complex<double>>(wide);
    case DT_INT8:
      return Integer<int8_t>(dtype, value);
    case DT_INT16:
      return Integer<int16_t>(dtype, value);
    case DT_INT32:
      return Integer<int32_t>(dtype, value);
    case DT_INT64:
      return Integer<int64_t>(dtype, value);
    case DT_UINT8:
      return Integer<uint8_t>(dtype, value);
    case DT_UINT16:
      return Integer<uint16_t>(dtype, value);
    case DT_UINT32:
      return Integer<uint32_t>(dtype, value);
    case DT_UINT64:
      return Integer<uint64_t>(dtype, value);
    default:
      return InvalidArgument("the dtype of the number ", value,
                             " must be an integer, floating or complex one, got ", dtype);
  }
}

}  // namespace

StatusOr<Tensor> ScalarTensor(DType dtype, double value) { return Make(dtype, value); }
StatusOr<Tensor> ScalarTensor(DType dtype, int64_t value) { return Make(dtype, value); }

Tensor DimsTensor(const Shape& shape) {
  std::vector<int32_t> dims;
  for (const int64_t dim : shape.dims()) {
    if (dim > std::numeric_limits<int32_t>::max()) return Tensor::Vector<int64_t>(shape.dims());
    dims.push_back(static_cast<int32_t>(dim));
  }
  return Tensor::Vector<int32_t>(dims);
}

}  // namespace millrace
