// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_ARRAY_INDICES_H_
#define MILLRACE_OPS_ARRAY_INDICES_H_

// Indices: which values there are, where they are, and rows made from them.

#include "graph/node_builder.h"

namespace millrace {

struct OneHotAttrs {
  int64_t axis = -1;  // of the new dimension; -1 is after the last one
};
// A new dimension of size `depth` (int32 scalar) that is on_value at the index and off_value
// elsewhere (everywhere for an index outside of [0, depth)). Indices: uint8, int32, int64. Values:
// scalars of any dtype.
inline Output OneHot(ScopeAt at, const TensorArg& indices, const TensorArg& depth,
                     const TensorArg& on_value = 1.0f, const TensorArg& off_value = 0.0f,
                     const OneHotAttrs& attrs = {}) {
  return BuildOp(at, "OneHot", {indices, depth, on_value, off_value}, "axis", attrs.axis);
}

// The coordinates of all elements that are not 0 (false), in row-major order: int64
// [count, rank of input]. Numbers and bool.
inline Output Where(ScopeAt at, Output input) { return BuildOp(at, "Where", {input}); }

struct UniqueOutputs {
  Output y;    // the different elements, in the order in which they first appear
  Output idx;  // y[idx[i]] == x[i]
};
struct UniqueAttrs {
  DType out_idx = DT_INT32;
};
// `x`: a vector of real numbers, bool or strings. NaN equals nothing.
inline UniqueOutputs Unique(ScopeAt at, Output x, const UniqueAttrs& attrs = {}) {
  const BuiltNode node = BuildOp(at, "Unique", {x}, "out_idx", attrs.out_idx);
  return {node.output(0), node.output(1)};
}
struct UniqueWithCountsOutputs {
  Output y, idx;
  Output count;  // how often y[i] appears
};
inline UniqueWithCountsOutputs UniqueWithCounts(ScopeAt at, Output x,
                                                const UniqueAttrs& attrs = {}) {
  const BuiltNode node = BuildOp(at, "UniqueWithCounts", {x}, "out_idx", attrs.out_idx);
  return {node.output(0), node.output(1), node.output(2)};
}

struct ListDiffOutputs {
  Output out;  // the elements of x that y does not have, in their order
  Output idx;  // out[i] == x[idx[i]]
};
struct ListDiffAttrs {
  DType out_idx = DT_INT32;  // or int64
};
// What is in `x` and not in `y`, as often as it is in x (not a set: [2, 1, 2] without [1] is
// [2, 2]). Vectors of real numbers or strings. NaN equals nothing, so it stays. InvalidArgument for
// other ranks.
inline ListDiffOutputs ListDiff(ScopeAt at, Output x, Output y, const ListDiffAttrs& attrs = {}) {
  const BuiltNode node = BuildOp(at, "ListDiff", {x, y}, "out_idx", attrs.out_idx);
  return {node.output(0), node.output(1)};
}
// The name of TensorFlow's Python for it.
inline ListDiffOutputs SetDiff1D(ScopeAt at, Output x, Output y, const ListDiffAttrs& attrs = {}) {
  return ListDiff(at, x, y, attrs);
}

}  // namespace millrace

#endif  // MILLRACE_OPS_ARRAY_INDICES_H_
