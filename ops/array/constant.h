// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_ARRAY_CONSTANT_H_
#define MILLRACE_OPS_ARRAY_CONSTANT_H_

// Constants: tensors whose values stand in the graph, and tensors of one value or of a row of
// numbers.

#include <initializer_list>
#include <string>
#include <type_traits>
#include <vector>

#include "core/tensor.h"
#include "graph/node_builder.h"

namespace millrace {

// The tensor itself. Any dtype but resource and variant. The graph shares a large one's buffer.
Output Const(ScopeAt at, const Tensor& value);
// A scalar: Const(scope, 1.0f), Const(scope, int64_t{3}), Const(scope, "text").
template <typename T>
  requires std::is_arithmetic_v<T>
Output Const(ScopeAt at, T value) {
  return Const(at, Tensor::Scalar<T>(value));
}
inline Output Const(ScopeAt at, const char* value) { return Const(at, Tensor::Scalar(value)); }
inline Output Const(ScopeAt at, std::string value) {
  return Const(at, Tensor::Scalar<std::string>(std::move(value)));
}
// A vector: Const<int32_t>(scope, {1, 2, 3}).
template <typename T>
Output Const(ScopeAt at, std::initializer_list<T> values) {
  return Const(at, Tensor::Vector<T>(values));
}
template <typename T>
Output ConstVector(ScopeAt at, absl::Span<const T> values) {
  return Const(at, Tensor::Vector<T>(values));
}

// A tensor of shape `dims` (int32 or int64 vector) filled with the scalar `value`.
// InvalidArgument for a negative dimension or too many elements.
inline Output Fill(ScopeAt at, const TensorArg& dims, const TensorArg& value) {
  return BuildOp(at, "Fill", {dims, value});
}
// Zeros (0, false, "") and ones of a shape, which may be a vector of the graph; InvalidArgument for
// a dtype that has no 1.
Output Zeros(ScopeAt at, const TensorArg& shape, DType dtype = DT_FLOAT);
Output Ones(ScopeAt at, const TensorArg& shape, DType dtype = DT_FLOAT);
// Zeros (0, false, "") with the dtype and shape of x.
inline Output ZerosLike(ScopeAt at, Output x) { return BuildOp(at, "ZerosLike", {x}); }
// Ones (1, true) with the dtype and shape of x. Numbers and bool.
inline Output OnesLike(ScopeAt at, Output x) { return BuildOp(at, "OnesLike", {x}); }
// start, start + delta, ... up to but without `limit`: scalars of one dtype (float, double, int32,
// int64). InvalidArgument for delta 0.
inline Output Range(ScopeAt at, const TensorArg& start, const TensorArg& limit,
                    const TensorArg& delta) {
  return BuildOp(at, "Range", {start, limit, delta});
}

}  // namespace millrace

#endif  // MILLRACE_OPS_ARRAY_CONSTANT_H_
