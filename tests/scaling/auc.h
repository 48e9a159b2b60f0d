// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TESTS_SCALING_AUC_H_
#define MILLRACE_TESTS_SCALING_AUC_H_

// How good a model is, and when it became so good.
//
// AUC is the probability that an example of label 1 has a higher score than one of label 0: exact,
// from the ranks of all scores (train/metrics.h's has buckets). While a model learns it is a curve,
// which jitters; examples to an AUC are read off its moving mean.
//
// Values. Failure: none.

#include <optional>
#include <vector>

#include "absl/types/span.h"

namespace millrace::scaling {

// Labels are 0 or 1, one for each score. Equal scores count half. 0.5, which says nothing, where a
// label is missing or a score is not a number.
double RankAuc(absl::Span<const float> scores, absl::Span<const float> labels);

struct AucPoint {
  double examples = 0;  // that workers have consumed
  double time = 0;      // virtual
  double auc = 0;
};

// For each point at `span` (> 0) examples or behind them the mean of all points in the last `span`
// examples: of all three numbers, so that a straight line stays where it is.
std::vector<AucPoint> Smoothed(absl::Span<const AucPoint> curve, double span);

// Where the curve first is at `auc` or above, between two points on the line through them. None: it
// never is. A curve that begins there says its first point.
std::optional<AucPoint> Reached(absl::Span<const AucPoint> curve, double auc);

}  // namespace millrace::scaling

#endif  // MILLRACE_TESTS_SCALING_AUC_H_
