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

#include "absl/strings/string_view.h"

namespace millrace {

namespace parse_number_internal {
// What the first attempt does not take: blanks, signs, hexadecimal digits, numbers out of range.
bool ParseSlowly(absl::string_view text, int32_t* value);
bool ParseSlowly(absl::string_view text, int64_t* value);
bool ParseSlowly(absl::string_view text, float* value);
bool ParseSlowly(absl::string_view text, double* value);
}  // namespace parse_number_internal

// T: int32_t, int64_t, float, double.
template <typename T>
inline bool ParseNumber(absl::string_view text, T* value) {
  // Columns of numbers behind a comma and a blank are common.
  if (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  const char* const end = text.data() + text.size();
  const std::from_chars_result result = std::from_chars(text.data(), end, *value);
  if (result.ec == std::errc() && result.ptr == end) return true;
  return parse_number_internal::ParseSlowly(text, value);
}

}  // namespace millrace

#endif  // MILLRACE_CORE_PARSE_NUMBER_H_
