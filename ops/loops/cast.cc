// SPDX-License-Identifier: Apache-2.0
#include "ops/loops/cast.h"

#include <bit>
#include <cmath>
#include <complex>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "ops/loops/number.h"

namespace millrace::math {
namespace {

// Towards zero, limited to what D can hold.
template <typename D, typename F>
D FloatToInteger(F value) {
  // The highest value of a 64-bit integer is no float: the next power of two is the first too
  // large.
  constexpr F kLow = static_cast<F>(std::numeric_limits<D>::lowest());
  const F high = std::ldexp(F(1), std::numeric_limits<D>::digits);
  if (!(value > kLow)) return value == value ? std::numeric_limits<D>::lowest() : D(0);
  if (value >= high) return std::numeric_limits<D>::max();
  return static_cast<D>(value);
}

template <typename D, typename S>
D Convert(S source) {
  const auto value = Load(source);
  using V = std::remove_const_t<decltype(value)>;
  if constexpr (std::is_same_v<D, S>) {
    return source;
  } else if constexpr (std::is_same_v<D, bool>) {
    return value != V(0);
  } else if constexpr (kIsComplex<V>) {
    if constexpr (kIsComplex<D>) {
      return D(static_cast<typename D::value_type>(value.real()),
               static_cast<typename D::value_type>(value.imag()));
    } else {
      return Convert<D>(value.real());
    }
  } else if constexpr (kIsComplex<D>) {
    return D(static_cast<typename D::value_type>(value));
  } else if constexpr (kIsNarrowFloat<D>) {
    return Store<D>(static_cast<float>(value));
  } else if constexpr (std::is_floating_point_v<V> && std::is_integral_v<D>) {
    return FloatToInteger<D>(value);
  } else {
    return static_cast<D>(value);
  }
}

template <typename S, typename D>
void Cast(const void* x_memory, void* y_memory, int64_t n) {
  const S* x = static_cast<const S*>(x_memory);
  D* y = static_cast<D*>(y_memory);
  for (int64_t i = 0; i < n; ++i) y[i] = Convert<D>(x[i]);
}

// ToBfloat16 and ToFloat, bit for bit. Those are a call for each element and slow where floats are
// cast to travel (graph/place/partition.h); the compiler makes vectors of these.
void FloatToBfloat16(const void* x_memory, void* y_memory, int64_t n) {
  const float* x = static_cast<const float*>(x_memory);
  Bfloat16* y = static_cast<Bfloat16*>(y_memory);
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t bits = std::bit_cast<uint32_t>(x[i]);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const uint32_t quiet_nan = (bits >> 16) | 0x40u;
    y[i].bits = static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet_nan : rounded);
  }
}

void Bfloat16ToFloat(const void* x_memory, void* y_memory, int64_t n) {
  const Bfloat16* x = static_cast<const Bfloat16*>(x_memory);
  float* y = static_cast<float*>(y_memory);
  for (int64_t i = 0; i < n; ++i) y[i] = std::bit_cast<float>(uint32_t{x[i].bits} << 16);
}

// A float cut to its upper bits.
Bfloat16 Truncated(float value, Bfloat16) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  return Bfloat16{static_cast<uint16_t>((bits >> 16) | (std::isnan(value) ? 0x40u : 0u))};
}
// Without the bits that a half lacks, rounding has nothing to do.
Half Truncated(float value, Half) {
  return ToHalf(std::bit_cast<float>(std::bit_cast<uint32_t>(value) & ~0x1fffu));
}

template <typename S, typename D>
void TruncatingCast(const void* x_memory, void* y_memory, int64_t n) {
  const S* x = static_cast<const S*>(x_memory);
  D* y = static_cast<D*>(y_memory);
  for (int64_t i = 0; i < n; ++i) {
    float value = static_cast<float>(x[i]);
    if constexpr (std::is_same_v<S, double>) {
      // Cut, too, on the way to float: back towards zero where it was rounded up.
      if (std::abs(static_cast<double>(value)) > std::abs(x[i]))
        value = std::nextafter(value, 0.0f);
    }
    y[i] = Truncated(value, D());
  }
}

void TruncatingDoubleToFloat(const void* x_memory, void* y_memory, int64_t n) {
  const double* x = static_cast<const double*>(x_memory);
  float* y = static_cast<float*>(y_memory);
  for (int64_t i = 0; i < n; ++i) {
    const float value = static_cast<float>(x[i]);
    y[i] =
        std::abs(static_cast<double>(value)) > std::abs(x[i]) ? std::nextafter(value, 0.0f) : value;
  }
}

using CastTypes = Joined<NumberTypes, TypeList<bool>>;

}  // namespace

CastFn FindCast(DType from, DType to, bool truncate) {
  if (truncate) {
    if (from == DT_FLOAT && to == DT_BFLOAT16) return &TruncatingCast<float, Bfloat16>;
    if (from == DT_FLOAT && to == DT_HALF) return &TruncatingCast<float, Half>;
    if (from == DT_DOUBLE && to == DT_BFLOAT16) return &TruncatingCast<double, Bfloat16>;
    if (from == DT_DOUBLE && to == DT_HALF) return &TruncatingCast<double, Half>;
    if (from == DT_DOUBLE && to == DT_FLOAT) return &TruncatingDoubleToFloat;
  }
  if (from == DT_FLOAT && to == DT_BFLOAT16) return &FloatToBfloat16;
  if (from == DT_BFLOAT16 && to == DT_FLOAT) return &Bfloat16ToFloat;
  return LoopFor<CastTypes>(from, [to]<typename S> {
    return LoopFor<CastTypes>(to, []<typename D>() -> CastFn { return &Cast<S, D>; });
  });
}

}  // namespace millrace::math
