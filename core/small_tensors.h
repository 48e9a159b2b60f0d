// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_CORE_SMALL_TENSORS_H_
#define MILLRACE_CORE_SMALL_TENSORS_H_

// The small constants that graphs are made of: a number in the dtype of what it is combined with,
// and the dimensions of a shape.
//
// Pure functions. Failure: InvalidArgument for a dtype without numbers and for a number that the
// dtype does not have.

#include <cstdint>

#include "core/dtype.h"
#include "core/shape.h"
#include "core/status.h"
#include "core/tensor.h"

namespace millrace {

// `value` as a scalar of `dtype`: one of the integers, floating or complex. An integer dtype takes
// whole numbers of its range only; a floating or complex one rounds to the nearest that it has, and
// refuses a finite number beyond its range.
StatusOr<Tensor> ScalarTensor(DType dtype, double value);
// The same, exact beyond 2^53.
StatusOr<Tensor> ScalarTensor(DType dtype, int64_t value);

// The dimensions as ops take them: an int32 vector where all fit, else int64.
Tensor DimsTensor(const Shape& shape);

}  // namespace millrace

#endif  // MILLRACE_CORE_SMALL_TENSORS_H_
