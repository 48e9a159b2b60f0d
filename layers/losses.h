// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_LAYERS_LOSSES_H_
#define MILLRACE_LAYERS_LOSSES_H_

// Losses: how wrong predictions are, as one number to minimize. TensorFlow 1.15's tf.losses.
//
//   Output loss = SoftmaxCrossEntropy(model, labels, logits);
//   Output loss = MeanSquaredError(model, labels, predictions,
//                                  {.weights = example_weights, .reduction = LossReduction::kSum});
//   Operation train = AdamOptimizer().Minimize(model, TotalLoss(model));
//
// Each compares labels with predictions (or logits) of one shape, element by element or row by row,
// multiplies by `weights`, reduces, and enters the result into the collection "losses". Shapes that
// differ are InvalidArgument while the graph is built; where one is not fully known then, a few
// small nodes look in the step (TensorFlow broadcasts there: [n, 1] against [n] is n * n losses).
//
// Weights are a number or a tensor: a scalar, or one of the rank of the losses whose dimensions are
// 1 or theirs ([batch, 1] weighs the examples of [batch, n]). Any other shape is InvalidArgument
// while the graph is built, or in the step where shapes are known only then: NumPy's broadcasting
// of a [n] to a [batch, n] is never what somebody meant. A weight of 0 takes an element out.
//
// Divisions are safe: nothing to divide by (an empty batch, weights that are all 0) is a loss of 0.
//
// Labels, predictions and weights are numbers of any dtype and the result is float (that of
// ComputeWeightedLoss has the dtype of the losses, which truncates integers); cross entropies
// work in, and give, the dtype of the logits. The weighting is done in float always, as TensorFlow
// does it. Gradients flow to predictions, logits and weights, and to labels except those of
// SoftmaxCrossEntropy and SparseSoftmaxCrossEntropy.
//
// Nodes stand in one scope, named by WithName or as TensorFlow's ("mean_squared_error/value").
// Errors go into the Scope: InvalidArgument for shapes that differ, dtypes that are no numbers,
// weights as above or infinite or NaN, options out of range.

#include <cstdint>
#include <string>
#include <vector>

#include "graph/scope.h"
#include "ops/array/number_or_output.h"

