// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_LAYERS_DENSE_H_
#define MILLRACE_LAYERS_DENSE_H_

// Fully connected layers.
//
//   Output hidden = Dense(model, Flatten(model, images), 1024, {.activation = Relu});

#include <cstdint>

#include "graph/scope.h"
#include "layers/initializers.h"
#include "layers/partitioner.h"
#include "layers/regularizers.h"
#include "layers/variable.h"
#include "layers/weight.h"

namespace millrace {

struct DenseAttrs {
  Activation activation = {};
  bool use_bias = true;
  Initializer kernel_initializer = GlorotUniformInitializer();
  Initializer bias_initializer = ZerosInitializer();
  Regularizer kernel_regularizer = {};
  Regularizer bias_regularizer = {};
  Partitioner partitioner = {};  // of both; whole variables without it
  bool trainable = true;
};

// The output, to be used as any Output, with the layer's variables.
struct DenseLayer : Output {
  Variable kernel;  // [inputs, units]; invalid with a partitioner
  Variable bias;    // [units]; invalid without one, too
  // The same as parts: one, which is the whole, without a partitioner.
  PartitionedVariable kernel_parts, bias_parts;
};

// activation(x kernel + bias): [..., inputs] -> [..., units]. x is floating and has rank 2 or more;
// all dimensions but the last may be unknown. Variables "dense/kernel" and "dense/bias" (with a
// partitioner their parts, "dense/kernel/part_0" and so on) have x's dtype.
DenseLayer Dense(ScopeAt at, const Output& x, int64_t units, const DenseAttrs& attrs = {});

// [batch, a, b, ...] -> [batch, a * b * ...], and [batch] -> [batch, 1]. Any dtype; any rank but 0,
// also an unknown one.
Output Flatten(ScopeAt at, const Output& x);

}  // namespace millrace

#endif  // MILLRACE_LAYERS_DENSE_H_
