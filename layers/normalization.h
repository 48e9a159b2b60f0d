// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_LAYERS_NORMALIZATION_H_
#define MILLRACE_LAYERS_NORMALIZATION_H_

// Normalisation of activations over the batch, and over the features of each example.
//
// A BatchNormalization keeps moving averages of the batches' means and variances, which the model
// uses when it does not train. What moves them are operations of their own, in the collection
// "update_ops". Train (train/train.h) runs them with the training operation; a loop of one's own
// must do so, or the averages stay as they began.
//
//   Output y = BatchNormalization(model, x, is_training);     // a bool, or a bool scalar to be fed
//   Operation train = TrainWithUpdates(model, optimizer.Minimize(model, loss));

#include <variant>
#include <vector>

#include "graph/scope.h"
#include "layers/initializers.h"
#include "layers/partitioner.h"
#include "layers/regularizers.h"
#include "layers/variable.h"
#include "layers/weight.h"

namespace millrace {

// Does the model train? Known when it is built, or a bool scalar of the graph.
using TrainingFlag = std::variant<bool, Output>;

struct BatchNormalizationAttrs {
  double momentum = 0.99;  // of the moving averages, in [0, 1]
  double epsilon = 1e-3;   // > 0
  bool center = true;      // beta
  bool scale = true;       // gamma
  Initializer beta_initializer = ZerosInitializer();
  Initializer gamma_initializer = OnesInitializer();
  Initializer moving_mean_initializer = ZerosInitializer();
  Initializer moving_variance_initializer = OnesInitializer();
  Regularizer beta_regularizer = {};
  Regularizer gamma_regularizer = {};
  bool trainable = true;
  Partitioner partitioner = {};  // of beta and gamma
};

// The output, to be used as any Output, with the layer's variables, vectors of the channels.
struct BatchNormalizationLayer : Output {
  Variable gamma, beta;  // invalid when they are switched off, or partitioned
  PartitionedVariable gamma_parts, beta_parts;
  Variable moving_mean, moving_variance;
  std::vector<Operation> updates;  // of the moving averages; none where the model never trains
};

// (x - mean) / sqrt(variance + epsilon) * gamma + beta per channel (the last dimension, which must
// be known; the rank must be, too, and 2 or more). While the model trains, mean and variance are
// those of the batch, otherwise the moving averages:
//
//   average = average * momentum + batch's * (1 - momentum)
//
// A batch without elements moves nothing (TensorFlow's averages become NaN).
//
// As in TensorFlow, images (rank 4, not double, with a flag that is known) go through
// FusedBatchNorm, whose batch variance for the average is the unbiased one; elsewhere it is the
// biased one. Variables "batch_normalization/gamma", "/beta", "/moving_mean" and "/moving_variance"
// are float for half and bfloat16, else of x's dtype; the moving ones are not trainable.
BatchNormalizationLayer BatchNormalization(ScopeAt at, const Output& x,
                                           const TrainingFlag& training,
                                           const BatchNormalizationAttrs& attrs = {});

// The operations of the graph's collection "update_ops". NotFound in the Scope for an entry that
// the graph does not have.
std::vector<Operation> UpdateOps(ScopeAt at);
// `train` and all of them, in no order among each other.
Operation TrainWithUpdates(ScopeAt at, const Operation& train);

struct LayerNormalizationAttrs {
  double epsilon = 1e-3;  // > 0
  bool center = true;
  bool scale = true;
  Initializer beta_initializer = ZerosInitializer();
  Initializer gamma_initializer = OnesInitializer();
  Regularizer beta_regularizer = {};
  Regularizer gamma_regularizer = {};
  bool trainable = true;
};

struct LayerNormalizationLayer : Output {
  Variable gamma, beta;  // [features]; invalid when they are switched off
};

// (x - mean) / sqrt(variance + epsilon) * gamma + beta with mean and (biased) variance of each
// vector along the last dimension, which must be known. Rank 2 or more. Variables
// "layer_normalization/gamma" and "/beta" as above.
LayerNormalizationLayer LayerNormalization(ScopeAt at, const Output& x,
                                           const LayerNormalizationAttrs& attrs = {});

}  // namespace millrace

#endif  // MILLRACE_LAYERS_NORMALIZATION_H_
