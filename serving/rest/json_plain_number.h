// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_REST_JSON_PLAIN_NUMBER_H_
#define MILLRACE_SERVING_REST_JSON_PLAIN_NUMBER_H_

// The loop that reads most numbers of a request: those of few digits and no exponent. RapidJSON's
// reader takes some tens of cycles to find out what comes next; in a list of numbers it is a
// number.
//
// Each number that the loop takes has the value that RapidJSON gives it, bit for bit: its digits,
// at most 2^53, as an integer, divided by a power of ten. Any other number, and whatever is no
// number, is left to the reader, with its rules and its errors.

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "absl/base/optimization.h"

namespace millrace {
namespace json_plain_number {

inline constexpr std::array<double, 23> kPowersOfTen = {
    1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
    1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};

// Behind larger numbers the reader goes on in doubles.
inline constexpr uint64_t kMaxDecimalDigits = (uint64_t{1} << 53) - 1;
// Of integers: one more digit and they might not fit into 63 bits.
inline constexpr uint64_t kMaxIntegerDigits = 99'999'999'999'999'999;

inline bool IsBlank(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }
inline unsigned Digit(char c) { return static_cast<unsigned>(c) - '0'; }

inline const char* SkipBlanks(const char* p, const char* end) {
  while (p != end && IsBlank(*p)) ++p;
  return p;
}

// False: not in the range of T.
template <typename T>
bool Store(uint64_t digits, bool minus, T* out) {
  if constexpr (std::is_floating_point_v<T>) {
    const auto value = static_cast<double>(digits);
    // The reader sees "-0" as an integer.
    *out = static_cast<T>(minus && digits != 0 ? -value : value);
  } else {
    constexpr auto kMax = static_cast<uint64_t>(std::numeric_limits<T>::max());
    if (minus) {
      if (digits > (std::is_signed_v<T> ? kMax + 1 : 0)) return false;
      *out = static_cast<T>(-static_cast<int64_t>(digits));
    } else {
      if (digits > kMax) return false;
      *out = static_cast<T>(digits);
    }
  }
  return true;
}

// The end of the number that begins at `p`; null: it is left to the reader.
template <typename T>
const char* ReadPlainNumber(const char* p, const char* end, T* out) {
  const bool minus = p != end && *p == '-';
  if (minus) ++p;
  if (p == end || Digit(*p) > 9) return nullptr;
  uint64_t digits = Digit(*p++);
  if (digits != 0) {  // no digit follows a leading zero
    while (p != end && Digit(*p) <= 9) {
      if (ABSL_PREDICT_FALSE(digits > kMaxIntegerDigits)) return nullptr;
      digits = digits * 10 + Digit(*p++);
    }
  }
  if (p == end) return nullptr;
  if (*p == '.') {
    if constexpr (!std::is_floating_point_v<T>) {
      return nullptr;
    } else {
      const char* const point = p++;
      while (p != end && Digit(*p) <= 9) {
        if (ABSL_PREDICT_FALSE(digits > kMaxDecimalDigits)) return nullptr;
        digits = digits * 10 + Digit(*p++);
      }
      const auto decimals = static_cast<size_t>(p - point - 1);
      if (ABSL_PREDICT_FALSE(p == end || decimals == 0 || decimals >= kPowersOfTen.size())) {
        return nullptr;
      }
      const double value = static_cast<double>(digits) / kPowersOfTen[decimals];
      *out = static_cast<T>(minus ? -value : value);
    }
  } else if (!Store(digits, minus, out)) {
    return nullptr;
  }
  return *p == ',' || *p == ']' || IsBlank(*p) ? p : nullptr;
}

}  // namespace json_plain_number

// Reads ", 1, 2.5, -3": at most `room` numbers, each behind a comma, to `out`. `*begin` is moved
// behind the last of them. Returns their number.
template <typename T>
int64_t ReadPlainNumbers(const char** begin, const char* end, T* out, int64_t room) {
  namespace plain = json_plain_number;
  const char* p = *begin;
  int64_t taken = 0;
  while (taken < room) {
    const char* q = plain::SkipBlanks(p, end);
    if (q == end || *q != ',') break;
    q = plain::SkipBlanks(q + 1, end);
    q = plain::ReadPlainNumber(q, end, out + taken);
    if (q == nullptr) break;
    p = q;
    ++taken;
  }
  *begin = p;
  return taken;
}

}  // namespace millrace

#endif  // MILLRACE_SERVING_REST_JSON_PLAIN_NUMBER_H_
