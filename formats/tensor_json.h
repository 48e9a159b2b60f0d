// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_FORMATS_TENSOR_JSON_H_
#define MILLRACE_FORMATS_TENSOR_JSON_H_

// Tensors as JSON, for other programs:
//
//   {"dtype": "float32", "shape": [2, 1], "values": [2.5, 3.0]}
//
// Dtypes have numpy's names, or TensorFlow's where numpy has none. Values are flat, in row-major
// order, as formats/json_value.h has them.
//
// Thread-safety: pure functions. Failure: Unimplemented for resources and variants.

#include <string>

#include "core/dtype.h"
#include "core/status.h"
#include "core/tensor.h"
#include "nlohmann/json.hpp"

namespace millrace {

// "float32", "int64", "bool", "string"; "float32_ref" for a reference.
std::string JsonTypeName(DType dtype);
Status TensorToJson(const Tensor& tensor, nlohmann::ordered_json* json);
// With two blanks and a line's end, for stdout. Text that is no UTF-8 (names of a damaged model)
// has the replacement character.
std::string JsonText(const nlohmann::ordered_json& json);

}  // namespace millrace

#endif  // MILLRACE_FORMATS_TENSOR_JSON_H_
