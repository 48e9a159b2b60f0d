// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_MATH_SEGMENT_H_
#define MILLRACE_OPS_MATH_SEGMENT_H_

// Segments: rows of a tensor that belong together are added up (or multiplied, ...).
//
// segment_ids (int32 or int64) say for each row which row of the result it goes to. Numbers:
// float, double, int32, int64 (integers wrap).

#include "graph/node_builder.h"

namespace millrace {

// segment_ids: the first dimensions of `data`, in any order; negative ones are left out. The result
// has shape [num_segments] + the other dimensions of data; an empty segment is 0 (1 for Prod, the
// lowest and the highest value for Max and Min). InvalidArgument for an id >= num_segments.
inline Output UnsortedSegmentSum(ScopeAt at, Output data, Output segment_ids, Output num_segments) {
  return BuildOp(at, "UnsortedSegmentSum", {data, segment_ids, num_segments});
}
inline Output UnsortedSegmentProd(ScopeAt at, Output data, Output segment_ids,
                                  Output num_segments) {
  return BuildOp(at, "UnsortedSegmentProd", {data, segment_ids, num_segments});
}
inline Output UnsortedSegmentMax(ScopeAt at, Output data, Output segment_ids, Output num_segments) {
  return BuildOp(at, "UnsortedSegmentMax", {data, segment_ids, num_segments});
}
inline Output UnsortedSegmentMin(ScopeAt at, Output data, Output segment_ids, Output num_segments) {
  return BuildOp(at, "UnsortedSegmentMin", {data, segment_ids, num_segments});
}

// segment_ids: a vector, one id >= 0 for each row of `data`, in increasing order (equal ones beside
// each other). The result has as many rows as the last id + 1; an empty segment is 0 (1 for Prod).
inline Output SegmentSum(ScopeAt at, Output data, Output segment_ids) {
  return BuildOp(at, "SegmentSum", {data, segment_ids});
}
inline Output SegmentMean(ScopeAt at, Output data, Output segment_ids) {
  return BuildOp(at, "SegmentMean", {data, segment_ids});
}
inline Output SegmentProd(ScopeAt at, Output data, Output segment_ids) {
  return BuildOp(at, "SegmentProd", {data, segment_ids});
}
inline Output SegmentMax(ScopeAt at, Output data, Output segment_ids) {
  return BuildOp(at, "SegmentMax", {data, segment_ids});
}
inline Output SegmentMin(ScopeAt at, Output data, Output segment_ids) {
  return BuildOp(at, "SegmentMin", {data, segment_ids});
}

}  // namespace millrace

#endif  // MILLRACE_OPS_MATH_SEGMENT_H_
