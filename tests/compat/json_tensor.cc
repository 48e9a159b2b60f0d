// SPDX-License-Identifier: Apache-2.0
#include "tests/compat/json_tensor.h"

#include <cmath>
#include <fstream>
#include <limits>

#include "absl/strings/escaping.h"
#include "core/file_system.h"
#include "core/status.h"
#include "core/testing/shared_data.h"
#include "formats/npy.h"

namespace millrace {
namespace {

using nlohmann::json;

struct NumpyType {
  const char* name;
  DType dtype;
};
constexpr NumpyType kTypes[] = {
    {"float32", DT_FLOAT}, {"float64", DT_DOUBLE}, {"int8", DT_INT8},   {"int16", DT_INT16},
    {"int32", DT_INT32},   {"int64", DT_INT64},    {"uint8", DT_UINT8}, {"uint16", DT_UINT16},
    {"uint32", DT_UINT32}, {"uint64", DT_UINT64},  {"bool", DT_BOOL},   {"string", DT_STRING},
};

StatusOr<DType> ToDType(const std::string& name) {
  for (const NumpyType& type : kTypes) {
    if (name == type.name) return type.dtype;
  }
  return absl::InvalidArgumentError(absl::StrCat("cases.json: dtype must be known, got ", name));
}

double ToDouble(const json& value) {
  if (!value.is_string()) return value.get<double>();
  const std::string text = value.get<std::string>();
  if (text == "nan") return std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  return text == "-inf" ? -infinity : infinity;
}

template <typename T>
T Element(const json& value) {
  if constexpr (std::is_same_v<T, std::string>) {
    if (value.is_string()) return value.get<std::string>();
    std::string bytes;
    absl::Base64Unescape(value.at("b64").get<std::string>(), &bytes);
    return bytes;
  } else if constexpr (std::is_floating_point_v<T>) {
    return static_cast<T>(ToDouble(value));
  } else {
    return value.get<T>();
  }
}

// Calls fn.operator()<T>() for the element type of `dtype`.
template <typename Fn>
auto Dispatch(DType dtype, Fn fn) {
  switch (dtype) {
    case DT_FLOAT:
      return fn.template operator()<float>();
    case DT_DOUBLE:
      return fn.template operator()<double>();
    case DT_INT8:
      return fn.template operator()<int8_t>();
    case DT_INT16:
      return fn.template operator()<int16_t>();
    case DT_INT32:
      return fn.template operator()<int32_t>();
    case DT_UINT8:
      return fn.template operator()<uint8_t>();
    case DT_UINT16:
      return fn.template operator()<uint16_t>();
    case DT_UINT32:
      return fn.template operator()<uint32_t>();
    case DT_UINT64:
      return fn.template operator()<uint64_t>();
    case DT_BOOL:
      return fn.template operator()<bool>();
    case DT_STRING:
      return fn.template operator()<std::string>();
    default:
      return fn.template operator()<int64_t>();
  }
}

}  // namespace

std::string NumpyName(DType dtype) {
  for (const NumpyType& type : kTypes) {
    if (dtype == type.dtype) return type.name;
  }
  return DTypeName(dtype);
}

std::vector<json> CasesOfKind(const std::string& kind) {
  std::vector<json> cases;
  const std::string path = SharedDataPath("cases.json");
  if (path.empty()) return cases;
  std::ifstream file(path);
  const json all = json::parse(file);
  for (const json& one : all.at("cases")) {
    if (one.at("kind") == kind) cases.push_back(one);
  }
  return cases;
}

StatusOr<Tensor> TensorFromValues(const std::string& dtype_name, const std::vector<int64_t>& dims,
                                  const json& values) {
  MR_ASSIGN_OR_RETURN(const DType dtype, ToDType(dtype_name));
  MR_ASSIGN_OR_RETURN(const Shape shape, Shape::Make(dims));
  if (static_cast<int64_t>(values.size()) != shape.num_elements()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "cases.json: shape ", shape.ToString(), " must have as many values, got ", values.size()));
  }
  MR_ASSIGN_OR_RETURN(Tensor tensor, Tensor::Allocate(dtype, shape));
  Dispatch(dtype, [&]<typename T>() {
    for (size_t i = 0; i < values.size(); ++i) tensor.mutable_flat<T>()[i] = Element<T>(values[i]);
  });
  return tensor;
}

StatusOr<Tensor> TensorFromJson(const json& value) {
  if (value.contains("npy")) {
    return ReadNpy(FileSystem::Posix(), SharedDataPath(value.at("npy").get<std::string>()));
  }
  return TensorFromValues(value.at("dtype").get<std::string>(),
                          value.at("shape").get<std::vector<int64_t>>(), value.at("values"));
}

std::string Difference(const Tensor& actual, const Tensor& expected, double rtol, double atol) {
  if (actual.dtype() != expected.dtype() || actual.shape() != expected.shape()) {
    return absl::StrCat("expected ", DTypeName(expected.dtype()), expected.shape().ToString(),
                        ", got ", DTypeName(actual.dtype()), actual.shape().ToString());
  }
  return Dispatch(expected.dtype(), [&]<typename T>() -> std::string {
    for (size_t i = 0; i < expected.flat<T>().size(); ++i) {
      const T& a = actual.flat<T>()[i];
      const T& e = expected.flat<T>()[i];
      bool equal = a == e;
      if constexpr (std::is_floating_point_v<T>) {
        const double x = static_cast<double>(a), y = static_cast<double>(e);
        equal = equal || (std::isnan(x) && std::isnan(y)) ||
                std::abs(x - y) <= atol + rtol * std::abs(y);
      }
      if (!equal) {
        return absl::StrCat("element ", i, " differs: expected ", expected.DebugString(64),
                            ", got ", actual.DebugString(64));
      }
    }
    return "";
  });
}

}  // namespace millrace
