// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_GRAPH_PLACEHOLDER_SHAPE_H_
#define MILLRACE_GRAPH_PLACEHOLDER_SHAPE_H_

// Placeholder shape: what attr "shape" of a placeholder says. Programs before TensorFlow 1.2 wrote
// [] for a shape that they did not know; such graphs have a producer of at most 21. Only the op
// Placeholder is meant: PlaceholderV2 and PlaceholderWithDefault could always say "unknown".
//
// The only place that knows this rule: shape inference, the check of feeds and pruning ask here.

#include "absl/strings/string_view.h"
#include "core/shape.h"

namespace millrace {

// The last producer whose placeholders of unknown shape say "scalar".
inline constexpr int kLastProducerWithScalarForUnknown = 21;

// What is known of the tensor of a placeholder of this op, with this attr, in a graph of this
// producer.
inline PartialShape ShapeOfPlaceholder(absl::string_view op, const PartialShape& attr,
                                       int producer) {
  const bool may_be_unknown = producer <= kLastProducerWithScalarForUnknown && op == "Placeholder";
  return may_be_unknown && attr == PartialShape::Scalar() ? PartialShape() : attr;
}

}  // namespace millrace

#endif  // MILLRACE_GRAPH_PLACEHOLDER_SHAPE_H_
