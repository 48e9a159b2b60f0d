// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_MATH_NUMBER_H_
#define MILLRACE_OPS_MATH_NUMBER_H_

// How each element type computes: half and bfloat16 in float, integers modulo 2^n
// (overflow wraps and is never undefined), everything else as itself.
//
//   auto a = Load(x[i]); ...; z[i] = Store<T>(f(a));

#include <complex>
#include <cstdint>
#include <type_traits>

#include "core/dtype.h"

namespace millrace::math {

template <typename T>
inline constexpr bool kIsNarrowFloat = std::is_same_v<T, Half> || std::is_same_v<T, Bfloat16>;

template <typename T>
inline constexpr bool kIsComplex =
    std::is_same_v<T, std::complex<float>> || std::is_same_v<T, std::complex<double>>;

// The type in which elements of T are computed.
template <typename T>
using Wide = std::conditional_t<kIsNarrowFloat<T>, float, T>;

template <typename T>
inline Wide<T> Load(T value) {
  if constexpr (kIsNarrowFloat<T>) {
    return ToFloat(value);
  } else {
    return value;
  }
}

template <typename T>
inline T Store(Wide<T> value) {
  if constexpr (std::is_same_v<T, Half>) {
    return ToHalf(value);
  } else if constexpr (std::is_same_v<T, Bfloat16>) {
    return ToBfloat16(value);
  } else {
    return value;
  }
}

// Unsigned and at least 32 bits wide, so that neither overflow nor promotion is undefined.
template <typename T>
using Modular = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;

template <typename T>
inline T WrapAdd(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(static_cast<Modular<T>>(a) + static_cast<Modular<T>>(b));
  } else {
    return a + b;
  }
}

template <typename T>
inline T WrapSub(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(static_cast<Modular<T>>(a) - static_cast<Modular<T>>(b));
  } else {
    return a - b;
  }
}

template <typename T>
inline T WrapMul(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(static_cast<Modular<T>>(a) * static_cast<Modular<T>>(b));
  } else {
    return a * b;
  }
}

template <typename T>
inline T WrapNeg(T a) {
  return WrapSub(T(), a);
}

}  // namespace millrace::math

#endif  // MILLRACE_OPS_MATH_NUMBER_H_
