// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_LOOPS_UNARY_H_
#define MILLRACE_OPS_LOOPS_UNARY_H_

// Element-wise functions of one operand: the inner loops of the unary ops and activations.
//
// A loop computes y[i] = op(x[i]) for i in [0, n); y may be the memory of x (for the
// tests of floats the result is bool and must be apart from x). Integers wrap. Functions of float
// are vectorised (Eigen's packet math), NaN gives NaN, and infinities have their limits.
//
// Thread-safety: pure functions.

#include <cstdint>

#include "core/dtype.h"

namespace millrace::math {

enum class UnaryOp {
  kAbs,
  kNeg,
  kSign,
  kSquare,
  kReciprocal,
  kSqrt,
  kRsqrt,
  kFloor,
  kCeil,
  kRound,  // halves to even; of complex numbers both parts
  kConj,
  kExp,
  kExpm1,
  kLog,
  kLog1p,
  kSigmoid,
  kTanh,
  kSin,
  kCos,
  kTan,
  kAsin,
  kAcos,
  kAtan,
  kSinh,
  kCosh,
  kAsinh,
  kAcosh,
  kAtanh,
  kErf,
  kErfc,
  // Activations.
  kRelu,
  kRelu6,
  kElu,
  kSelu,
  kSoftplus,
  kSoftsign,
  // Result bool.
  kIsNan,
  kIsInf,
  kIsFinite,
  kLogicalNot,
};

using UnaryFn = void (*)(const void* x, void* y, int64_t n);

// The loop for elements of `dtype`; null when there is none.
UnaryFn FindUnary(UnaryOp op, DType dtype);

// About how long one element takes, for ParallelFor.
double UnaryCostNs(UnaryOp op, DType dtype);

}  // namespace millrace::math

#endif  // MILLRACE_OPS_LOOPS_UNARY_H_
