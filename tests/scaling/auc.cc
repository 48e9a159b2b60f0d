// SPDX-License-Identifier: Apache-2.0
#include "tests/scaling/auc.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>

namespace millrace::scaling {

double RankAuc(absl::Span<const float> scores, absl::Span<const float> labels) {
  // Numbers that are none have no order.
  if (std::any_of(scores.begin(), scores.end(), [](float score) { return std::isnan(score); })) {
    return 0.5;
  }
  std::vector<size_t> order(scores.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return scores[a] < scores[b]; });
  // The pairs in which the example of label 1 is higher.
  double higher = 0, zeros = 0, ones = 0;
  for (size_t begin = 0, end = 0; begin < order.size(); begin = end) {
    double equal_zeros = 0, equal_ones = 0;
    for (; end < order.size() && scores[order[end]] == scores[order[begin]]; ++end) {
      (labels[order[end]] > 0.5f ? equal_ones : equal_zeros) += 1;
    }
    higher += equal_ones * (zeros + equal_zeros / 2);
    zeros += equal_zeros;
    ones += equal_ones;
  }
  return zeros == 0 || ones == 0 ? 0.5 : higher / (zeros * ones);
}

std::vector<AucPoint> Smoothed(absl::Span<const AucPoint> curve, double span) {
  std::vector<AucPoint> result;
  for (size_t i = 0; i < curve.size(); ++i) {
    if (curve[i].examples < span) continue;
    AucPoint mean;
    double count = 0;
    for (size_t j = i + 1; j-- > 0 && curve[j].examples > curve[i].examples - span;) {
      mean.examples += curve[j].examples;
      mean.time += curve[j].time;
      mean.auc += curve[j].auc;
      ++count;
    }
    result.push_back({mean.examples / count, mean.time / count, mean.auc / count});
  }
  return result;
}

std::optional<AucPoint> Reached(absl::Span<const AucPoint> curve, double auc) {
  for (size_t i = 0; i < curve.size(); ++i) {
    if (!(curve[i].auc >= auc)) continue;
    if (i == 0) return curve[0];
    const AucPoint& from = curve[i - 1];
    const AucPoint& to = curve[i];
    const double part = (auc - from.auc) / (to.auc - from.auc);
    return AucPoint{.examples = from.examples + part * (to.examples - from.examples),
                    .time = from.time + part * (to.time - from.time),
                    .auc = auc};
  }
  return std::nullopt;
}

}  // namespace millrace::scaling
