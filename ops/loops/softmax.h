// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_LOOPS_SOFTMAX_H_
#define MILLRACE_OPS_LOOPS_SOFTMAX_H_

// Softmax of the rows of a matrix, its logarithm, and cross entropy with it.
//
// The largest element of a row is subtracted first, so no finite input overflows. NaN and +inf make
// their row NaN. Half and bfloat16 compute in float. `columns` >= 1.
//
// Thread-safety: pure functions on distinct outputs.

#include <cstdint>

#include "core/dtype.h"
#include "core/int_span.h"

namespace millrace::math {

struct SoftmaxLoops {
  // y = exp(x) / sum(exp(x)) and its logarithm; y may be x.
  void (*softmax)(const void* x, void* y, int64_t rows, int64_t columns);
  void (*log_softmax)(const void* x, void* y, int64_t rows, int64_t columns);
  // loss[r] = -sum(labels[r] * log_softmax(x[r])), backprop = softmax(x) - labels; backprop may be
  // x. A label of 0 takes nothing, also from a logit of -inf.
  void (*cross_entropy)(const void* x, const void* labels, void* loss, void* backprop, int64_t rows,
                        int64_t columns);
  // The same with one class per row; 0 <= labels[r] < columns.
  void (*sparse_cross_entropy)(const void* x, IntSpan labels, void* loss, void* backprop,
                               int64_t rows, int64_t columns);
};

// For half, bfloat16, float and double; null for others.
const SoftmaxLoops* FindSoftmax(DType dtype);

}  // namespace millrace::math

#endif  // MILLRACE_OPS_LOOPS_SOFTMAX_H_
