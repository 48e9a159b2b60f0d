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
// `k`: int32 scalar. InvalidArgument unless 0 <= k <= the size of the last dimension. float,
// double, int32, int64, uint8.
inline TopKOutputs TopKV2(ScopeAt at, Output input, Output k, const TopKAttrs& attrs = {}) {
  const BuiltNode node =
      NodeBuilder(at, "TopKV2").Input(input).Input(k).Attr("sorted", attrs.sorted).Finish();
  return {node.output(0), node.output(1)};
}
// The form of old graphs.
inline TopKOutputs TopK(ScopeAt at, Output input, int64_t k, const TopKAttrs& attrs = {}) {
  const BuiltNode node =
      NodeBuilder(at, "TopK").Input(input).Attr("k", k).Attr("sorted", attrs.sorted).Finish();
  return {node.output(0), node.output(1)};
}

// For each row of float `predictions` [batch, classes]: is the prediction of class targets[row]
// (int32 or int64) among the k largest? Ties at the border count as among them; a target outside of
// the classes and a prediction that is not finite do not. `k`: scalar of targets' dtype.
inline Output InTopKV2(ScopeAt at, Output predictions, Output targets, Output k) {
  return NodeBuilder(at, "InTopKV2").Input(predictions).Input(targets).Input(k).Finish().output(0);
}
inline Output InTopK(ScopeAt at, Output predictions, Output targets, int64_t k) {
  return NodeBuilder(at, "InTopK")
      .Input(predictions)
      .Input(targets)
      .Attr("k", k)
      .Finish()
      .output(0);
}

}  // namespace millrace

#endif  // MILLRACE_OPS_NN_TOP_K_H_
