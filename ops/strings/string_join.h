// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_STRINGS_STRING_JOIN_H_
#define MILLRACE_OPS_STRINGS_STRING_JOIN_H_

// Strings put together: element by element, and by segments.

#include <string>

#include "graph/node_builder.h"

namespace millrace {

struct StringJoinAttrs {
  std::string separator = "";
};
// The strings of all inputs put together, element by element. Inputs are scalars or have one shape,
// which the result has. InvalidArgument for different shapes.
inline Output StringJoin(ScopeAt at, absl::Span<const Output> inputs,
                         const StringJoinAttrs& attrs = {}) {
  return BuildOp(at, "StringJoin", {inputs}, "separator", attrs.separator);
}

// output[s, ...]: the strings inputs[i, ...] with segment_ids[i] = s, in their order, put together;
// "" for a segment without any. The shape of `segment_ids` (int32 or int64, of any rank above 0)
// begins that of `inputs`. InvalidArgument for an id that is not in [0, num_segments). As in
// TensorFlow no separator stands behind nothing but empty strings.
inline Output UnsortedSegmentJoin(ScopeAt at, Output inputs, Output segment_ids,
                                  Output num_segments, const StringJoinAttrs& attrs = {}) {
  return BuildOp(at, "UnsortedSegmentJoin", {inputs, segment_ids, num_segments}, "separator",
                 attrs.separator);
}

}  // namespace millrace

#endif  // MILLRACE_OPS_STRINGS_STRING_JOIN_H_
