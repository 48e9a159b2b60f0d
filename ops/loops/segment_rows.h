// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_LOOPS_SEGMENT_ROWS_H_
#define MILLRACE_OPS_LOOPS_SEGMENT_ROWS_H_

// Rows of a table, picked by index and added up: what the SparseSegment ops do for one segment.
//
// Rows are added in the order of their indices, element by element, so a sum depends on nothing
// else. half and bfloat16 are added as floats and rounded once; integers wrap.
//
// Thread-safety: pure functions; parallel callers write different rows.

#include <cstdint>

#include "core/dtype.h"

namespace millrace::math {

// to[j] = (sum of table[rows[i] * width + j] over i in [0, n)) / divisor, for j in [0, width).
// A divisor of 1 divides nothing; integers know no other.
template <typename Index>
using SumRowsFn = void (*)(const void* table, int64_t width, const Index* rows, int64_t n,
                           double divisor, void* to);

struct SegmentLoops {
  SumRowsFn<int32_t> sum_by_int32 = nullptr;
  SumRowsFn<int64_t> sum_by_int64 = nullptr;

  template <typename Index>
  SumRowsFn<Index> sum() const {
    if constexpr (sizeof(Index) == 4) {
      return sum_by_int32;
    } else {
      return sum_by_int64;
    }
  }
};

// For the types of real numbers; empty for others.
SegmentLoops FindSegmentLoops(DType dtype);

// to[j] += from[j] / divisor, for j in [0, width), in W: the type in which T is computed. T is a
// type of floats.
template <typename T, typename W>
void AddDivided(const T* from, int64_t width, W divisor, W* to);

}  // namespace millrace::math

#endif  // MILLRACE_OPS_LOOPS_SEGMENT_ROWS_H_
