// SPDX-License-Identifier: Apache-2.0
#include "ops/loops/segment_rows.h"

#include <algorithm>

#include "ops/loops/number.h"

namespace millrace::math {
namespace {

// sum[j] = first[j], or, where a sum has begun, sum[j] + first[j]; then + the other rows.
template <typename T, typename W, int kRows>
inline void AddRows(const T* const* row, bool begins, int64_t count, W* sum) {
#pragma GCC ivdep
  for (int64_t j = 0; j < count; ++j) {
    W s = begins ? W(Load(row[0][j])) : WrapAdd(sum[j], W(Load(row[0][j])));
    for (int k = 1; k < kRows; ++k) s = WrapAdd(s, W(Load(row[k][j])));
    sum[j] = s;
  }
}

// Columns [0, count) of the rows, into `sum`. Four rows at a time: a sum is loaded and stored once
// for all of them.
template <typename T, typename W, typename Index>
void SumColumns(const T* table, int64_t width, const Index* rows, int64_t n, int64_t count,
                W* sum) {
  const T* row[4];
  int64_t i = 0;
  for (; i + 4 <= n; i += 4) {
    for (int k = 0; k < 4; ++k) row[k] = table + static_cast<int64_t>(rows[i + k]) * width;
    AddRows<T, W, 4>(row, i == 0, count, sum);
  }
  for (; i < n; ++i) {
    row[0] = table + static_cast<int64_t>(rows[i]) * width;
    AddRows<T, W, 1>(row, i == 0, count, sum);
  }
}

template <typename W>
void Divide(double divisor, int64_t count, W* sum) {
  if (divisor == 1) return;
  const W d = static_cast<W>(divisor);
  for (int64_t j = 0; j < count; ++j) sum[j] = static_cast<W>(sum[j] / d);
}

template <typename T, typename Index>
void SumRows(const void* table, int64_t width, const Index* rows, int64_t n, double divisor,
             void* to) {
  using W = Wide<T>;
  const T* const from = static_cast<const T*>(table);
  T* const out = static_cast<T*>(to);
  if (n == 0) {
    std::fill(out, out + width, T{});
  } else if (width == 1) {
    W sum = Load(from[rows[0]]);
    for (int64_t i = 1; i < n; ++i) sum = WrapAdd(sum, W(Load(from[rows[i]])));
    Divide(divisor, 1, &sum);
    *out = Store<T>(sum);
  } else if constexpr (kIsNarrowFloat<T>) {
    constexpr int64_t kBlock = 256;
    W sum[kBlock];
    for (int64_t begin = 0; begin < width; begin += kBlock) {
      const int64_t count = std::min(kBlock, width - begin);
      SumColumns(from + begin, width, rows, n, count, sum);
      Divide(divisor, count, sum);
      for (int64_t j = 0; j < count; ++j) out[begin + j] = Store<T>(sum[j]);
    }
  } else {
    SumColumns(from, width, rows, n, width, out);
    Divide(divisor, width, out);
  }
}

}  // namespace

SegmentLoops FindSegmentLoops(DType dtype) {
  return LoopFor<RealTypes>(dtype, []<typename T>() -> SegmentLoops {
    return {&SumRows<T, int32_t>, &SumRows<T, int64_t>};
  });
}

template <typename T, typename W>
void AddDivided(const T* from, int64_t width, W divisor, W* to) {
#pragma GCC ivdep
  for (int64_t j = 0; j < width; ++j) to[j] += Load(from[j]) / divisor;
}
template void AddDivided(const float*, int64_t, float, float*);
template void AddDivided(const double*, int64_t, double, double*);
template void AddDivided(const Half*, int64_t, float, float*);
template void AddDivided(const Bfloat16*, int64_t, float, float*);

}  // namespace millrace::math
