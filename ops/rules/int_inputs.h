// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_RULES_INT_INPUTS_H_
#define MILLRACE_OPS_RULES_INT_INPUTS_H_

// Integer inputs (shapes, axes, sizes, begins) as int64 values: of a tensor, and of an input whose
// value is constant while the graph is built.
//
// Pure functions. IntElements requires an int32 or int64 tensor (what the op's attrs allow).

#include <cstdint>
#include <optional>
#include <vector>

#include "core/status.h"
#include "core/tensor.h"
#include "graph/shape_inference.h"

namespace millrace {

inline std::vector<int64_t> IntElements(const Tensor& t) {
  if (t.dtype() == DT_INT32) {
    const absl::Span<const int32_t> values = t.raw<int32_t>();
    return std::vector<int64_t>(values.begin(), values.end());
  }
  const absl::Span<const int64_t> values = t.raw<int64_t>();
  return std::vector<int64_t>(values.begin(), values.end());
}

// The elements of input i when they are known now.
inline std::optional<std::vector<int64_t>> ConstantInts(InferenceContext* c, int i) {
  const Tensor* t = c->input_tensor(i);
  if (t == nullptr || (t->dtype() != DT_INT32 && t->dtype() != DT_INT64)) return std::nullopt;
  return IntElements(*t);
}

// The value of scalar input i when it is known now. A tensor of one element counts as a scalar, as
// it always did in graphs of the field.
inline std::optional<int64_t> ConstantInt(InferenceContext* c, int i) {
  const std::optional<std::vector<int64_t>> values = ConstantInts(c, i);
  if (!values || values->size() != 1) return std::nullopt;
  return values->front();
}

}  // namespace millrace

#endif  // MILLRACE_OPS_RULES_INT_INPUTS_H_
