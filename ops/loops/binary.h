// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_LOOPS_BINARY_H_
#define MILLRACE_OPS_LOOPS_BINARY_H_

// Element-wise functions of two operands: the inner loops of the binary ops and of
// the gradient helpers of unary ops.
//
// A loop computes z[i] = op(x[i], y[i]) for i in [0, n), where an operand marked as scalar gives
// its first element each time. z may be the memory of x or of y. Integers wrap.
//
// Thread-safety: pure functions.

#include <cstdint>

#include "core/dtype.h"

namespace millrace::math {

enum class BinaryOp {
  // Result of the operands' type.
  kAdd,
  kSub,
  kMul,
  kDiv,  // integers round towards zero
  kFloorDiv,
  kFloorMod,
  kTruncateMod,
  kPow,
  kMaximum,
  kMinimum,
  kSquaredDifference,
  kDivNoNan,
  kMulNoNan,
  kAtan2,
  // Result bool.
  kEqual,
  kNotEqual,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  // bool only.
  kLogicalAnd,
  kLogicalOr,
  // Gradients in terms of the result: x is the result of the unary function, y the incoming
  // gradient.
  kSigmoidGrad,
  kTanhGrad,
  kSqrtGrad,
  kRsqrtGrad,
  kReciprocalGrad,
  // Gradients of activations: x is the incoming gradient, y the activation's input
  // (its output for kEluGrad and kSeluGrad).
  kReluGrad,
  kRelu6Grad,
  kEluGrad,
  kSeluGrad,
  kSoftplusGrad,
  kSoftsignGrad,
};

// False when an integer is divided by zero or raised to a negative power; z is then unspecified.
using BinaryFn = bool (*)(const void* x, bool x_is_scalar, const void* y, bool y_is_scalar, void* z,
                          int64_t n);

// The loop for operands of `dtype` (string: kAdd, kEqual, kNotEqual); null when there is none.
BinaryFn FindBinary(BinaryOp op, DType dtype);

// About how long one element takes, for ParallelFor.
double BinaryCostNs(BinaryOp op, DType dtype);

}  // namespace millrace::math

#endif  // MILLRACE_OPS_LOOPS_BINARY_H_
