// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_FORMATS_JSON_VALUE_H_
#define MILLRACE_FORMATS_JSON_VALUE_H_

// ToJson, AppendJson, FromJson: an element of a tensor as a value of JSON, as a tree and as text,
// and back. One rule for all files and programs:
//
//   integers, bools        themselves; quantized ones as their integers
//   floats of every size   the shortest number that reads back to the same bits; "nan", "inf",
//                          "-inf" for those that JSON has no number for
//   complex                [re, im]
//   strings                themselves where they are text (IsJsonText), else {"b64": "..."}
//
// Tree and text of one value are equal when parsed.
//
// Thread-safety: pure functions. Failure: none but FromJson's.

#include <cmath>
#include <complex>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/dtype.h"
#include "nlohmann/json.hpp"

namespace millrace {

namespace json_value_internal {
nlohmann::ordered_json FloatToJson(float value);
nlohmann::ordered_json DoubleToJson(double value);
nlohmann::ordered_json StringToJson(absl::string_view value);
void AppendFloat(float value, std::string* out);
void AppendDouble(double value, std::string* out);
void AppendString(absl::string_view value, std::string* out);
bool DoubleFromJson(const nlohmann::json& value, double* element);
bool StringFromJson(const nlohmann::json& value, std::string* element);
}  // namespace json_value_internal

// Whether a string is text: UTF-8 (core/utf8.h) without control characters but tabs and ends of
// lines. Others are bytes, also where they could be UTF-8: messages of protobuf often are.
bool IsJsonText(absl::string_view value);

// T: an element type of a tensor that is no handle.
template <typename T>
nlohmann::ordered_json ToJson(const T& value) {
  if constexpr (std::is_same_v<T, std::string>) {
    return json_value_internal::StringToJson(value);
  } else if constexpr (std::is_integral_v<T>) {  // bool, too
    return value;
  } else if constexpr (std::is_same_v<T, float>) {
    return json_value_internal::FloatToJson(value);
  } else if constexpr (std::is_same_v<T, double>) {
    return json_value_internal::DoubleToJson(value);
  } else if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, Bfloat16>) {
    return json_value_internal::FloatToJson(ToFloat(value));
  } else if constexpr (std::is_same_v<T, std::complex<float>> ||
                       std::is_same_v<T, std::complex<double>>) {
    return nlohmann::ordered_json::array({ToJson(value.real()), ToJson(value.imag())});
  } else {
    return value.value;  // quantized
  }
}

template <typename T>
void AppendJson(const T& value, std::string* out) {
  if constexpr (std::is_same_v<T, std::string>) {
    json_value_internal::AppendString(value, out);
  } else if constexpr (std::is_same_v<T, bool>) {
    out->append(value ? "true" : "false");
  } else if constexpr (std::is_integral_v<T>) {
    absl::StrAppend(out, +value);
  } else if constexpr (std::is_same_v<T, float>) {
    json_value_internal::AppendFloat(value, out);
  } else if constexpr (std::is_same_v<T, double>) {
    json_value_internal::AppendDouble(value, out);
  } else if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, Bfloat16>) {
    json_value_internal::AppendFloat(ToFloat(value), out);
  } else if constexpr (std::is_same_v<T, std::complex<float>> ||
                       std::is_same_v<T, std::complex<double>>) {
    out->push_back('[');
    AppendJson(value.real(), out);
    out->push_back(',');
    AppendJson(value.imag(), out);
    out->push_back(']');
  } else {
    absl::StrAppend(out, +value.value);
  }
}

// Whether it is {"b64": "..."}, which may stand for a string.
bool IsJsonBytes(const nlohmann::json& value);

// False, with `element` unspecified, where `value` is no T: of another kind, out of range, no
// base64. An integer is a float, too. T: string, bool, an integer, float, double.
template <typename T>
bool FromJson(const nlohmann::json& value, T* element) {
  if constexpr (std::is_same_v<T, std::string>) {
    return json_value_internal::StringFromJson(value, element);
  } else if constexpr (std::is_same_v<T, bool>) {
    if (value.is_boolean()) *element = value.get<bool>();
    return value.is_boolean();
  } else if constexpr (std::is_floating_point_v<T>) {
    double number = 0;
    if (!json_value_internal::DoubleFromJson(value, &number)) return false;
    *element = static_cast<T>(number);
    return std::isfinite(*element) || !std::isfinite(number);
  } else {
    if (value.is_number_unsigned()) {
      const uint64_t number = value.get<uint64_t>();
      *element = static_cast<T>(number);
      return number <= static_cast<uint64_t>(std::numeric_limits<T>::max());
    }
    if (!value.is_number_integer()) return false;
    const int64_t number = value.get<int64_t>();
    *element = static_cast<T>(number);
    if constexpr (std::is_unsigned_v<T>) return number >= 0;
    return number >= static_cast<int64_t>(std::numeric_limits<T>::min());
  }
}

}  // namespace millrace

#endif  // MILLRACE_FORMATS_JSON_VALUE_H_
