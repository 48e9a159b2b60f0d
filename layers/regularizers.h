// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_LAYERS_REGULARIZERS_H_
#define MILLRACE_LAYERS_REGULARIZERS_H_

// Regularizers: losses of the weights themselves, which keep them small. TensorFlow 1.15's
// tf.contrib.layers.l1_regularizer and its kin.
//
//   Dense(model, x, 10, {.kernel_regularizer = L2(1e-4)});             // the layer enters it
//   AddRegularizationLoss(model, L1L2(1e-5, 1e-4), w.value);           // by hand
//   Operation train = AdamOptimizer().Minimize(model, TotalLoss(model));  // has them in it
//
// A Regularizer is called with the value of a variable (half, bfloat16, float or double) and gives
// a scalar of its dtype. With a scale of 0 it gives an invalid Output and makes no node. A scale
// that is negative or no number is InvalidArgument in the Scope of the call.

#include <functional>

#include "graph/scope.h"

namespace millrace {

// The collection of regularization losses.
inline constexpr char kRegularizationLosses[] = "regularization_losses";

using Regularizer = std::function<Output(ScopeAt at, Output weights)>;

// scale * the sum of |w|
Regularizer L1(double scale);
// scale * the sum of w^2 / 2
Regularizer L2(double scale);
// Both.
Regularizer L1L2(double scale_l1, double scale_l2);

// Enters the regularizer's loss of `weights` into the collection "regularization_losses" (see
// RegularizationLoss and TotalLoss in layers/losses.h) and returns it. An empty regularizer, or one
// of scale 0, enters nothing and returns an invalid Output.
Output AddRegularizationLoss(ScopeAt at, const Regularizer& regularizer, Output weights);

}  // namespace millrace

#endif  // MILLRACE_LAYERS_REGULARIZERS_H_
