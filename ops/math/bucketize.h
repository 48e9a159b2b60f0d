// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_MATH_BUCKETIZE_H_
#define MILLRACE_OPS_MATH_BUCKETIZE_H_

// Numbers put into buckets: which part of the line each is in.
//
//   bucket(x) = the number of boundaries <= x
//
// so that boundaries b0 < b1 < ... make the parts (-inf, b0), [b0, b1), ... A NaN is behind all of
// them. int32, int64, float, double; the output is int32 and has the input's shape.
//
// Errors: InvalidArgument for boundaries that do not increase.

#include <vector>

#include "graph/node_builder.h"

namespace millrace {

struct BucketizeAttrs {
  std::vector<float> boundaries = {};
};

inline Output Bucketize(ScopeAt at, Output input, const BucketizeAttrs& attrs) {
  return BuildOp(at, "Bucketize", {input}, "boundaries", attrs.boundaries);
}

// The same with the boundaries (floats of any shape, one after the other) computed in the graph.
inline Output BucketizeWithInputBoundaries(ScopeAt at, Output input, Output boundaries) {
  return BuildOp(at, "BucketizeWithInputBoundaries", {input, boundaries});
}

}  // namespace millrace

#endif  // MILLRACE_OPS_MATH_BUCKETIZE_H_
