// SPDX-License-Identifier: Apache-2.0
#include "ops/loops/unary.h"

#include "ops/loops/unary_loop.h"

namespace millrace::math {

UnaryFn FindUnary(UnaryOp op, DType dtype) {
  if (UnaryFn fn = FindUnaryArithmetic(op, dtype); fn != nullptr) return fn;
  if (UnaryFn fn = FindUnaryTranscendental(op, dtype); fn != nullptr) return fn;
  return FindUnaryComplex(op, dtype);
}

// Measured with math_benchmark on one core, rounded.
double UnaryCostNs(UnaryOp op, DType dtype) {
  double cost = 0.1 * static_cast<double>(DTypeSize(dtype));
  if (IsComplex(dtype)) return cost + 20;
  if (dtype == DT_HALF || dtype == DT_BFLOAT16) cost += 3;
  const double wide = dtype == DT_DOUBLE ? 3 : 1;
  switch (op) {
    case UnaryOp::kExp:
    case UnaryOp::kSigmoid:
    case UnaryOp::kTanh:
    case UnaryOp::kLog:
    case UnaryOp::kSin:
    case UnaryOp::kCos:
    case UnaryOp::kElu:
    case UnaryOp::kSelu:
      return cost + wide;
    case UnaryOp::kExpm1:
    case UnaryOp::kLog1p:
    case UnaryOp::kSoftplus:
      return cost + 2 * wide;
    case UnaryOp::kTan:
    case UnaryOp::kAsin:
    case UnaryOp::kAcos:
    case UnaryOp::kAtan:
    case UnaryOp::kSinh:
    case UnaryOp::kCosh:
    case UnaryOp::kAsinh:
    case UnaryOp::kAcosh:
    case UnaryOp::kAtanh:
    case UnaryOp::kErf:
    case UnaryOp::kErfc:
      return cost + 12;
    default:
      return cost;
  }
}

}  // namespace millrace::math
