// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_ARRAY_REVERSE_H_
#define MILLRACE_OPS_ARRAY_REVERSE_H_

// Turning dimensions of a tensor around: ReverseV2 whole ones, ReverseSequence the beginning of
// each. All dtypes.
//
// `axis` is an int32 or int64 vector; negative ones count from the end. Errors: InvalidArgument for
// an axis that the tensor does not have or that comes twice.

#include <cstdint>

#include "graph/node_builder.h"

namespace millrace {

// The dimensions in `axis` (a vector) backwards.
inline Output ReverseV2(ScopeAt at, Output tensor, const TensorArg& axis) {
  return BuildOp(at, "ReverseV2", {tensor, axis});
}

struct ReverseSequenceAttrs {
  int64_t batch_dim = 0;
};
// Along dimension `seq_dim` the first seq_lengths[b] (int32 or int64 vector) elements backwards,
// for each b of dimension batch_dim; those behind them stay. InvalidArgument for a length below 0
// or above the dimension, and where both dimensions are one.
inline Output ReverseSequence(ScopeAt at, Output input, Output seq_lengths, int64_t seq_dim,
                              const ReverseSequenceAttrs& attrs = {}) {
  return BuildOp(at, "ReverseSequence", {input, seq_lengths}, "seq_dim", seq_dim, "batch_dim",
                 attrs.batch_dim);
}

}  // namespace millrace

#endif  // MILLRACE_OPS_ARRAY_REVERSE_H_
