// SPDX-License-Identifier: Apache-2.0
#include "formats/json_value.h"

#include <charconv>
#include <cmath>
#include <cstddef>

#include "absl/strings/escaping.h"
#include "core/utf8.h"

namespace millrace {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr char kBytesKey[] = "b64";
constexpr char kNan[] = "nan", kInf[] = "inf", kMinusInf[] = "-inf";

// The text of a number that JSON has none for; null for all others.
const char* NonFinite(double value) {
  if (std::isnan(value)) return kNan;
  if (std::isinf(value)) return value > 0 ? kInf : kMinusInf;
  return nullptr;
}

template <typename T>
void AppendNumber(T value, std::string* out) {
  if (const char* const text = NonFinite(static_cast<double>(value)); text != nullptr) {
    absl::StrAppend(out, "\"", text, "\"");
    return;
  }
  char text[64];
  out->append(text, std::to_chars(text, text + sizeof(text), value).ptr);
  if (value == 0 && std::signbit(value)) out->append(".0");  // "-0" is an integer, without a sign
}

// Bytes of the character with which `text`, which is not empty, begins; 0 when it is none of a
// text.
size_t TextLength(absl::string_view text) {
  const auto c = static_cast<unsigned char>(text[0]);
  if (c >= 0x80) return Utf8Length(text);
  return (c >= ' ' && c != 0x7f) || c == '\n' || c == '\t' || c == '\r' ? 1 : 0;
}

}  // namespace

bool IsJsonText(absl::string_view value) {
  while (!value.empty()) {
    const size_t length = TextLength(value);
    if (length == 0) return false;
    value.remove_prefix(length);
  }
  return true;
}

bool IsJsonBytes(const json& value) {
  return value.is_object() && value.size() == 1 && value.contains(kBytesKey) &&
         value[kBytesKey].is_string();
}

namespace json_value_internal {

ordered_json DoubleToJson(double value) {
  if (const char* const text = NonFinite(value); text != nullptr) return text;
  return value;
}

// 0.1f as 0.1, not as the double next to it.
ordered_json FloatToJson(float value) {
  if (!std::isfinite(value)) return DoubleToJson(static_cast<double>(value));
  char text[64];
  const std::to_chars_result end = std::to_chars(text, text + sizeof(text), value);
  double shortest = 0;
  std::from_chars(text, end.ptr, shortest);
  return shortest;
}

ordered_json StringToJson(absl::string_view value) {
  if (IsJsonText(value)) return std::string(value);
  return ordered_json{{kBytesKey, absl::Base64Escape(value)}};
}

void AppendFloat(float value, std::string* out) { AppendNumber(value, out); }
void AppendDouble(double value, std::string* out) { AppendNumber(value, out); }

// In one pass; what turns out to be bytes begins again.
void AppendString(absl::string_view value, std::string* out) {
  const size_t begin = out->size();
  out->push_back('"');
  for (size_t i = 0; i < value.size();) {
    const size_t length = TextLength(value.substr(i));
    if (length == 0) {
      out->resize(begin);
      absl::StrAppend(out, "{\"", kBytesKey, "\":\"", absl::Base64Escape(value), "\"}");
      return;
    }
    const char c = value[i];
    if (c == '"' || c == '\\') {
      out->push_back('\\');
      out->push_back(c);
    } else if (c == '\n') {
      out->append("\\n");
    } else if (c == '\t') {
      out->append("\\t");
    } else if (c == '\r') {
      out->append("\\r");
    } else {
      out->append(value.data() + i, length);
    }
    i += length;
  }
  out->push_back('"');
}

bool DoubleFromJson(const json& value, double* element) {
  if (value.is_number()) {
    *element = value.get<double>();
    return true;
  }
  if (!value.is_string()) return false;
  const std::string& text = value.get_ref<const std::string&>();
  if (text == kNan) {
    *element = std::numeric_limits<double>::quiet_NaN();
  } else if (text == kInf || text == kMinusInf) {
    *element = text == kInf ? HUGE_VAL : -HUGE_VAL;
  } else {
    return false;
  }
  return true;
}

bool StringFromJson(const json& value, std::string* element) {
  if (value.is_string()) {
    *element = value.get<std::string>();
    return true;
  }
  return IsJsonBytes(value) &&
         absl::Base64Unescape(value[kBytesKey].get_ref<const std::string&>(), element);
}

}  // namespace json_value_internal
}  // namespace millrace
