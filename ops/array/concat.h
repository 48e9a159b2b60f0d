// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_ARRAY_CONCAT_H_
#define MILLRACE_OPS_ARRAY_CONCAT_H_

// Putting tensors together along a dimension and taking them apart again. All dtypes.
//
// Errors: InvalidArgument for tensors that differ in a dimension other than the axis, an axis
// outside of [-rank, rank), sizes that do not add up.

#include <vector>

#include "graph/node_builder.h"

namespace millrace {

// Two or more tensors of one dtype and rank along `axis` (int32 or int64 scalar).
inline Output ConcatV2(ScopeAt at, absl::Span<const Output> values, const TensorArg& axis) {
  return BuildOp(at, "ConcatV2", {values, axis});
}
// TensorFlow's tf.concat: the same.
inline Output Concat(ScopeAt at, absl::Span<const Output> values, const TensorArg& axis) {
  return ConcatV2(at, values, axis);
}
// The form of old graphs: the axis first.
inline Output Concat(ScopeAt at, Output concat_dim, absl::Span<const Output> values) {
  return BuildOp(at, "Concat", {concat_dim, values});
}
// Where each tensor of these shapes (int32 vectors) begins in their concatenation: vectors of zeros
// but for element concat_dim.
inline std::vector<Output> ConcatOffset(ScopeAt at, Output concat_dim,
                                        absl::Span<const Output> shape) {
  return BuildOp(at, "ConcatOffset", {concat_dim, shape})
      .outputs(0, static_cast<int>(shape.size()));
}

struct PackAttrs {
  int64_t axis = 0;  // of the new dimension, in [-rank - 1, rank]
};
// Tensors of one shape as slices of a tensor with one dimension more.
inline Output Pack(ScopeAt at, absl::Span<const Output> values, const PackAttrs& attrs = {}) {
  return BuildOp(at, "Pack", {values}, "axis", attrs.axis);
}
// TensorFlow's tf.stack: the same.
inline Output Stack(ScopeAt at, absl::Span<const Output> values, int64_t axis = 0) {
  return Pack(at, values, {.axis = axis});
}
struct UnpackAttrs {
  int64_t axis = 0;
};
// The `num` slices of a dimension, which must have just that size.
inline std::vector<Output> Unpack(ScopeAt at, Output value, int num,
                                  const UnpackAttrs& attrs = {}) {
  return BuildOp(at, "Unpack", {value}, "num", int64_t{num}, "axis", attrs.axis).outputs(0, num);
}
// TensorFlow's tf.unstack: all slices of a dimension whose size is known; InvalidArgument
// otherwise.
std::vector<Output> Unstack(ScopeAt at, const Output& value, int64_t axis = 0);

// TensorFlow's tf.split: `num_split` parts of equal size along dimension `axis`.
inline std::vector<Output> Split(ScopeAt at, const Output& value, int num_split,
                                 const TensorArg& axis = 0) {
  return BuildOp(at, "Split", {axis, value}, "num_split", int64_t{num_split}).outputs(0, num_split);
}
// num_split parts of equal size along split_dim (int32 scalar), which must be a multiple of it.
inline std::vector<Output> Split(ScopeAt at, Output split_dim, Output value, int num_split) {
  return BuildOp(at, "Split", {split_dim, value}, "num_split", int64_t{num_split})
      .outputs(0, num_split);
}
// Parts of the sizes in vector `size_splits` (int32 or int64), one of which may be -1: the rest.
inline std::vector<Output> SplitV(ScopeAt at, Output value, const TensorArg& size_splits,
                                  const TensorArg& split_dim, int num_split) {
  return BuildOp(at, "SplitV", {value, size_splits, split_dim}, "num_split", int64_t{num_split})
      .outputs(0, num_split);
}

}  // namespace millrace

#endif  // MILLRACE_OPS_ARRAY_CONCAT_H_
