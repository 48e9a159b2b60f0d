// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_NN_SOFTMAX_H_
#define MILLRACE_OPS_NN_SOFTMAX_H_

// Softmax over the last dimension, and its logarithm.
//
// Half, bfloat16, float, double; rank >= 1; the output has the input's shape.
//
// Errors: InvalidArgument for a scalar.

#include "graph/node_builder.h"

namespace millrace {

// exp(logits) / sum(exp(logits)) of each row.
inline constexpr UnaryBuilder Softmax{"Softmax"};

// logits - log(sum(exp(logits))) of each row.
inline constexpr UnaryBuilder LogSoftmax{"LogSoftmax"};

}  // namespace millrace

#endif  // MILLRACE_OPS_NN_SOFTMAX_H_
