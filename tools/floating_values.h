// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TOOLS_FLOATING_VALUES_H_
#define MILLRACE_TOOLS_FLOATING_VALUES_H_

// Floating tensors (half, bfloat16, float, double) as doubles, which hold each of their values, and
// back, rounded to nearest.
//
// Thread-safety: pure functions. Failure: that of Tensor::Allocate. The dtype is floating, by the
// caller's word.

#include <vector>

#include "absl/types/span.h"
#include "core/dtype.h"
#include "core/shape.h"
#include "core/status.h"
#include "core/tensor.h"

namespace millrace {

std::vector<double> DoublesOf(const Tensor& tensor);
// As many values as the shape has elements.
StatusOr<Tensor> TensorOfDoubles(absl::Span<const double> values, DType dtype, const Shape& shape);

}  // namespace millrace

#endif  // MILLRACE_TOOLS_FLOATING_VALUES_H_
