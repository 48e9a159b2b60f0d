// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_CORE_PARSE_NUMBER_H_
#define MILLRACE_CORE_PARSE_NUMBER_H_

// ParseNumber: a whole text as a number, by the rules that CSV fields and StringToNumber share.
//
// ASCII blanks may stand around it, a sign before it. Integers are decimal and must fit. Floating
// numbers are decimal, or hexadecimal digits behind 0x, or inf, infinity or nan in letters of any
// case; one that is too large becomes infinite, one too small what is nearest to it. The value is
// the nearest one to the decimal, on every machine and in every locale.
//
// Thread-safety: pure functions. Failure: false; then `*value` may be anything.

#include <charconv>
#include <cstdint>
#include <system_error>
#include <type_traits>

#include "absl/strings/string_view.h"

namespace millrace {

namespace parse_number_internal {

// What the first attempt does not take: blanks, signs, exponents, hexadecimal digits, many digits,
// numbers out of range.
bool ParseSlowly(absl::string_view text, int32_t* value);
bool ParseSlowly(absl::string_view text, int64_t* value);
bool ParseSlowly(absl::string_view text, float* value);
bool ParseSlowly(absl::string_view text, double* value);

// Decimal digits whose number is exact in T, and a power of ten that is, too: then their quotient
// is the nearest value.
template <typename T>
struct Exact {
  static constexpr uint64_t kMostMantissa = std::is_same_v<T, float> ? 1u << 24 : uint64_t{1} << 53;
  static constexpr T kPowers[] = {1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10};
};

// "-12", "12.5". False: it is to be read slowly.
template <typename T>
inline bool ParsePlain(absl::string_view text, T* value) {
  const char* at = text.data();
  const char* const end = at + text.size();
  const bool negative = at != end && *at == '-';
  at += negative;
  // No overflow: 18 digits.
  if (end - at > 19 || at == end) return false;
  uint64_t digits = 0;
  const char* const first = at;
  for (; at != end && static_cast<unsigned char>(*at - '0') < 10; ++at) {
    digits = 10 * digits + static_cast<uint64_t>(*at - '0');
  }
  if constexpr (std::is_integral_v<T>) {
    constexpr ptrdiff_t kMostDigits = sizeof(T) == 4 ? 9 : 18;
    if (at != end || at - first > kMostDigits) return false;
    const T number = static_cast<T>(digits);
    *value = negative ? -number : number;
    return true;
  } else {
    ptrdiff_t decimals = 0, count = at - first;
    if (at != end && *at == '.') {
      const char* const point = at++;
      for (; at != end && static_cast<unsigned char>(*at - '0') < 10; ++at) {
        digits = 10 * digits + static_cast<uint64_t>(*at - '0');
      }
      decimals = at - point - 1;
      count += decimals;
    }
    if (at != end || count == 0 || count > 18 || digits > Exact<T>::kMostMantissa ||
        decimals > 10) {
      return false;
    }
    T number = static_cast<T>(digits);
    if (decimals > 0) number /= Exact<T>::kPowers[decimals];
    *value = negative ? -number : number;
    return true;
  }
}

}  // namespace parse_number_internal

// T: int32_t, int64_t, float, double.
template <typename T>
inline bool ParseNumber(absl::string_view text, T* value) {
  // Columns of numbers behind a comma and a blank are common.
  absl::string_view digits = text;
  if (!digits.empty() && digits.front() == ' ') digits.remove_prefix(1);
  return parse_number_internal::ParsePlain(digits, value) ||
         parse_number_internal::ParseSlowly(text, value);
}

}  // namespace millrace

#endif  // MILLRACE_CORE_PARSE_NUMBER_H_
