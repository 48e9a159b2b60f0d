// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_GRAPH_REWRITE_ARITHMETIC_H_
#define MILLRACE_GRAPH_REWRITE_ARITHMETIC_H_

// arithmetic: operations that give their input, bit for bit.
//
//   x + 0, x - 0, x * 1, x / 1 of integers; x + -0.0, x - +0.0, x * 1, x / 1 of floats and doubles
//   that an arithmetic operation made (any other may be a signalling NaN, which arithmetic quiets);
//   -(-x), conj(conj(x)), not(not(x)); the sum of one tensor.
//
// The constant is a scalar, or its shape is known not to change that of x. Complex numbers, halves
// and 1/(1/x) are left alone: they are rounded or lose signs of zeros. x + +0.0 turns -0.0 into
// +0.0.

#include "core/status.h"
#include "graph/rewrite/context.h"

namespace millrace {

// How many nodes changed.
StatusOr<int> SimplifyArithmetic(RewriteContext* context);

}  // namespace millrace

#endif  // MILLRACE_GRAPH_REWRITE_ARITHMETIC_H_
