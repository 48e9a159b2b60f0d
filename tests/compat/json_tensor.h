// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TESTS_COMPAT_JSON_TENSOR_H_
#define MILLRACE_TESTS_COMPAT_JSON_TENSOR_H_

// The tensors and cases of cases.json, which says what real TensorFlow's files hold and compute.
//
// Thread-safety: pure functions. Failure: InvalidArgument for what is no tensor of that format.

#include <string>
#include <vector>

#include "core/tensor.h"
#include "nlohmann/json.hpp"

namespace millrace {

// The cases of one kind; empty when MILLRACE_SHARED has no cases.json.
std::vector<nlohmann::json> CasesOfKind(const std::string& kind);

// {dtype, shape, values} or {dtype, shape, npy}.
StatusOr<Tensor> TensorFromJson(const nlohmann::json& json);
// Elements of numpy dtype `dtype` ("float32", "string", ...).
StatusOr<Tensor> TensorFromValues(const std::string& dtype, const std::vector<int64_t>& shape,
                                  const nlohmann::json& values);

// "" when dtype and shape are equal and every element is within atol + rtol * |expected| (equal for
// integers, bools and strings); else what differs first.
std::string Difference(const Tensor& actual, const Tensor& expected, double rtol, double atol);

// numpy's name of a dtype.
std::string NumpyName(DType dtype);

}  // namespace millrace

#endif  // MILLRACE_TESTS_COMPAT_JSON_TENSOR_H_
