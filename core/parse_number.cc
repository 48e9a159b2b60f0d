// SPDX-License-Identifier: Apache-2.0
#include "core/parse_number.h"

#include <limits>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/charconv.h"

namespace millrace::parse_number_internal {
namespace {

// Without blanks around it and a plus before it; false: there is nothing left, or a second sign.
bool Trim(absl::string_view* text) {
  *text = absl::StripAsciiWhitespace(*text);
  if (text->size() > 1 && text->front() == '+') {
    text->remove_prefix(1);
    if (text->front() == '-') return false;
  }
  return !text->empty();
}

template <typename T>
bool ParseInteger(absl::string_view text, T* value) {
  if (!Trim(&text)) return false;
  const char* const end = text.data() + text.size();
  const std::from_chars_result result = std::from_chars(text.data(), end, *value);
  return result.ec == std::errc() && result.ptr == end;
}

// "0x1F", "-0x1f".
template <typename T>
bool ParseHexadecimal(absl::string_view text, T* value) {
  const bool negative = text.front() == '-';
  if (negative) text.remove_prefix(1);
  if (text.size() < 3 || text[0] != '0' || (text[1] != 'x' && text[1] != 'X')) return false;
  text.remove_prefix(2);
  for (const char c : text) {
    if (!absl::ascii_isxdigit(static_cast<unsigned char>(c))) return false;
  }
  const char* const end = text.data() + text.size();
  const std::from_chars_result result =
      std::from_chars(text.data(), end, *value, std::chars_format::hex);
  if (result.ec == std::errc::result_out_of_range) {
    *value = std::numeric_limits<T>::infinity();
  } else if (result.ec != std::errc() || result.ptr != end) {
    return false;
  }
  if (negative) *value = -*value;
  return true;
}

template <typename T>
bool ParseFloating(absl::string_view text, T* value) {
  if (!Trim(&text)) return false;
  const char* const end = text.data() + text.size();
  const std::from_chars_result result = std::from_chars(text.data(), end, *value);
  if (result.ec == std::errc()) return result.ptr == end || ParseHexadecimal(text, value);
  if (result.ec != std::errc::result_out_of_range || result.ptr != end) return false;
  // It does not say on which side of the range; Abseil's does.
  absl::from_chars(text.data(), end, *value);
  constexpr T kMost = std::numeric_limits<T>::max();
  if (*value == kMost) *value = std::numeric_limits<T>::infinity();
  if (*value == -kMost) *value = -std::numeric_limits<T>::infinity();
  return true;
}

}  // namespace

bool ParseSlowly(absl::string_view text, int32_t* value) { return ParseInteger(text, value); }
bool ParseSlowly(absl::string_view text, int64_t* value) { return ParseInteger(text, value); }
bool ParseSlowly(absl::string_view text, float* value) { return ParseFloating(text, value); }
bool ParseSlowly(absl::string_view text, double* value) { return ParseFloating(text, value); }

}  // namespace millrace::parse_number_internal
