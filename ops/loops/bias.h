// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_LOOPS_BIAS_H_
#define MILLRACE_OPS_LOOPS_BIAS_H_

// A value per channel added to all elements of that channel, and the way back: the sum over
// all elements of each channel.
//
// Channels are the last dimension ("last": rows x channels) or one in the middle ("middle":
// planes of `plane` elements each, plane p belonging to channel p % channels). Sums are kept in
// the wide type of ops/loops/number.h and, for floats, in blocks, so that the error does not
// grow with the number of rows.
//
// Thread-safety: pure functions on distinct outputs.

#include <cstddef>
#include <cstdint>

#include "core/dtype.h"

namespace millrace::math {

struct BiasLoops {
  // out[r, c] = value[r, c] + bias[c] for `rows` rows; out may be value.
  void (*add_last)(const void* value, const void* bias, void* out, int64_t rows, int64_t channels);
  // The same for planes [begin, end); value and out are whole arrays.
  void (*add_middle)(const void* value, const void* bias, void* out, int64_t begin, int64_t end,
                     int64_t channels, int64_t plane);
  // sums[c] = the sum over `rows` rows of value[r, c]; `sums` is of the wide type.
  void (*sum_last)(const void* value, int64_t rows, int64_t channels, void* sums);
  // sums[c] for channels [begin, end) = the sum over batch and plane of value[n, c, i].
  void (*sum_middle)(const void* value, int64_t batch, int64_t channels, int64_t plane,
                     int64_t begin, int64_t end, void* sums);
  // out[c] = the sum over `blocks` of sums[block, c], narrowed.
  void (*finish)(const void* sums, int64_t blocks, int64_t channels, void* out);
  size_t wide_size;
};

// For all types of numbers but the quantized ones; null for others.
const BiasLoops* FindBias(DType dtype);

}  // namespace millrace::math

#endif  // MILLRACE_OPS_LOOPS_BIAS_H_
