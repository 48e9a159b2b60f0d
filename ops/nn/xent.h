// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_NN_XENT_H_
#define MILLRACE_OPS_NN_XENT_H_

// Cross entropy of softmax(features) with labels, fused with its gradient.
//
//   loss[n]        = -sum over c of labels[n, c] * log(softmax(features)[n, c])
//   backprop[n, c] = softmax(features)[n, c] - labels[n, c]
//
// features: half, bfloat16, float or double, [batch, classes] (logits: softmax is part of the op).
// As a gradient, backprop is exact for labels whose rows add up to 1.

#include "graph/node_builder.h"

namespace millrace {

struct CrossEntropyOutputs {
  Output loss;      // [batch]
  Output backprop;  // [batch, classes]
};

// labels: probabilities, of the dtype of features. The two shapes are broadcast together to a
// matrix. InvalidArgument when they cannot be. Without classes the loss is 0.
inline CrossEntropyOutputs SoftmaxCrossEntropyWithLogits(ScopeAt at, Output features,
                                                         Output labels) {
  const BuiltNode node = BuildOp(at, "SoftmaxCrossEntropyWithLogits", {features, labels});
  return {node.output(0), node.output(1)};
}

// labels: [batch], int32 or int64, the right class of each row. InvalidArgument for a label outside
// [0, classes), for shapes that do not fit and for 0 classes.
inline CrossEntropyOutputs SparseSoftmaxCrossEntropyWithLogits(ScopeAt at, Output features,
                                                               Output labels) {
  const BuiltNode node = BuildOp(at, "SparseSoftmaxCrossEntropyWithLogits", {features, labels});
  return {node.output(0), node.output(1)};
}

}  // namespace millrace

#endif  // MILLRACE_OPS_NN_XENT_H_
