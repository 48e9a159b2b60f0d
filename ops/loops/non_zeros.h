// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_LOOPS_NON_ZEROS_H_
#define MILLRACE_OPS_LOOPS_NON_ZEROS_H_

// Floats that are not zero: -0 is, NaN is not.
//
// Pure functions.

#include <immintrin.h>

#include <bit>
#include <cstdint>

namespace millrace::math {

// Bit i: values[i] is not zero, for i < 8.
inline unsigned NonZeroLanes(const float* values) {
  const __m256 v = _mm256_loadu_ps(values);
  return static_cast<unsigned>(
      _mm256_movemask_ps(_mm256_cmp_ps(v, _mm256_setzero_ps(), _CMP_NEQ_UQ)));
}

inline int64_t CountNonZeros(const float* values, int64_t n) {
  int64_t found = 0, i = 0;
  for (; i + 8 <= n; i += 8) found += std::popcount(NonZeroLanes(values + i));
  for (; i < n; ++i) found += values[i] != 0 ? 1 : 0;
  return found;
}

}  // namespace millrace::math

#endif  // MILLRACE_OPS_LOOPS_NON_ZEROS_H_
