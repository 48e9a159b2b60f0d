// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_LOOPS_LEAKY_RELU_H_
#define MILLRACE_OPS_LOOPS_LEAKY_RELU_H_

// The loop of LeakyRelu and of its gradient: z[i] = x[i] > 0 ? g[i] : alpha * g[i] for
// i in [0, n). The activation itself is the case g == x. z may be the memory of g or x.
//
// Thread-safety: pure functions.

#include <cstdint>

#include "core/dtype.h"

namespace millrace::math {

using LeakyReluFn = void (*)(const void* g, const void* x, float alpha, void* z, int64_t n);

// For half, bfloat16, float and double; null for others.
LeakyReluFn FindLeakyRelu(DType dtype);

}  // namespace millrace::math

#endif  // MILLRACE_OPS_LOOPS_LEAKY_RELU_H_
