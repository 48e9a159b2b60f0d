// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_NN_FUSED_BATCH_NORM_H_
#define MILLRACE_OPS_NN_FUSED_BATCH_NORM_H_

// Batch normalisation of images, per channel:
//
//   y = (x - mean) / sqrt(variance + epsilon) * scale + offset
//
// x has rank 4, [batch, rows, columns, channels] (NHWC) or [batch, channels, rows, columns] (NCHW);
// scale, offset, mean and variance are vectors of the channels. x is float (or, but for
// FusedBatchNorm, half or bfloat16); the vectors are float.
//
// Training: mean and variance are those of the batch and the inputs of these names are empty.
// batch_variance, meant for moving averages, is the unbiased one (n / max(n - 1, 1)). Otherwise
// the inputs are used and passed on. Gradients flow to x, scale and offset, from y alone; second
// derivatives are refused (Unimplemented).
//
// Errors: InvalidArgument for another rank and for vectors of another length.

#include <string>

#include "graph/node_builder.h"

namespace millrace {

struct FusedBatchNormAttrs {
  float epsilon = 0.0001f;
  std::string data_format = "NHWC";
  bool is_training = true;
};

struct FusedBatchNormOutputs {
  Output y;
  Output batch_mean;
  Output batch_variance;
  // For the gradient: mean and (biased) variance that y was made with.
  Output reserve_space_1;
  Output reserve_space_2;
  Output reserve_space_3;  // FusedBatchNormV3 only
};

inline FusedBatchNormOutputs BuildFusedBatchNorm(ScopeAt at, absl::string_view op, Output x,
                                                 Output scale, Output offset, Output mean,
                                                 Output variance,
                                                 const FusedBatchNormAttrs& attrs) {
  const BuiltNode node = NodeBuilder(at, op)
                             .Input(x)
                             .Input(scale)
                             .Input(offset)
                             .Input(mean)
                             .Input(variance)
                             .Attr("epsilon", attrs.epsilon)
                             .Attr("data_format", attrs.data_format)
                             .Attr("is_training", attrs.is_training)
                             .Finish();
  return {node.output(0), node.output(1), node.output(2),
          node.output(3), node.output(4), node.output(5)};
}

inline FusedBatchNormOutputs FusedBatchNorm(ScopeAt at, Output x, Output scale, Output offset,
                                            Output mean, Output variance,
                                            const FusedBatchNormAttrs& attrs = {}) {
  return BuildFusedBatchNorm(at, "FusedBatchNorm", x, scale, offset, mean, variance, attrs);
}
inline FusedBatchNormOutputs FusedBatchNormV2(ScopeAt at, Output x, Output scale, Output offset,
                                              Output mean, Output variance,
                                              const FusedBatchNormAttrs& attrs = {}) {
  return BuildFusedBatchNorm(at, "FusedBatchNormV2", x, scale, offset, mean, variance, attrs);
}
inline FusedBatchNormOutputs FusedBatchNormV3(ScopeAt at, Output x, Output scale, Output offset,
                                              Output mean, Output variance,
                                              const FusedBatchNormAttrs& attrs = {}) {
  return BuildFusedBatchNorm(at, "FusedBatchNormV3", x, scale, offset, mean, variance, attrs);
}

struct FusedBatchNormGradOutputs {
  Output x_backprop;
  Output scale_backprop;
  Output offset_backprop;
};

// The gradients of x, scale and offset. reserve_space_1 and _2: those of the forward op when it
// trains, else its inputs mean and variance.
inline FusedBatchNormGradOutputs FusedBatchNormGrad(ScopeAt at, Output y_backprop, Output x,
                                                    Output scale, Output reserve_space_1,
                                                    Output reserve_space_2,
                                                    const FusedBatchNormAttrs& attrs = {}) {
  const BuiltNode node = BuildOp(
      at, "FusedBatchNormGrad", {y_backprop, x, scale, reserve_space_1, reserve_space_2}, "epsilon",
      attrs.epsilon, "data_format", attrs.data_format, "is_training", attrs.is_training);
  return {node.output(0), node.output(1), node.output(2)};
}
inline FusedBatchNormGradOutputs FusedBatchNormGradV2(ScopeAt at, Output y_backprop, Output x,
                                                      Output scale, Output reserve_space_1,
                                                      Output reserve_space_2,
                                                      const FusedBatchNormAttrs& attrs = {}) {
  const BuiltNode node = BuildOp(
      at, "FusedBatchNormGradV2", {y_backprop, x, scale, reserve_space_1, reserve_space_2},
      "epsilon", attrs.epsilon, "data_format", attrs.data_format, "is_training", attrs.is_training);
  return {node.output(0), node.output(1), node.output(2)};
}
inline FusedBatchNormGradOutputs FusedBatchNormGradV3(ScopeAt at, Output y_backprop, Output x,
                                                      Output scale, Output reserve_space_1,
                                                      Output reserve_space_2,
                                                      Output reserve_space_3,
                                                      const FusedBatchNormAttrs& attrs = {}) {
  const BuiltNode node =
      BuildOp(at, "FusedBatchNormGradV3",
              {y_backprop, x, scale, reserve_space_1, reserve_space_2, reserve_space_3}, "epsilon",
              attrs.epsilon, "data_format", attrs.data_format, "is_training", attrs.is_training);
  return {node.output(0), node.output(1), node.output(2)};
}

}  // namespace millrace

#endif  // MILLRACE_OPS_NN_FUSED_BATCH_NORM_H_
