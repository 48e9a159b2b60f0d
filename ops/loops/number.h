// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_LOOPS_NUMBER_H_
#define MILLRACE_OPS_LOOPS_NUMBER_H_

// How each element type computes: half and bfloat16 in float, integers modulo 2^n
// (overflow wraps and is never undefined), everything else as itself.
//
//   auto a = Load(x[i]); ...; z[i] = Store<T>(f(a));
//
// And the lists of element types that loops are made for:
//
//   return LoopFor<FloatTypes>(dtype, []<typename T> { return &Loop<T>; });

#include <complex>
#include <concepts>
#include <cstdint>
#include <type_traits>

#include "core/dtype.h"

namespace millrace::math {

template <typename T>
inline constexpr bool kIsNarrowFloat = std::is_same_v<T, Half> || std::is_same_v<T, Bfloat16>;

template <typename T>
inline constexpr bool kIsComplex =
    std::is_same_v<T, std::complex<float>> || std::is_same_v<T, std::complex<double>>;

template <typename... Ts>
struct TypeList {};

template <typename... Ts, typename... Us>
TypeList<Ts..., Us...> JoinedLists(TypeList<Ts...>, TypeList<Us...>);
template <typename First, typename Second>
using Joined = decltype(JoinedLists(First(), Second()));

using FloatTypes = TypeList<float, double, Half, Bfloat16>;
using IntegerTypes =
    TypeList<int8_t, uint8_t, int16_t, uint16_t, int32_t, uint32_t, int64_t, uint64_t>;
using ComplexTypes = TypeList<std::complex<float>, std::complex<double>>;
using RealTypes = Joined<FloatTypes, IntegerTypes>;
using NumberTypes = Joined<RealTypes, ComplexTypes>;

template <typename First, typename... Rest, typename F>
constexpr auto LoopForOneOf(TypeList<First, Rest...>, DType dtype, F make) {
  decltype(make.template operator()<First>()) loop{};
  const auto try_type = [&]<typename T>() {
    if (dtype == DTypeOf<T>) loop = make.template operator()<T>();
  };
  try_type.template operator()<First>();
  (try_type.template operator()<Rest>(), ...);
  return loop;
}
// make.operator()<T>() for the T of `List` that has `dtype`; null (what {} makes) for other dtypes.
template <typename List, typename F>
constexpr auto LoopFor(DType dtype, F make) {
  return LoopForOneOf(List(), dtype, make);
}

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

// What does not depend on the sign of integers has one loop per width.
template <typename T>
struct SignlessImpl {
  using Type = T;
};
template <std::integral T>
struct SignlessImpl<T> {
  using Type = std::make_unsigned_t<T>;
};
template <typename T>
using Signless = typename SignlessImpl<T>::Type;

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

#endif  // MILLRACE_OPS_LOOPS_NUMBER_H_
