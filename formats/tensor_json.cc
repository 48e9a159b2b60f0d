// SPDX-License-Identifier: Apache-2.0
#include "formats/tensor_json.h"

#include <complex>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "formats/json_value.h"

namespace millrace {
namespace {

using nlohmann::ordered_json;

template <typename T>
ordered_json ValuesOf(const Tensor& tensor) {
  ordered_json values = ordered_json::array();
  for (const T& value : tensor.flat<T>()) values.push_back(ToJson(value));
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
