// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_SPARSE_SPARSE_CROSS_H_
#define MILLRACE_OPS_SPARSE_SPARSE_CROSS_H_

// SparseCross: all combinations of one value of each feature, for each example.
//
//   a: [["x"], ["y", "z"]]   b: [[1, 2], [3]]     (examples in rows)
//   strings:  [["x_X_1", "x_X_2"], ["y_X_3", "z_X_3"]]
//
// Features are matrices, one row per example: sparse ones (any number of values; none gives the
// example no combination) or dense ones. The values are strings or int64. The last feature varies
// fastest. Dense features stand behind all sparse ones, however they are given, as in TensorFlow.
//
// hashed_output gives int64 in place of texts: the values' Fingerprint64 (of an int64 its own 64
// bits) combined one after the other, beginning with hash_key, modulo num_buckets (2^63 - 1 when
// that is 0). These are TensorFlow's numbers.
//
// Errors: InvalidArgument for features that are no matrices, differ in the number of examples, or
// have an index that is not in their shape or not in the order of examples.

#include <cstdint>

#include "absl/types/span.h"
#include "ops/sparse/sparse_tensor.h"

namespace millrace {

struct SparseCrossAttrs {
  bool hashed_output = true;
  int64_t num_buckets = 0;
  int64_t hash_key = 0xDECAFCAFFE;  // as any number, 0 is one
};

// [examples, most combinations of one]: int64 when hashed, otherwise string.
SparseTensor SparseCross(ScopeAt at, absl::Span<const SparseTensor> sparse,
                         absl::Span<const Output> dense, const SparseCrossAttrs& attrs = {});

}  // namespace millrace

#endif  // MILLRACE_OPS_SPARSE_SPARSE_CROSS_H_
