// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_EXAMPLES_LINREG_LINE_H_
#define MILLRACE_EXAMPLES_LINREG_LINE_H_

// y = w x + b, for an Estimator: the three things that its user writes (a model function, input
// functions, a serving input function), shared by linreg, linreg_dist and linreg_predict.
//
// The points are on y = 0.8 x + 1 with x in [0, 1); w and b begin at 0.1.

#include <cstdint>

#include "absl/time/time.h"
#include "core/status.h"
#include "estimator/estimator.h"
#include "graph/scope.h"

namespace millrace {

// Features: x; label: y, of x's shape. Predictions: one tensor without a name. Loss: the mean
// squared error, Adam with its defaults. Metric: mse. Each trainer shows how far it is.
EstimatorSpec Line(const Scope& scope, const Features& features, const Labels& labels, Mode mode);

struct PointsOptions {
  int64_t rows = 10;
  int64_t batch_size = 1;
  uint64_t seed = 1;  // the tasks of a cluster draw other points each
  // Each row comes so much later than the one before, as from a stream; who ends the iterator waits
  // so long.
  absl::Duration row_time = absl::ZeroDuration();
  bool labels = true;  // rows "x<tab>y"; else "x"
};
// Text rows of a generator, parsed and batched, anew with each call.
InputFn Points(const PointsOptions& options);

// Features: id, 0 to rows - 1; x = id / rows. The same for all tasks, which predict a part each.
InputFn NumberedPoints(int64_t rows, int64_t batch_size);

// A line of standard output for what the model says of each point, without its label.
Status PrintPredictions(const Estimator& line, PointsOptions points);

// The feature that the model computes from and the tensor that callers feed have nothing to do with
// each other: an export of it warns that its callers cannot feed the feature.
ServingInputReceiver UnrelatedReceiver(const Scope& scope);
// They are the same tensor, "x".
ServingInputReceiver PointReceiver(const Scope& scope);

}  // namespace millrace

#endif  // MILLRACE_EXAMPLES_LINREG_LINE_H_
