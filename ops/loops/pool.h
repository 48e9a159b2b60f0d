// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_LOOPS_POOL_H_
#define MILLRACE_OPS_LOOPS_POOL_H_

// Largest and mean values of sliding windows over images, channels last, and the ways back.
//
// Each loop works on one image. A window covers the cells of the image only: padding is never the
// largest value and does not count in a mean. Of equal largest values the first one, by rows and
// then columns, is taken, forwards and backwards; a later cell wins only when it is greater (so
// a NaN stays only where it comes first). Inner loops run over channels.
//
// Thread-safety: pure functions; calls that write one image take different rows or channels.

#include <cstdint>

#include "core/dtype.h"

namespace millrace::math {

struct PoolShape {
  int64_t in_rows = 0, in_cols = 0, channels = 0;  // in_rows * in_cols < 2^31
  int64_t out_rows = 0, out_cols = 0;
  int64_t window_rows = 1, window_cols = 1;
  int64_t stride_rows = 1, stride_cols = 1;
  int64_t pad_top = 0, pad_left = 0;
};

struct PoolLoops {
  // Rows [begin, end) of the output.
  void (*max)(const PoolShape& s, const void* input, void* output, int64_t begin, int64_t end);
  // result = the gradient of the input, for channels [begin, end): what `grad`, shaped as the
  // output, gives to the largest elements.
  void (*max_gradient)(const PoolShape& s, const void* input, const void* grad, void* result,
                       int64_t begin, int64_t end);
  // Rows [begin, end) of the output: of `values`, shaped as the input, those where the input is
  // largest.
  void (*max_select)(const PoolShape& s, const void* input, const void* values, void* output,
                     int64_t begin, int64_t end);
  // Null for integers.
  void (*mean)(const PoolShape& s, const void* input, void* output, int64_t begin, int64_t end);
  void (*mean_gradient)(const PoolShape& s, const void* grad, void* result, int64_t begin,
                        int64_t end);
};

// For half, bfloat16, float, double and the integers; null for others.
const PoolLoops* FindPool(DType dtype);

}  // namespace millrace::math

#endif  // MILLRACE_OPS_LOOPS_POOL_H_
