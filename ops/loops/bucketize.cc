// SPDX-License-Identifier: Apache-2.0
#include "ops/loops/bucketize.h"

#include <algorithm>
#include <type_traits>

namespace millrace::math {
namespace {

template <typename T>
using Compared = std::conditional_t<std::is_same_v<T, double>, double, float>;

// Each boundary against many numbers at once: vectors, no branches.
template <typename T>
void CountBoundaries(const T* x, int64_t n, const float* boundaries, int64_t m, int32_t* buckets) {
  using C = Compared<T>;
  constexpr int64_t kBlock = 512;
  C values[kBlock];
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t count = std::min(kBlock, n - begin);
    int32_t* const to = buckets + begin;
    for (int64_t i = 0; i < count; ++i) {
      values[i] = static_cast<C>(x[begin + i]);
      to[i] = 0;
    }
    for (int64_t k = 0; k < m; ++k) {
      const C boundary = boundaries[k];
      for (int64_t i = 0; i < count; ++i) to[i] += values[i] < boundary ? 0 : 1;
    }
  }
}

// Halves what is left without a branch.
template <typename T>
int32_t FindBucket(T x, const float* boundaries, int64_t m) {
  const Compared<T> value = static_cast<Compared<T>>(x);
  const float* base = boundaries;
  for (int64_t left = m; left > 1;) {
    const int64_t half = left / 2;
    base += value < base[half - 1] ? 0 : half;
    left -= half;
  }
  return static_cast<int32_t>(base - boundaries) + (value < *base ? 0 : 1);
}

}  // namespace

template <typename T>
void Bucketize(const T* x, int64_t n, const float* boundaries, int64_t m, int32_t* buckets) {
  // Here both ways cost the same.
  constexpr int64_t kMostCounted = 24;
  if (m <= kMostCounted) {
    CountBoundaries(x, n, boundaries, m, buckets);
  } else {
    for (int64_t i = 0; i < n; ++i) buckets[i] = FindBucket(x[i], boundaries, m);
  }
}

template void Bucketize(const int32_t*, int64_t, const float*, int64_t, int32_t*);
template void Bucketize(const int64_t*, int64_t, const float*, int64_t, int32_t*);
template void Bucketize(const float*, int64_t, const float*, int64_t, int32_t*);
template void Bucketize(const double*, int64_t, const float*, int64_t, int32_t*);

}  // namespace millrace::math
