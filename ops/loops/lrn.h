// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_LOOPS_LRN_H_
#define MILLRACE_OPS_LOOPS_LRN_H_

// Local response normalisation of rows of channels:
//
//   y[c] = x[c] / (bias + alpha * sum over |k - c| <= radius of x[k]^2) ^ beta
//
// Half and bfloat16 compute in float. Thread-safety: pure functions on distinct outputs.

#include <cstdint>

#include "core/dtype.h"

namespace millrace::math {

struct LrnShape {
  int64_t channels = 0;
  int64_t radius = 0;  // 0 <= radius
  float bias = 1, alpha = 1, beta = 0.5f;
};

struct LrnLoops {
  void (*forward)(const LrnShape& s, const void* x, void* y, int64_t rows);
  // dx: what g, the gradient of y, gives to x.
  void (*gradient)(const LrnShape& s, const void* g, const void* x, const void* y, void* dx,
                   int64_t rows);
};

// For half, bfloat16 and float; null for others.
const LrnLoops* FindLrn(DType dtype);

}  // namespace millrace::math

#endif  // MILLRACE_OPS_LOOPS_LRN_H_
