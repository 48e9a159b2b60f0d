// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_MATH_SEGMENT_H_
#define MILLRACE_OPS_MATH_SEGMENT_H_

// Segments: rows of a tensor that belong together are added up (or multiplied, ...).
//
// segment_ids (int32 or int64) say for each row which row of the result it goes to. Numbers: half,
// bfloat16 (both computed in float and rounded once), float, double, int32, int64 (integers wrap).

#include "graph/node_builder.h"

namespace millrace {

// segment_ids: the first dimensions of `data`, in any order; negative ones are left out. The result
// has shape [num_segments] + the other dimensions of data; an empty segment is 0 (1 for Prod, the
// lowest and the highest value for Max and Min). InvalidArgument for an id >= num_segments.
struct UnsortedSegmentBuilder {
  const char* op;
  Output operator()(ScopeAt at, Output data, Output segment_ids,
                    const TensorArg& num_segments) const {
    return BuildOp(at, op, {data, segment_ids, num_segments});
  }
};
inline constexpr UnsortedSegmentBuilder UnsortedSegmentSum{"UnsortedSegmentSum"};
inline constexpr UnsortedSegmentBuilder UnsortedSegmentProd{"UnsortedSegmentProd"};
inline constexpr UnsortedSegmentBuilder UnsortedSegmentMax{"UnsortedSegmentMax"};
inline constexpr UnsortedSegmentBuilder UnsortedSegmentMin{"UnsortedSegmentMin"};

// (data, segment_ids). segment_ids: a vector, one id >= 0 for each row of data, in increasing order
// (equal ones next to each other). The result has as many rows as the last id + 1; an empty segment
// is 0 (1 for Prod).
inline constexpr BinaryBuilder SegmentSum{"SegmentSum"};
inline constexpr BinaryBuilder SegmentMean{"SegmentMean"};
inline constexpr BinaryBuilder SegmentProd{"SegmentProd"};
inline constexpr BinaryBuilder SegmentMax{"SegmentMax"};
inline constexpr BinaryBuilder SegmentMin{"SegmentMin"};

}  // namespace millrace

#endif  // MILLRACE_OPS_MATH_SEGMENT_H_
