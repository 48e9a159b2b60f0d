// SPDX-License-Identifier: Apache-2.0
#include "ops/loops/binary.h"

#include "ops/loops/binary_loop.h"

namespace millrace::math {

BinaryFn FindBinary(BinaryOp op, DType dtype) {
  if (op < BinaryOp::kEqual) return FindArithmetic(op, dtype);
  if (op < BinaryOp::kSigmoidGrad) return FindComparison(op, dtype);
  return FindGradient(op, dtype);
}

// Measured with math_benchmark on one core, rounded: memory-bound loops move about 10 bytes/ns.
double BinaryCostNs(BinaryOp op, DType dtype) {
  double cost = 0.15 * static_cast<double>(DTypeSize(dtype));
  if (dtype == DT_STRING) cost = 40;
  if (IsComplex(dtype) || dtype == DT_HALF || dtype == DT_BFLOAT16) cost += 3;
  switch (op) {
    case BinaryOp::kPow:
    case BinaryOp::kAtan2:
    case BinaryOp::kFloorMod:
    case BinaryOp::kTruncateMod:
      return cost + 10;
    case BinaryOp::kSoftplusGrad:
      return cost + 5;
    case BinaryOp::kDiv:
    case BinaryOp::kFloorDiv:
      return cost + (IsInteger(dtype) ? 4 : 0.3);
    default:
      return cost;
  }
}

}  // namespace millrace::math
