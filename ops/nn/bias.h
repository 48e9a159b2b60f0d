// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_NN_BIAS_H_
#define MILLRACE_OPS_NN_BIAS_H_

// A value per channel, added to every element of that channel.
//
// Channels are the last dimension (NHWC, at least [batch, channels]) or dimension 1 (NCHW, at
// least rank 3). All number types but the quantized ones.
//
// Errors: InvalidArgument for a value of too low a rank, a bias that is no vector or has
// another length than the channels.

#include <string>

#include "graph/node_builder.h"

namespace millrace {

struct BiasAddAttrs {
  std::string data_format = "NHWC";
};

// value + bias, shaped as value; bias is a vector of the channels.
inline Output BiasAdd(ScopeAt at, Output value, Output bias, const BiasAddAttrs& attrs = {}) {
  return BuildOp(at, "BiasAdd", {value, bias}, "data_format", attrs.data_format);
}

// BiasAdd of old graphs: NHWC only.
inline Output BiasAddV1(ScopeAt at, Output value, Output bias) {
  return BuildOp(at, "BiasAddV1", {value, bias});
}

// The gradient of the bias: the sum of out_backprop over all dimensions but the channels.
inline Output BiasAddGrad(ScopeAt at, Output out_backprop, const BiasAddAttrs& attrs = {}) {
  return BuildOp(at, "BiasAddGrad", {out_backprop}, "data_format", attrs.data_format);
}

}  // namespace millrace

#endif  // MILLRACE_OPS_NN_BIAS_H_
