// SPDX-License-Identifier: Apache-2.0
#include "tools/tensor_json.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <complex>
#include <cstdint>
#include <type_traits>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace millrace {
namespace {

using nlohmann::ordered_json;

ordered_json NumberToJson(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return value;
}

// 0.1f as 0.1, not as the double next to it.
ordered_json FloatToJson(float value) {
  if (!std::isfinite(value)) return NumberToJson(static_cast<double>(value));
  char text[64];
  const std::to_chars_result end = std::to_chars(text, text + sizeof(text), value);
  double shortest = 0;
  std::from_chars(text, end.ptr, shortest);
  return shortest;
}

template <typename T>
ordered_json ElementToJson(const T& value) {
  if constexpr (std::is_same_v<T, std::string>) {
    return StringToJson(value);
  } else if constexpr (std::is_same_v<T, bool>) {
    return value;
  } else if constexpr (std::is_same_v<T, std::complex<float>> ||
                       std::is_same_v<T, std::complex<double>>) {
    return ordered_json::array({ElementToJson(value.real()), ElementToJson(value.imag())});
  } else if constexpr (std::is_integral_v<T>) {
    return value;
  } else if constexpr (std::is_same_v<T, float>) {
    return FloatToJson(value);
  } else if constexpr (std::is_same_v<T, double>) {
    return NumberToJson(value);
  } else if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, Bfloat16>) {
    return FloatToJson(ToFloat(value));
  } else {
    return value.value;  // quantised
  }
}

template <typename T>
ordered_json ValuesOf(const Tensor& tensor) {
  ordered_json values = ordered_json::array();
  for (const T& value : tensor.flat<T>()) values.push_back(ElementToJson(value));
  return values;
}

// False when the tensor is of none of these types.
template <typename... Ts>
bool AddValues(const Tensor& tensor, ordered_json* json) {
  const auto add = [&]<typename T>() {
    if (tensor.dtype() != DTypeOf<T>) return false;
    (*json)["values"] = ValuesOf<T>(tensor);
    return true;
  };
  return (add.template operator()<Ts>() || ...);
}

}  // namespace

std::string JsonTypeName(DType dtype) {
  const DType base = WithoutRef(dtype);
  const std::string name = base == DT_FLOAT    ? "float32"
                           : base == DT_DOUBLE ? "float64"
                           : base == DT_HALF   ? "float16"
                                               : DTypeName(base);
  return absl::StrCat(name, IsRef(dtype) ? "_ref" : "");
}

ordered_json StringToJson(const std::string& text) {
  const bool printable = std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= ' ' && c <= '~') || c == '\n' || c == '\t';
  });
  if (printable) return text;
  return ordered_json{{"b64", absl::Base64Escape(text)}};
}

Status TensorToJson(const Tensor& tensor, ordered_json* json) {
  *json = ordered_json();
  (*json)["dtype"] = JsonTypeName(tensor.dtype());
  (*json)["shape"] = ordered_json::array();
  for (const int64_t dim : tensor.shape().dims()) (*json)["shape"].push_back(dim);
  if (!AddValues<float, double, Half, Bfloat16, std::complex<float>, std::complex<double>, int8_t,
                 uint8_t, int16_t, uint16_t, int32_t, uint32_t, int64_t, uint64_t, bool, QInt8,
                 QUInt8, QInt16, QUInt16, QInt32, std::string>(tensor, json)) {
    return Unimplemented("JSON has no form for a tensor of ", tensor.dtype());
  }
  return absl::OkStatus();
}

std::string JsonText(const ordered_json& json) {
  return json.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace millrace
