// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_LOOPS_BATCH_NORM_H_
#define MILLRACE_OPS_LOOPS_BATCH_NORM_H_

// The passes of batch normalisation over an array [outer, channels, inner]: inner = 1 when channels
// come last, the pixels of an image when they come second.
//
// Each loop works on outer items [begin, end) of whole arrays. Sums are in double, one per
// channel; they are set, not added to.
//
// Thread-safety: pure functions on distinct outputs.

#include <cstdint>

#include "core/dtype.h"

namespace millrace::math {

struct ChannelLayout {
  int64_t outer = 0;
  int64_t channels = 0;
  int64_t inner = 1;
};

struct BatchNormLoops {
  // sum[c] of x.
  void (*sum)(const ChannelLayout& l, const void* x, int64_t begin, int64_t end, double* sum);
  // sum[c] of (x - mean[c])^2.
  void (*squares)(const ChannelLayout& l, const void* x, const float* mean, int64_t begin,
                  int64_t end, double* sum);
  // y = (x - mean[c]) * scale[c] + offset[c].
  void (*normalize)(const ChannelLayout& l, const void* x, const float* mean, const float* scale,
                    const float* offset, void* y, int64_t begin, int64_t end);
  // sum[c] of g, products[c] of g * (x - mean[c]).
  void (*gradient_sums)(const ChannelLayout& l, const void* g, const void* x, const float* mean,
                        int64_t begin, int64_t end, double* sum, double* products);
  // dx = g * a[c] + (x - mean[c]) * b[c] + d[c].
  void (*gradient)(const ChannelLayout& l, const void* g, const void* x, const float* mean,
                   const float* a, const float* b, const float* d, void* dx, int64_t begin,
                   int64_t end);
};

// For half, bfloat16 and float; null for others.
const BatchNormLoops* FindBatchNorm(DType dtype);

}  // namespace millrace::math

#endif  // MILLRACE_OPS_LOOPS_BATCH_NORM_H_
