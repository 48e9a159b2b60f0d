// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_LOOPS_ZERO_SKIPPING_GEMM_H_
#define MILLRACE_OPS_LOOPS_ZERO_SKIPPING_GEMM_H_

// Float products whose left operand is zero in large part, as it is behind a relu and in one-hot
// columns: what is zero is not multiplied.
//
// Every element of c is the sum over k in its order, one fused multiply-add each, whatever the
// slice and the panel that it is computed in: equal bits on any number of threads. Zeros that are
// left out change no sum but for the sign of a zero; those that meet an infinity or NaN in b are
// not left out.
//
// Thread-safety: pure functions. Failure: std::bad_alloc for the panels of a thread's first call.

#include <cstdint>

#include "ops/loops/gemm.h"

namespace millrace::math {

// Whether the product is faster so: by its shape and by the zeros in a sample of `a`, which is the
// whole matrix as stored. Every slice of a product gets the same answer.
bool SkipsZeros(const GemmShape& shape, const float* a);

// As GemmFn (ops/loops/gemm.h), for any float matrices.
void ZeroSkippingGemm(const GemmShape& shape, const float* a, const float* b, float* c,
                      int64_t m_begin, int64_t m_end, int64_t n_begin, int64_t n_end);

}  // namespace millrace::math

#endif  // MILLRACE_OPS_LOOPS_ZERO_SKIPPING_GEMM_H_