namespace millrace {

// What becomes of the weighted losses.
enum class LossReduction {
  kNone,                 // they stay as they are, in their shape
  kSum,                  // sum
  kSumOverBatchSize,     // sum / number of elements
  kMean,                 // sum / sum of the weights
  kSumByNonzeroWeights,  // sum / number of elements whose weight is not 0
  kSumOverNonzeroWeights = kSumByNonzeroWeights,
};

// `collection`: "" = none.
struct LossAttrs {
  NumberOrOutput weights = 1.0;
  LossReduction reduction = LossReduction::kSumByNonzeroWeights;
  std::string collection = "losses";
};

// (predictions - labels)^2
Output MeanSquaredError(ScopeAt at, Output labels, Output predictions, const LossAttrs& attrs = {});

// |predictions - labels|
Output AbsoluteDifference(ScopeAt at, Output labels, Output predictions,
                          const LossAttrs& attrs = {});

struct HuberLossAttrs {
  double delta = 1.0;  // > 0
  NumberOrOutput weights = 1.0;
  LossReduction reduction = LossReduction::kSumByNonzeroWeights;
  std::string collection = "losses";
};
// With e = |predictions - labels|: e^2 / 2 up to delta, delta * e - delta^2 / 2 beyond it.
Output HuberLoss(ScopeAt at, Output labels, Output predictions, const HuberLossAttrs& attrs = {});

struct LogLossAttrs {
  double epsilon = 1e-7;  // added within the logarithms; >= 0
  NumberOrOutput weights = 1.0;
  LossReduction reduction = LossReduction::kSumByNonzeroWeights;
  std::string collection = "losses";
};
// -labels * log(predictions + epsilon) - (1 - labels) * log(1 - predictions + epsilon), for
// predictions that are probabilities.
Output LogLoss(ScopeAt at, Output labels, Output predictions, const LogLossAttrs& attrs = {});

// max(0, 1 - (2 * labels - 1) * logits), for labels 0 and 1.
Output HingeLoss(ScopeAt at, Output labels, Output logits, const LossAttrs& attrs = {});

// 1 - the sum of predictions * labels along `axis`, which stays as 1: both are unit vectors there.
Output CosineDistance(ScopeAt at, Output labels, Output predictions, int64_t axis,
                      const LossAttrs& attrs = {});

struct CrossEntropyAttrs {
  double label_smoothing = 0;  // in [0, 1]; moves labels so much towards the uniform distribution
  NumberOrOutput weights = 1.0;
  LossReduction reduction = LossReduction::kSumByNonzeroWeights;
  std::string collection = "losses";
};
// Of each element on its own, for classes that do not exclude each other:
// -labels * log(sigmoid(logits)) - (1 - labels) * log(1 - sigmoid(logits)), exact for large logits.
// Labels are smoothed to labels * (1 - s) + s / 2.
Output SigmoidCrossEntropy(ScopeAt at, Output labels, Output logits,
                           const CrossEntropyAttrs& attrs = {});

// Of each row (the last dimension) with its distribution: -sum of labels * log(softmax(logits));
// the losses have the shape of the rest. Labels are smoothed to labels * (1 - s) + s / classes.
Output SoftmaxCrossEntropy(ScopeAt at, Output onehot_labels, Output logits,
                           const CrossEntropyAttrs& attrs = {});

// The same for labels (int32 or int64) that name the right class of each row: they have the shape
// of logits without its last dimension. A last dimension of size 1 that labels, logits or weights
// have too many is dropped. InvalidArgument in the step for a label outside [0, classes).
Output SparseSoftmaxCrossEntropy(ScopeAt at, Output labels, Output logits,
                                 const LossAttrs& attrs = {});

struct PairwiseLossAttrs {
  NumberOrOutput weights = 1.0;  // of the examples: a scalar or [batch, 1, ...]
  std::string collection = "losses";
};
// How much differences within an example are missed: with d = predictions - labels, the mean of
// (d[i] - d[j])^2 over the pairs i < j of an example's elements, summed over the examples. The
// result is a scalar; an example of one element counts 0.
Output MeanPairwiseSquaredError(ScopeAt at, Output labels, Output predictions,
                                const PairwiseLossAttrs& attrs = {});

// A loss of one's own: `losses` (any shape, numbers), weighted and reduced as those above.
Output ComputeWeightedLoss(ScopeAt at, Output losses, const LossAttrs& attrs = {});

// --- Of each element, neither weighted nor reduced (tf.nn) ---------------------------------------

// For floating tensors of one dtype and of shapes that the caller knows to be one: nothing is
// checked, and others broadcast.

// -labels * log(sigmoid(logits)) - (1 - labels) * log(1 - sigmoid(logits)); as SigmoidCrossEntropy.
Output SigmoidCrossEntropyWithLogits(ScopeAt at, Output labels, Output logits);

// exp(log_input) - targets * log_input: of counts whose mean is exp(log_input). The full loss has
// Stirling's approximation of log(targets!) added, where targets are above 1.
Output LogPoissonLoss(ScopeAt at, Output targets, Output log_input, bool compute_full_loss = false);

// --- Collections ---------------------------------------------------------------------------------

// What was entered into "losses" or "regularization_losses", in the order of entering. NotFound
// (in the Scope) for an entry that is no tensor of the graph.
std::vector<Output> LossesOf(ScopeAt at, const std::string& collection = "losses");

// The sum of all regularization losses ("total_regularization_loss"); 0 when there are none.
Output RegularizationLoss(ScopeAt at);

struct TotalLossAttrs {
  bool add_regularization_losses = true;
};
// The sum of all losses and regularization losses ("total_loss"): scalars of one dtype.
// InvalidArgument when there are none.
Output TotalLoss(ScopeAt at, const TotalLossAttrs& attrs = {});

}  // namespace millrace

#endif  // MILLRACE_LAYERS_LOSSES_H_
