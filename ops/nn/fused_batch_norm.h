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
// the inputs are used and passed on. Gradients flow to x, scale and offset, from y alone, of any
// order.
//
// Errors: InvalidArgument for another rank and for vectors of another length.

#include <initializer_list>
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

inline BuiltNode BuildFusedBatchNorm(ScopeAt at, absl::string_view op,
                                     std::initializer_list<BuilderInput> inputs,
                                     const FusedBatchNormAttrs& attrs) {
  return BuildOp(at, op, inputs, "epsilon", attrs.epsilon, "data_format", attrs.data_format,
                 "is_training", attrs.is_training);
}

struct FusedBatchNormBuilder {
  const char* op;
  FusedBatchNormOutputs operator()(ScopeAt at, Output x, Output scale, Output offset, Output mean,
                                   Output variance, const FusedBatchNormAttrs& attrs = {}) const {
    const BuiltNode n = BuildFusedBatchNorm(at, op, {x, scale, offset, mean, variance}, attrs);
    return {n.output(0), n.output(1), n.output(2), n.output(3), n.output(4), n.output(5)};
  }
};
inline constexpr FusedBatchNormBuilder FusedBatchNorm{"FusedBatchNorm"};
inline constexpr FusedBatchNormBuilder FusedBatchNormV2{"FusedBatchNormV2"};
inline constexpr FusedBatchNormBuilder FusedBatchNormV3{"FusedBatchNormV3"};

struct FusedBatchNormGradOutputs {
  Output x_backprop;
  Output scale_backprop;
  Output offset_backprop;
};

// The gradients of x, scale and offset. reserve_space_1 and _2: those of the forward op when it
// trains, else its inputs mean and variance.
struct FusedBatchNormGradBuilder {
  const char* op;
  FusedBatchNormGradOutputs operator()(ScopeAt at, Output y_backprop, Output x, Output scale,
                                       Output reserve_space_1, Output reserve_space_2,
                                       const FusedBatchNormAttrs& attrs = {}) const {
    const BuiltNode n = BuildFusedBatchNorm(
        at, op, {y_backprop, x, scale, reserve_space_1, reserve_space_2}, attrs);
    return {n.output(0), n.output(1), n.output(2)};
  }
};
inline constexpr FusedBatchNormGradBuilder FusedBatchNormGrad{"FusedBatchNormGrad"};
inline constexpr FusedBatchNormGradBuilder FusedBatchNormGradV2{"FusedBatchNormGradV2"};
inline FusedBatchNormGradOutputs FusedBatchNormGradV3(ScopeAt at, Output y_backprop, Output x,
                                                      Output scale, Output reserve_space_1,
                                                      Output reserve_space_2,
                                                      Output reserve_space_3,
                                                      const FusedBatchNormAttrs& attrs = {}) {
  const BuiltNode n = BuildFusedBatchNorm(
      at, "FusedBatchNormGradV3",
      {y_backprop, x, scale, reserve_space_1, reserve_space_2, reserve_space_3}, attrs);
  return {n.output(0), n.output(1), n.output(2)};
}

}  // namespace millrace

#endif  // MILLRACE_OPS_NN_FUSED_BATCH_NORM_H_
