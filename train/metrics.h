// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_METRICS_H_
#define MILLRACE_TRAIN_METRICS_H_

// Metrics: numbers over many batches, as tf.metrics has them.
//
//   const metrics::Metric accuracy = metrics::Accuracy(model, labels, predicted);
//   LocalVariablesInitializer(model);      // before each evaluation: they begin at nothing
//   ... session->Run({{x, batch}}, {accuracy.update});   // for each batch; the value so far
//   ... session->Run({}, {accuracy.value});
//
// A metric is variables that a batch is added to, and a value made of them. The variables are
// local, in the collections "local_variables" and "metric_variables": each task has its own, on
// itself and never on a parameter server, and no checkpoint has them. They are doubles (counts are
// exact up to 2^53; TensorFlow's float32 counts stop at 2^24).
//
// Labels and predictions are numbers of one shape, or one of them has a last dimension of 1 more;
// anything else is InvalidArgument, in the graph or in the step, never broadcast. Weights are a
// number, or a tensor that broadcasts to that shape (one of fewer dimensions by one has one per
// row). A rate whose divisor is 0 is 0.
//
// Names are TensorFlow's: "accuracy/total", "accuracy/count", "accuracy/value",
// "accuracy/update_op". Errors go into the Scope.

#include <vector>

#include "graph/scope.h"
#include "ops/array/number_or_output.h"

namespace millrace::metrics {

struct Metric {
  Output value;   // of what was added so far; changes nothing
  Output update;  // adds this step's batch; the value with it
};

struct MetricAttrs {
  NumberOrOutput weights = 1;
};

// --- Means: a float scalar -----------------------------------------------------------------------

// The mean of `values`, weighted.
Metric Mean(ScopeAt at, Output values, const MetricAttrs& attrs = {});
// How often predictions equal labels (after a cast to the labels' type).
Metric Accuracy(ScopeAt at, Output labels, Output predictions, const MetricAttrs& attrs = {});
Metric MeanSquaredError(ScopeAt at, Output labels, Output predictions,
                        const MetricAttrs& attrs = {});
Metric RootMeanSquaredError(ScopeAt at, Output labels, Output predictions,
                            const MetricAttrs& attrs = {});
Metric MeanAbsoluteError(ScopeAt at, Output labels, Output predictions,
                         const MetricAttrs& attrs = {});

// --- Two classes: what is not 0 is positive ------------------------------------------------------

// How many (the sum of their weights), a double scalar.
Metric TruePositives(ScopeAt at, Output labels, Output predictions, const MetricAttrs& attrs = {});
Metric TrueNegatives(ScopeAt at, Output labels, Output predictions, const MetricAttrs& attrs = {});
Metric FalsePositives(ScopeAt at, Output labels, Output predictions, const MetricAttrs& attrs = {});
Metric FalseNegatives(ScopeAt at, Output labels, Output predictions, const MetricAttrs& attrs = {});
// Of those that are predicted to be positive, how many are: a float scalar.
Metric Precision(ScopeAt at, Output labels, Output predictions, const MetricAttrs& attrs = {});
// Of those that are positive, how many are predicted to be.
Metric Recall(ScopeAt at, Output labels, Output predictions, const MetricAttrs& attrs = {});

// --- At thresholds: a prediction above a threshold is positive; a vector with one for each -------

// InvalidArgument for no thresholds and for NaN.
Metric TruePositivesAtThresholds(ScopeAt at, Output labels, Output predictions,
                                 const std::vector<float>& thresholds,
                                 const MetricAttrs& attrs = {});
Metric TrueNegativesAtThresholds(ScopeAt at, Output labels, Output predictions,
                                 const std::vector<float>& thresholds,
                                 const MetricAttrs& attrs = {});
Metric FalsePositivesAtThresholds(ScopeAt at, Output labels, Output predictions,
                                  const std::vector<float>& thresholds,
                                  const MetricAttrs& attrs = {});
Metric FalseNegativesAtThresholds(ScopeAt at, Output labels, Output predictions,
                                  const std::vector<float>& thresholds,
                                  const MetricAttrs& attrs = {});
Metric PrecisionAtThresholds(ScopeAt at, Output labels, Output predictions,
                             const std::vector<float>& thresholds, const MetricAttrs& attrs = {});
Metric RecallAtThresholds(ScopeAt at, Output labels, Output predictions,
                          const std::vector<float>& thresholds, const MetricAttrs& attrs = {});

enum class AucCurve {
  kRoc,  // the rate of true positives over that of false ones
  kPr,   // precision over recall
};
enum class AucSum {
  kTrapezoidal,
  // Of precision over recall: what lies between two thresholds is interpolated as counts are
  // (Davis, Goadrich: The relationship between precision-recall and ROC curves). Trapezoids are too
  // large there.
  kCarefulInterpolation,
};
struct AucAttrs {
  NumberOrOutput weights = 1;
  AucCurve curve = AucCurve::kRoc;
  AucSum summation = AucSum::kTrapezoidal;
  int num_thresholds = 200;  // evenly from below 0 to above 1
};
// The area under a curve, a float scalar. Predictions must be in [0, 1]: a step with others fails.
Metric Auc(ScopeAt at, Output labels, Output predictions, const AucAttrs& attrs = {});

}  // namespace millrace::metrics

#endif  // MILLRACE_TRAIN_METRICS_H_
