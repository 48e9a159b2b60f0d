// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_NN_TOP_K_H_
#define MILLRACE_OPS_NN_TOP_K_H_

// The largest elements of rows (of the last dimension). Of equal elements the first one is larger.

#include "graph/node_builder.h"

namespace millrace {

struct TopKOutputs {
  Output values;   // [..., k], the largest first
  Output indices;  // int32 [..., k]: where they are in their row
};
struct TopKAttrs {
  bool sorted = true;  // false: any order (it is sorted all the same)
};
// `k`: int32 scalar. InvalidArgument unless 0 <= k <= the size of the last dimension. half,
// bfloat16, float, double, int32, int64, uint8.
inline TopKOutputs TopKV2(ScopeAt at, Output input, const TensorArg& k,
                          const TopKAttrs& attrs = {}) {
  const BuiltNode node = BuildOp(at, "TopKV2", {input, k}, "sorted", attrs.sorted);
  return {node.output(0), node.output(1)};
}
// The form of old graphs.
inline TopKOutputs TopK(ScopeAt at, Output input, int64_t k, const TopKAttrs& attrs = {}) {
  const BuiltNode node = BuildOp(at, "TopK", {input}, "k", k, "sorted", attrs.sorted);
  return {node.output(0), node.output(1)};
}

// For each row of float `predictions` [batch, classes]: is the prediction of class targets[row]
// (int32 or int64) among the k largest? Ties at the border count as among them; a target outside of
// the classes and a prediction that is not finite do not. `k`: scalar of targets' dtype.
inline Output InTopKV2(ScopeAt at, Output predictions, Output targets, Output k) {
  return BuildOp(at, "InTopKV2", {predictions, targets, k});
}
inline Output InTopK(ScopeAt at, Output predictions, Output targets, int64_t k) {
  return BuildOp(at, "InTopK", {predictions, targets}, "k", k);
}

}  // namespace millrace

#endif  // MILLRACE_OPS_NN_TOP_K_H_
