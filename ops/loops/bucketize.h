// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_LOOPS_BUCKETIZE_H_
#define MILLRACE_OPS_LOOPS_BUCKETIZE_H_

// Which of the buckets between boundaries each number is in.
//
// T is int32_t, int64_t, float or double. Numbers are compared as C++ compares a T with a float:
// integers as floats, doubles as doubles. A NaN is not below any boundary.
//
// Thread-safety: pure functions.

#include <cstdint>

namespace millrace::math {

// buckets[i] = the number of boundaries that x[i] is not below. `boundaries`: m floats in
// increasing order, none NaN.
template <typename T>
void Bucketize(const T* x, int64_t n, const float* boundaries, int64_t m, int32_t* buckets);

}  // namespace millrace::math

#endif  // MILLRACE_OPS_LOOPS_BUCKETIZE_H_
