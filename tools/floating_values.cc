// SPDX-License-Identifier: Apache-2.0
#include "tools/floating_values.h"

#include <algorithm>
#include <cstddef>
#include <type_traits>

namespace millrace {
namespace {

template <typename T>
double ToDouble(T value) {
  if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, Bfloat16>) {
    return static_cast<double>(ToFloat(value));
  } else {
    return static_cast<double>(value);
  }
}

template <typename T>
T FromDouble(double value) {
  if constexpr (std::is_same_v<T, Half>) {
    return ToHalf(static_cast<float>(value));
  } else if constexpr (std::is_same_v<T, Bfloat16>) {
    return ToBfloat16(static_cast<float>(value));
  } else {
    return static_cast<T>(value);
  }
}

// Calls f<T>() for a floating dtype.
template <typename F>
void ForFloating(DType dtype, const F& f) {
  switch (dtype) {
    case DT_HALF:
      return f.template operator()<Half>();
    case DT_BFLOAT16:
      return f.template operator()<Bfloat16>();
    case DT_DOUBLE:
      return f.template operator()<double>();
    default:
      return f.template operator()<float>();
  }
}

}  // namespace

std::vector<double> DoublesOf(const Tensor& tensor) {
  std::vector<double> values;
  values.reserve(static_cast<size_t>(tensor.num_elements()));
  ForFloating(tensor.dtype(), [&]<typename T>() {
    for (const T value : tensor.flat<T>()) values.push_back(ToDouble(value));
  });
  return values;
}

StatusOr<Tensor> TensorOfDoubles(absl::Span<const double> values, DType dtype, const Shape& shape) {
  MR_ASSIGN_OR_RETURN(Tensor tensor, Tensor::Allocate(dtype, shape));
  ForFloating(dtype, [&]<typename T>() {
    std::transform(values.begin(), values.end(), tensor.mutable_flat<T>().begin(), FromDouble<T>);
  });
  return tensor;
}

}  // namespace millrace
