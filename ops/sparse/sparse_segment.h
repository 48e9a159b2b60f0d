// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_SPARSE_SPARSE_SEGMENT_H_
#define MILLRACE_OPS_SPARSE_SPARSE_SEGMENT_H_

// Rows of a table by index, those that belong together added up: SegmentSum (ops/math/segment.h) of
// a Gather, without the gathered rows in memory. What an embedding of several ids per example is.
//
//   output[s] = sum of data[indices[i]] over all i with segment_ids[i] = s
//
// indices: int32 or int64 vector of rows of `data`. segment_ids: int32 vector of the same length,
// in increasing order (equal ones next to each other). Mean divides a segment by the number of its
// rows n, SqrtN by the root of n. A segment without rows is 0. Sum: all real numbers (integers
// wrap); Mean and SqrtN: floats (half and bfloat16 are of TensorFlow 2: 1.15 does not load a graph
// with these). half and bfloat16 are added up and divided as floats and rounded once, forward and
// in the gradients.
//
// Errors: InvalidArgument for indices that are out of range, segment ids that do not increase and a
// number of segments that is too small for them.

#include "graph/node_builder.h"

namespace millrace {

// As many segments as the last id + 1.
struct SparseSegmentBuilder {
  const char* op;
  Output operator()(ScopeAt at, Output data, Output indices, Output segment_ids) const {
    return BuildOp(at, op, {data, indices, segment_ids});
  }
};
inline constexpr SparseSegmentBuilder SparseSegmentSum{"SparseSegmentSum"};
inline constexpr SparseSegmentBuilder SparseSegmentMean{"SparseSegmentMean"};
inline constexpr SparseSegmentBuilder SparseSegmentSqrtN{"SparseSegmentSqrtN"};

// num_segments: int32 or int64 scalar.
struct SparseSegmentWithNumSegmentsBuilder {
  const char* op;
  Output operator()(ScopeAt at, Output data, Output indices, Output segment_ids,
                    Output num_segments) const {
    return BuildOp(at, op, {data, indices, segment_ids, num_segments});
  }
};
inline constexpr SparseSegmentWithNumSegmentsBuilder SparseSegmentSumWithNumSegments{
    "SparseSegmentSumWithNumSegments"};
inline constexpr SparseSegmentWithNumSegmentsBuilder SparseSegmentMeanWithNumSegments{
    "SparseSegmentMeanWithNumSegments"};
inline constexpr SparseSegmentWithNumSegmentsBuilder SparseSegmentSqrtNWithNumSegments{
    "SparseSegmentSqrtNWithNumSegments"};

// The gradient of `data`: [output_dim0, ...], where output_dim0 (int32 scalar) is the number of its
// rows and `grad` the gradient of the output. (That of Sum is an UnsortedSegmentSum of a Gather.)
struct SparseSegmentGradBuilder {
  const char* op;
  Output operator()(ScopeAt at, Output grad, Output indices, Output segment_ids,
                    Output output_dim0) const {
    return BuildOp(at, op, {grad, indices, segment_ids, output_dim0});
  }
};
inline constexpr SparseSegmentGradBuilder SparseSegmentMeanGrad{"SparseSegmentMeanGrad"};
inline constexpr SparseSegmentGradBuilder SparseSegmentSqrtNGrad{"SparseSegmentSqrtNGrad"};

}  // namespace millrace

#endif  // MILLRACE_OPS_SPARSE_SPARSE_SEGMENT_H_
