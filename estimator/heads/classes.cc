// SPDX-License-Identifier: Apache-2.0
#include "estimator/heads/classes.h"

#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/tensor.h"
#include "estimator/heads/keys.h"
#include "ops/array/concat.h"
#include "ops/array/constant.h"
#include "ops/array/gather.h"
#include "ops/array/indices.h"
#include "ops/array/reshape.h"
#include "ops/array/slice.h"
#include "ops/array/tile.h"
#include "ops/math/cast.h"
#include "ops/math/cwise_binary.h"
#include "ops/math/reduction.h"
#include "ops/strings/as_string.h"
#include "train/metrics.h"

namespace millrace {
namespace {

// A row for each row of `like`.
Output RepeatRow(ScopeAt at, const Output& row, const Output& like) {
  const Output one = Const<int32_t>(at, {1});
  const Output rows = StridedSlice(at, ShapeOf(at, like), Const<int32_t>(at, {0}), one, one,
                                   {.shrink_axis_mask = 1});
  return Tile(at, ExpandDims(at, row, Const(at, int32_t{0})),
              Pack({at.scope.WithName("Tile/multiples"), at.where},
                   {rows, Const({at.scope.WithName("Tile/multiples/1"), at.where}, int32_t{1})}));
}

// [0, 1, ..., count)
Output IdsOf(ScopeAt at, int64_t count) {
  const auto named = [&](const char* name) { return at.scope.WithName(name); };
  return Range(at, Const({named("range/start"), at.where}, int32_t{0}),
               Const({named("range/limit"), at.where}, static_cast<int32_t>(count)),
               Const({named("range/delta"), at.where}, int32_t{1}));
}

}  // namespace

Status Classes::Check(const char* head) const {
  if (vocabulary.empty()) return absl::OkStatus();
  if (static_cast<int64_t>(vocabulary.size()) != count) {
    return InvalidArgument(head, ": label_vocabulary must have a word for each of ", count,
                           " classes, got ", vocabulary.size());
  }
  std::set<std::string> seen;
  for (const std::string& word : vocabulary) {
    if (!seen.insert(word).second) {
      return InvalidArgument(head, ": label_vocabulary must have each word once, got '", word,
                             "' twice");
    }
  }
  return absl::OkStatus();
}

Output Classes::NamesOf(ScopeAt at, const Output& ids) const {
  if (vocabulary.empty()) return AsString({at.scope.WithName("str_classes"), at.where}, ids);
  return GatherV2({at.scope.WithName("class_string_lookup"), at.where},
                  ConstVector<std::string>(at, vocabulary), ids, Const(at, int32_t{0}));
}

Output Classes::AllIds(ScopeAt at, const Output& like) const {
  return RepeatRow(at, IdsOf(at, count), like);
}

Output Classes::AllNames(ScopeAt at, const Output& like) const {
  const Output names = vocabulary.empty() ? AsString(at, IdsOf(at, count))
                                          : ConstVector<std::string>(at, vocabulary);
  return RepeatRow(at, names, like);
}

ExportOutput Classes::Classification(ScopeAt at, const Output& scores) const {
  return ClassificationOutput(scores, AllNames(at, scores));
}

void AddClasses(const HeadInputs& in, const Scope& scope, const Classes& classes,
                const Output& logits, bool all, Predictions::Map* predictions) {
  const ScopeAt at = in.Named(scope);
  const Output ids = ArgMax(in.Named(scope.WithName(kClassIds)), logits,
                            Const(in.Named(scope.WithName("class_ids/dimension")), int32_t{-1}));
  Output& class_ids = (*predictions)[kClassIds];
  class_ids = ExpandDims(at, ids, Const(at, int32_t{-1}));
  (*predictions)[kClasses] = classes.NamesOf(at, class_ids);
  if (!all) return;
  (*predictions)[kAllClassIds] = classes.AllIds(at, logits);
  (*predictions)[kAllClasses] = classes.AllNames(at, logits);
}

void AddAucMetrics(ScopeAt at, const Scores& scores, MetricMap* metrics) {
  (*metrics)[kAucMetric] = metrics::Auc({at.scope.WithName(kAucMetric), at.where}, scores.labels,
                                        scores.probabilities, {.weights = scores.weights});
  (*metrics)[kAucPrecisionRecallMetric] = metrics::Auc(
      {at.scope.WithName(kAucPrecisionRecallMetric), at.where}, scores.labels, scores.probabilities,
      {.weights = scores.weights, .curve = metrics::AucCurve::kPr});
}

void AddThresholdMetrics(ScopeAt at, const Scores& scores, const std::vector<double>& thresholds,
                         MetricMap* metrics) {
  const auto squeezed = [&](const metrics::Metric& metric) {
    return metrics::Metric{Squeeze(at, metric.value), Squeeze(at, metric.update)};
  };
  for (const double threshold : thresholds) {
    const std::string which = absl::StrFormat("/positive_threshold_%g", threshold);
    const float limit = static_cast<float>(threshold);
    const std::string accuracy = kAccuracyMetric + which;
    const std::string precision = kPrecisionMetric + which;
    const std::string recall = kRecallMetric + which;
    const Output positive =
        Cast(at, GreaterEqual(at, scores.probabilities, Const(at, limit)), DT_FLOAT);
    (*metrics)[accuracy] = metrics::Accuracy({at.scope.WithName(accuracy), at.where}, scores.labels,
                                             positive, {.weights = scores.weights});
    (*metrics)[precision] = squeezed(
        metrics::PrecisionAtThresholds({at.scope.WithName(precision), at.where}, scores.labels,
                                       scores.probabilities, {limit}, {.weights = scores.weights}));
    (*metrics)[recall] = squeezed(
        metrics::RecallAtThresholds({at.scope.WithName(recall), at.where}, scores.labels,
                                    scores.probabilities, {limit}, {.weights = scores.weights}));
  }
}

}  // namespace millrace
