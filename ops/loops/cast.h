// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_LOOPS_CAST_H_
#define MILLRACE_OPS_LOOPS_CAST_H_

// Conversion of element types.
//
//   y[i] = (D) x[i] for i in [0, n)
//
// Floats to integers round towards zero; a value that the integer cannot hold gives some value of
// it, NaN gives 0, and nothing is undefined. Integers keep their low bits. To bool: is it not 0?
// Complex to real drops the imaginary part. y may be the memory of x when both sizes are equal.
//
// Thread-safety: pure functions.

#include <cstdint>

#include "core/dtype.h"

namespace millrace::math {

using CastFn = void (*)(const void* x, void* y, int64_t n);

// Between bool, the integers, half, bfloat16, float, double, complex64 and complex128; null for
// others. With `truncate`, floats are narrowed by cutting low bits off instead of rounding.
CastFn FindCast(DType from, DType to, bool truncate);

}  // namespace millrace::math

#endif  // MILLRACE_OPS_LOOPS_CAST_H_
