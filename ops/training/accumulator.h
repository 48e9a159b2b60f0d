// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_TRAINING_ACCUMULATOR_H_
#define MILLRACE_OPS_TRAINING_ACCUMULATOR_H_

// Accumulators: gradients of several workers are added until there are enough of them; then their
// mean, or sum, is taken (synchronous training: train/sync_replicas.h).
//
// An accumulator has a step of its own, which begins at 0:
//   * apply: a gradient whose local_step is before the accumulator's is dropped, without an error;
//     else it is added;
//   * take: waits, without a thread, until num_required gradients are there, gets the mean of all
//     that are, and the accumulator is empty and one step on;
//   * set: the step becomes another one.
//
// Sparse gradients are rows by ids (int64): rows of one id are added; what is taken has each id
// once, in ascending order, and the mean of a row is over the gradients that have it.
//
// Accumulators outlive steps; those of one name on one device are one and must agree in form,
// dtype, shape and reduction. Handles are references to strings, as in TensorFlow, those of
// ResourceConditionalAccumulator resources.
//
// Errors: InvalidArgument "Shape mismatch: expected ..., got ..." and others of TensorFlow's for
// gradients that do not fit, of which nothing is added; Cancelled "TakeGrad operation was
// cancelled". Source: TensorFlow's data_flow_ops.

#include <string>

#include "graph/node_builder.h"

namespace millrace {

struct AccumulatorAttrs {
  std::string container = "";
  std::string shared_name = "";         // the node's name when empty
  std::string reduction_type = "MEAN";  // or "SUM"
};

// A reference to an accumulator of dense gradients of this dtype and shape.
inline Output ConditionalAccumulator(ScopeAt at, DType dtype, const PartialShape& shape,
                                     const AccumulatorAttrs& attrs = {}) {
  return BuildOp(at, "ConditionalAccumulator", {}, "dtype", dtype, "shape", shape, "container",
                 attrs.container, "shared_name", attrs.shared_name, "reduction_type",
                 attrs.reduction_type);
}
// Of sparse ones. `shape` is that of the dense tensor.
inline Output SparseConditionalAccumulator(ScopeAt at, DType dtype, const PartialShape& shape,
                                           const AccumulatorAttrs& attrs = {}) {
  return BuildOp(at, "SparseConditionalAccumulator", {}, "dtype", dtype, "shape", shape,
                 "container", attrs.container, "shared_name", attrs.shared_name, "reduction_type",
                 attrs.reduction_type);
}
// A handle to an accumulator of dense gradients.
inline Output ResourceConditionalAccumulator(ScopeAt at, DType dtype, const PartialShape& shape,
                                             const AccumulatorAttrs& attrs = {}) {
  return BuildOp(at, "ResourceConditionalAccumulator", {}, "dtype", dtype, "shape", shape,
                 "container", attrs.container, "shared_name", attrs.shared_name, "reduction_type",
                 attrs.reduction_type);
}

// local_step int64 [], gradient of the accumulator's dtype.
inline Operation AccumulatorApplyGradient(ScopeAt at, Output handle, Output local_step,
                                          Output gradient) {
  return BuildOp(at, "AccumulatorApplyGradient", {handle, local_step, gradient});
}
inline Operation ResourceAccumulatorApplyGradient(ScopeAt at, Output handle, Output local_step,
                                                  Output gradient) {
  return BuildOp(at, "ResourceAccumulatorApplyGradient", {handle, local_step, gradient});
}
// gradient_indices int64 [n], gradient_values [n, ...]; gradient_shape int64, which is looked at
// when has_known_shape.
inline Operation SparseAccumulatorApplyGradient(ScopeAt at, Output handle, Output local_step,
                                                Output gradient_indices, Output gradient_values,
                                                Output gradient_shape, bool has_known_shape) {
  return BuildOp(at, "SparseAccumulatorApplyGradient",
                 {handle, local_step, gradient_indices, gradient_values, gradient_shape},
                 "has_known_shape", has_known_shape);
}

// num_required int32 [].
inline Output AccumulatorTakeGradient(ScopeAt at, Output handle, Output num_required, DType dtype) {
  return BuildOp(at, "AccumulatorTakeGradient", {handle, num_required}, "dtype", dtype);
}
inline Output ResourceAccumulatorTakeGradient(ScopeAt at, Output handle, Output num_required,
                                              DType dtype) {
  return BuildOp(at, "ResourceAccumulatorTakeGradient", {handle, num_required}, "dtype", dtype);
}
struct TakenSparseGradient {
  Output indices;  // int64 [n], ascending
  Output values;   // [n, ...]
  Output shape;    // int64: of the dense tensor; -1 where the accumulator does not know
};
inline TakenSparseGradient SparseAccumulatorTakeGradient(ScopeAt at, Output handle,
                                                         Output num_required, DType dtype) {
  const BuiltNode op =
      BuildOp(at, "SparseAccumulatorTakeGradient", {handle, num_required}, "dtype", dtype);
  return {op.output(0), op.output(1), op.output(2)};
}

// new_global_step int64 [].
inline Operation AccumulatorSetGlobalStep(ScopeAt at, Output handle, Output new_global_step) {
  return BuildOp(at, "AccumulatorSetGlobalStep", {handle, new_global_step});
}
inline Operation ResourceAccumulatorSetGlobalStep(ScopeAt at, Output handle,
                                                  Output new_global_step) {
  return BuildOp(at, "ResourceAccumulatorSetGlobalStep", {handle, new_global_step});
}
// int32 []: gradients that are there now.
inline Output AccumulatorNumAccumulated(ScopeAt at, Output handle) {
  return BuildOp(at, "AccumulatorNumAccumulated", {handle});
}
inline Output ResourceAccumulatorNumAccumulated(ScopeAt at, Output handle) {
  return BuildOp(at, "ResourceAccumulatorNumAccumulated", {handle});
}

}  // namespace millrace

#endif  // MILLRACE_OPS_TRAINING_ACCUMULATOR_H_
