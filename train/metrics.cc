// SPDX-License-Identifier: Apache-2.0
#include "train/metrics.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "core/dtype.h"
#include "core/shape.h"
#include "core/status.h"
#include "graph/graph.h"
#include "layers/initializers.h"
#include "layers/variable.h"
#include "ops/array/concat.h"
#include "ops/array/constant.h"
#include "ops/array/gather.h"
#include "ops/array/identity.h"
#include "ops/array/reshape.h"
#include "ops/array/slice.h"
#include "ops/control/asserts.h"
#include "ops/math/bucketize.h"
#include "ops/math/cast.h"
#include "ops/math/cwise_binary.h"
#include "ops/math/cwise_unary.h"
#include "ops/math/reduction.h"
#include "ops/math/scan.h"
#include "ops/math/segment.h"
#include "ops/math/select.h"
#include "ops/state/resource_variable.h"
#include "proto/meta_graph.pb.h"

namespace millrace::metrics {
namespace {

constexpr char kLocalVariables[] = "local_variables";
constexpr char kMetricVariables[] = "metric_variables";

// Made of what the variables hold, before or after a batch was added.
using Value = std::function<Output(const ScopeAt& at, absl::Span<const Output> totals)>;

Output CastTo(const ScopeAt& at, const Output& x, DType dtype) {
  return WithoutRef(x.dtype()) == dtype ? x : Cast(at, x, dtype);
}
Output ToDouble(const ScopeAt& at, const Output& x) { return CastTo(at, x, DT_DOUBLE); }
// 1.0 for what is not 0, else 0.0.
Output IsTrue(const ScopeAt& at, const Output& x) {
  return Cast(at, CastTo(at, x, DT_BOOL), DT_DOUBLE);
}
Output Complement(const ScopeAt& at, const Output& x) { return Sub(at, Const(at, 1.0), x); }

// A metric while it is built.
class Builder {
 public:
  // `kind` is the default of the scope's name.
  Builder(const ScopeAt& at, const char* kind)
      : where_(at.where),
        title_(absl::StrCat("Metric '", at.scope.prefix(), at.scope.RequestedName(kind), "'")),
        scope_(at.scope.CompositeScope(kind)) {}

  ScopeAt at() const { return ScopeAt(scope_, where_); }
  const Scope& scope() const { return scope_; }

  template <typename... Parts>
  bool Refuse(const Parts&... parts) const {
    scope_.UpdateStatus(InvalidArgument(title_, ": ", parts...), where_);
    return false;
  }
  bool IsNumbers(const char* name, const Output& x) const {
    if (!scope_.ok()) return false;
    if (!x.valid()) return Refuse(name, " must be a tensor of the graph, got an invalid Output");
    if (x.node()->graph() != scope_.graph()) {
      return Refuse(name, " must be of the same graph, got '", x.name(), "' of another");
    }
    const DType dtype = WithoutRef(x.dtype());
    return IsFloating(dtype) || IsInteger(dtype) || dtype == DT_BOOL ||
           Refuse(name, " must be numbers, got ", x.dtype(), " from '", x.name(), "'");
  }

  // Labels and predictions as tensors of one shape: now, or in the step, which ends otherwise.
  bool MakeAlike(Output* labels, Output* predictions) const;
  // The weight of each element of `values` as doubles of that shape. Invalid after an error.
  Output WeightsOf(const NumberOrOutput& weights, const Output& values) const;

  // A metric of `totals`: each a name and what a batch adds to it.
  struct Total {
    std::string name;
    Output added;  // doubles of this shape, whether the graph knows it or not
    Shape shape = Shape();
  };
  Metric Make(const std::vector<Total>& totals, const Value& value) const;

 private:
  // `b`, once it has the shape of `a`.
  Output OnceAlike(const std::string& rule, const Output& a, const Output& b) const;
  // Without a last dimension of 1 that `other` does not have.
  Output Squeezed(const Output& x, const Output& other) const {
    const PartialShape shape = scope_.shape(x), wanted = scope_.shape(other);
    const bool has_one_more = shape.has_rank() && wanted.has_rank() &&
                              shape.rank() == wanted.rank() + 1 && shape.dim(shape.rank() - 1) == 1;
    return has_one_more ? Squeeze(at(), x, {.squeeze_dims = {-1}}) : x;
  }

  const std::source_location where_;
  const std::string title_;
  const Scope scope_;
};

Output Builder::OnceAlike(const std::string& rule, const Output& a, const Output& b) const {
  const Scope sub = scope_.WithSubScope("assert_shapes");
  const ScopeAt in(sub, where_);
  // With a dimension of -1 behind, vectors of different lengths are never equal: one that has
  // nothing else would have to equal all of the other.
  const Output end = Const<int64_t>(in, {-1}), zero = Const(in, int32_t{0});
  const auto dims = [&](const Output& x) {
    return ConcatV2(in, {ShapeOf(in, x, {.out_type = DT_INT64}), end}, zero);
  };
  const Output a_dims = dims(a), b_dims = dims(b);
  const Output fit = ReduceAll(in, Equal(in, a_dims, b_dims));
  const Operation checked =
      Assert(in, fit,
             {Const(in, absl::StrCat(title_, ": ", rule, ", got")), ShapeOf(in, a), ShapeOf(in, b)},
             {.summarize = -1});
  if (!checked.valid()) return Output();
  return Identity({sub.WithControlDependencies({checked}), where_}, b);
}

bool Builder::MakeAlike(Output* labels, Output* predictions) const {
  if (!IsNumbers("labels", *labels) || !IsNumbers("predictions", *predictions)) return false;
  const Output all_labels = *labels;
  *labels = Squeezed(*labels, *predictions);
  *predictions = Squeezed(*predictions, all_labels);
  const PartialShape a = scope_.shape(*labels), b = scope_.shape(*predictions);
  const std::string rule = "labels and predictions must have one shape";
  if (!a.IsCompatibleWith(b)) return Refuse(rule, ", got ", a, " and ", b);
  if (!(a.IsFullyDefined() && b.IsFullyDefined())) {
    *predictions = OnceAlike(rule, *labels, *predictions);
  }
  return predictions->valid();
}

Output Builder::WeightsOf(const NumberOrOutput& weights, const Output& values) const {
  const Output ones = OnesLike(at(), ToDouble(at(), values));
  if (weights.is_number()) {
    if (!std::isfinite(weights.number())) {
      Refuse("weights must be finite, got ", weights.number());
      return Output();
    }
    return weights.number() == 1 ? ones : Mul(at(), ones, Const(at(), weights.number()));
  }
  if (!IsNumbers("weights", weights.output())) return Output();
  Output w = ToDouble(at(), Squeezed(weights.output(), values));
  const PartialShape shape = scope_.shape(values);
  PartialShape w_shape = scope_.shape(w);
  if (shape.has_rank() && w_shape.has_rank() && w_shape.rank() > 0 &&
      w_shape.rank() + 1 == shape.rank()) {
    w = ExpandDims(at(), w, Const(at(), int32_t{-1}));
    w_shape = scope_.shape(w);
  }
  const char* const rule = "weights must broadcast to the shape of the values";
  bool fits = true, known = w_shape.IsFullyDefined() && shape.IsFullyDefined();
  if (w_shape.has_rank() && shape.has_rank() && w_shape.rank() > 0) {
    fits = w_shape.rank() == shape.rank();
    for (int i = 0; fits && i < shape.rank(); ++i) {
      const int64_t dim = w_shape.dim(i);
      fits = dim < 0 || dim == 1 || shape.dim(i) < 0 || dim == shape.dim(i);
    }
  }
  if (!fits) {
    Refuse(rule, ", got ", scope_.shape(weights.output()), " for values of shape ", shape);
    return Output();
  }
  const Output wide = Mul(at(), w, ones);
  known = known || (w_shape.has_rank() && w_shape.rank() == 0);
  return known ? wide : OnceAlike(rule, values, wide);
}

Metric Builder::Make(const std::vector<Total>& totals, const Value& value) const {
  std::vector<Variable> variables;
  std::vector<Operation> added;
  std::vector<Output> before, after;
  for (const Total& total : totals) {
    if (!total.added.valid() || !scope_.ok()) return {};
    const Variable variable =
        MakeVariable({scope_.WithName(total.name), where_}, total.shape, DT_DOUBLE,
                     ZerosInitializer(), {.trainable = false, .local = true});
    if (!variable.valid()) return {};
    const auto& local = (*scope_.collections())[kLocalVariables].bytes_list().value();
    scope_.AddToBytesCollection(kMetricVariables, local[local.size() - 1]);
    variables.push_back(variable);
    before.push_back(variable.value);
    added.push_back(AssignAddVariableOp({scope_.WithName(total.name + "/AssignAdd"), where_},
                                        variable.handle, total.added));
  }
  // The value after the batch reads when everything is added.
  const Scope then = scope_.WithControlDependencies(added);
  for (size_t i = 0; i < totals.size(); ++i) {
    after.push_back(ReadVariableOp({then.WithName(totals[i].name + "/Updated"), where_},
                                   variables[i].handle, DT_DOUBLE));
  }
  Metric metric;
  metric.value = Identity({scope_.WithName("value"), where_}, value(at(), before));
  metric.update = Identity({scope_.WithName("update_op"), where_}, value(at(), after));
  return metric;
}

// --- Means ---------------------------------------------------------------------------------------

Output Ratio(const ScopeAt& at, absl::Span<const Output> totals) {
  return Cast(at, DivNoNan(at, totals[0], totals[1]), DT_FLOAT);
}

// values(labels and predictions of one shape) are what the mean is of.
Metric MeanOf(const Builder& b, const Output& values, const NumberOrOutput& weights,
              const Value& value = Ratio) {
  const Output w = b.WeightsOf(weights, values);
  if (!w.valid()) return {};
  const Output sum = ReduceSum(b.at(), Mul(b.at(), ToDouble(b.at(), values), w));
  return b.Make({{"total", sum}, {"count", ReduceSum(b.at(), w)}}, value);
}

template <typename Error>
Metric MeanError(const ScopeAt& at, const char* kind, Output labels, Output predictions,
                 const MetricAttrs& attrs, const Error& error, const Value& value = Ratio) {
  const Builder b(at, kind);
  if (!b.MakeAlike(&labels, &predictions)) return {};
  return MeanOf(b, error(b.at(), ToDouble(b.at(), labels), ToDouble(b.at(), predictions)),
                attrs.weights, value);
}

// --- Two classes ---------------------------------------------------------------------------------

enum class Outcome { kTruePositives, kFalsePositives, kTrueNegatives, kFalseNegatives };

const char* NameOf(Outcome outcome) {
  switch (outcome) {
    case Outcome::kTruePositives:
      return "true_positives";
    case Outcome::kFalsePositives:
      return "false_positives";
    case Outcome::kTrueNegatives:
      return "true_negatives";
    case Outcome::kFalseNegatives:
      return "false_negatives";
  }
  return "";
}

Output Itself(const ScopeAt&, absl::Span<const Output> totals) { return totals[0]; }

// x / (x + y) of counts.
Output Share(const ScopeAt& at, absl::Span<const Output> totals) {
  return Cast(at, DivNoNan(at, totals[0], Add(at, totals[0], totals[1])), DT_FLOAT);
}

Metric Counts(const ScopeAt& at, const char* kind, Output labels, Output predictions,
              const MetricAttrs& attrs, const std::vector<Outcome>& outcomes, const Value& value) {
  const Builder b(at, kind);
  if (!b.MakeAlike(&labels, &predictions)) return {};
  const Output weights = b.WeightsOf(attrs.weights, labels);
  if (!weights.valid()) return {};
  const ScopeAt in = b.at();
  const Output is = IsTrue(in, labels), seems = IsTrue(in, predictions);
  std::vector<Builder::Total> totals;
  for (const Outcome outcome : outcomes) {
    const bool counts_true =
        outcome == Outcome::kTruePositives || outcome == Outcome::kFalseNegatives;
    const bool counts_positives =
        outcome == Outcome::kTruePositives || outcome == Outcome::kFalsePositives;
    const Output chosen = Mul(in, counts_true ? is : Complement(in, is),
                              counts_positives ? seems : Complement(in, seems));
    totals.push_back({outcomes.size() == 1 ? "count" : absl::StrCat(NameOf(outcome), "/count"),
                      ReduceSum(in, Mul(in, chosen, weights))});
  }
  return b.Make(totals, value);
}

// --- At thresholds -------------------------------------------------------------------------------

// `check`: predictions must be probabilities.
Metric CountsAtThresholds(const ScopeAt& at, const char* kind, Output labels, Output predictions,
                          const std::vector<float>& thresholds, const NumberOrOutput& weights,
                          const std::vector<Outcome>& outcomes, bool check, const Value& value) {
  const Builder b(at, kind);
  if (thresholds.empty()) {
    b.Refuse("thresholds must not be empty, got none");
    return {};
  }
  for (const float threshold : thresholds) {
    if (std::isnan(threshold)) {
      b.Refuse("thresholds must be numbers, got nan");
      return {};
    }
  }
  if (!b.MakeAlike(&labels, &predictions)) return {};
  const Output each_weight = b.WeightsOf(weights, labels);
  if (!each_weight.valid()) return {};
  const ScopeAt in = b.at();
  predictions = CastTo(in, predictions, DT_FLOAT);
  if (check) {
    const Scope sub = b.scope().WithSubScope("assert_probabilities");
    const ScopeAt here(sub, at.where);
    const Output is_good =
        ReduceAll(here, LogicalAnd(here, GreaterEqual(here, predictions, Const(here, 0.0f)),
                                   LessEqual(here, predictions, Const(here, 1.0f))));
    const Operation checked =
        Assert(here, is_good,
               {Const(here, "predictions must be in [0, 1], got"), ReduceMin(here, predictions),
                Const(here, "to"), ReduceMax(here, predictions)});
    if (!checked.valid()) return {};
    predictions = Identity({sub.WithControlDependencies({checked}), at.where}, predictions);
  }
  // The weights of positive and of negative labels above each threshold. Predictions are counted by
  // how many thresholds are not below them; of the thresholds, the largest first, the k-th is below
  // those that have at most k such. So memory is that of the batch and of the thresholds, never of
  // one times the other.
  std::vector<float> largest_first = thresholds;
  std::sort(largest_first.begin(), largest_first.end(), std::greater<float>());
  largest_first.erase(std::unique(largest_first.begin(), largest_first.end()), largest_first.end());
  std::vector<float> boundaries;
  for (const float threshold : largest_first) boundaries.push_back(-threshold);
  std::vector<int32_t> place;  // of each threshold, among the largest first
  for (const float threshold : thresholds) {
    place.push_back(
        static_cast<int32_t>(std::lower_bound(largest_first.begin(), largest_first.end(), threshold,
                                              std::greater<float>()) -
                             largest_first.begin()));
  }
  const Output flat = Const<int32_t>(in, {-1}), zero = Const(in, int32_t{0});
  const Output not_below =
      Bucketize(in, Neg(in, Reshape(in, predictions, flat)), {.boundaries = boundaries});
  const Output places = ConstVector<int32_t>(in, place);
  const Output is = Reshape(in, IsTrue(in, labels), flat);
  const Output w = Reshape(in, each_weight, flat);
  const Output positive = Mul(in, is, w), negative = Mul(in, Complement(in, is), w);
  const Output size = Const(in, static_cast<int32_t>(boundaries.size()) + 1);
  const auto above_of = [&](const Output& some) {
    return GatherV2(in, Cumsum(in, UnsortedSegmentSum(in, some, not_below, size), zero), places,
                    zero);
  };
  std::vector<Builder::Total> totals;
  for (const Outcome outcome : outcomes) {
    Output added;
    switch (outcome) {
      case Outcome::kTruePositives:
        added = above_of(positive);
        break;
      case Outcome::kFalsePositives:
        added = above_of(negative);
        break;
      case Outcome::kTrueNegatives:
        added = Sub(in, ReduceSum(in, negative), above_of(negative));
        break;
      case Outcome::kFalseNegatives:
        added = Sub(in, ReduceSum(in, positive), above_of(positive));
        break;
    }
    totals.push_back({NameOf(outcome), added, Shape::Vector(thresholds.size())});
  }
  return b.Make(totals, value);
}

// Of true positives, false negatives, true negatives and false positives at each threshold.
Output AreaUnder(const ScopeAt& at, const AucAttrs& attrs, absl::Span<const Output> totals) {
  const Output &tp = totals[0], &fn = totals[1], &tn = totals[2], &fp = totals[3];
  const int32_t last = attrs.num_thresholds - 1;
  const Output size = Const<int32_t>(at, {last});
  const auto lower = [&](const Output& x) { return Slice(at, x, Const<int32_t>(at, {0}), size); };
  const auto upper = [&](const Output& x) { return Slice(at, x, Const<int32_t>(at, {1}), size); };
  const auto area = [&](const Output& parts) { return Cast(at, ReduceSum(at, parts), DT_FLOAT); };

  if (attrs.summation == AucSum::kCarefulInterpolation) {
    // Between two thresholds counts change evenly: with p = tp + fp, tp = intercept + slope * p,
    // and the precision tp / p is summed over tp.
    const Output p = Add(at, tp, fp);
    const Output zero = Const(at, 0.0);
    const Output dtp = Sub(at, lower(tp), upper(tp)), dp = Sub(at, lower(p), upper(p));
    const Output slope = DivNoNan(at, dtp, Maximum(at, dp, zero));
    const Output intercept = Sub(at, upper(tp), Mul(at, slope, upper(p)));
    const Output both = LogicalAnd(at, Greater(at, lower(p), zero), Greater(at, upper(p), zero));
    const Output ratio = Select(at, both, DivNoNan(at, lower(p), Maximum(at, upper(p), zero)),
                                OnesLike(at, upper(p)));
    const Output precision = Mul(at, slope, Add(at, dtp, Mul(at, intercept, Log(at, ratio))));
    const Output positives = Maximum(at, Add(at, upper(tp), upper(fn)), zero);
    return area(DivNoNan(at, precision, positives));
  }
  // Next to zeros it keeps quotients what they are at the ends of the curve.
  const Output epsilon = Const(at, 1e-6);
  const auto share = [&](const Output& part, const Output& rest) {
    return RealDiv(at, Add(at, part, epsilon), Add(at, Add(at, part, rest), epsilon));
  };
  const Output recall = share(tp, fn);
  const Output x =
      attrs.curve == AucCurve::kRoc ? RealDiv(at, fp, Add(at, Add(at, fp, tn), epsilon)) : recall;
  const Output y = attrs.curve == AucCurve::kRoc ? recall : share(tp, fp);
  const Output width = Sub(at, lower(x), upper(x));
  const Output height = Mul(at, Add(at, lower(y), upper(y)), Const(at, 0.5));
  return area(Mul(at, width, height));
}

}  // namespace

Metric Mean(ScopeAt at, Output values, const MetricAttrs& attrs) {
  const Builder b(at, "mean");
  if (!b.IsNumbers("values", values)) return {};
  return MeanOf(b, values, attrs.weights);
}

Metric Accuracy(ScopeAt at, Output labels, Output predictions, const MetricAttrs& attrs) {
  const Builder b(at, "accuracy");
  if (!b.MakeAlike(&labels, &predictions)) return {};
  const Output same =
      Equal(b.at(), labels, CastTo(b.at(), predictions, WithoutRef(labels.dtype())));
  return MeanOf(b, Cast(b.at(), same, DT_DOUBLE), attrs.weights);
}

Metric MeanSquaredError(ScopeAt at, Output labels, Output predictions, const MetricAttrs& attrs) {
  return MeanError(at, "mean_squared_error", labels, predictions, attrs, SquaredDifference);
}

Metric RootMeanSquaredError(ScopeAt at, Output labels, Output predictions,
                            const MetricAttrs& attrs) {
  return MeanError(at, "root_mean_squared_error", labels, predictions, attrs, SquaredDifference,
                   [](const ScopeAt& in, absl::Span<const Output> totals) {
                     return Cast(in, Sqrt(in, DivNoNan(in, totals[0], totals[1])), DT_FLOAT);
                   });
}

Metric MeanAbsoluteError(ScopeAt at, Output labels, Output predictions, const MetricAttrs& attrs) {
  return MeanError(
      at, "mean_absolute_error", labels, predictions, attrs,
      [](const ScopeAt& in, const Output& a, const Output& b) { return Abs(in, Sub(in, a, b)); });
}

Metric TruePositives(ScopeAt at, Output labels, Output predictions, const MetricAttrs& attrs) {
  return Counts(at, "true_positives", labels, predictions, attrs, {Outcome::kTruePositives},
                Itself);
}
Metric TrueNegatives(ScopeAt at, Output labels, Output predictions, const MetricAttrs& attrs) {
  return Counts(at, "true_negatives", labels, predictions, attrs, {Outcome::kTrueNegatives},
                Itself);
}
Metric FalsePositives(ScopeAt at, Output labels, Output predictions, const MetricAttrs& attrs) {
  return Counts(at, "false_positives", labels, predictions, attrs, {Outcome::kFalsePositives},
                Itself);
}
Metric FalseNegatives(ScopeAt at, Output labels, Output predictions, const MetricAttrs& attrs) {
  return Counts(at, "false_negatives", labels, predictions, attrs, {Outcome::kFalseNegatives},
                Itself);
}
Metric Precision(ScopeAt at, Output labels, Output predictions, const MetricAttrs& attrs) {
  return Counts(at, "precision", labels, predictions, attrs,
                {Outcome::kTruePositives, Outcome::kFalsePositives}, Share);
}
Metric Recall(ScopeAt at, Output labels, Output predictions, const MetricAttrs& attrs) {
  return Counts(at, "recall", labels, predictions, attrs,
                {Outcome::kTruePositives, Outcome::kFalseNegatives}, Share);
}

Metric TruePositivesAtThresholds(ScopeAt at, Output labels, Output predictions,
                                 const std::vector<float>& thresholds, const MetricAttrs& attrs) {
  return CountsAtThresholds(at, "true_positives_at_thresholds", labels, predictions, thresholds,
                            attrs.weights, {Outcome::kTruePositives}, false, Itself);
}
Metric TrueNegativesAtThresholds(ScopeAt at, Output labels, Output predictions,
                                 const std::vector<float>& thresholds, const MetricAttrs& attrs) {
  return CountsAtThresholds(at, "true_negatives_at_thresholds", labels, predictions, thresholds,
                            attrs.weights, {Outcome::kTrueNegatives}, false, Itself);
}
Metric FalsePositivesAtThresholds(ScopeAt at, Output labels, Output predictions,
                                  const std::vector<float>& thresholds, const MetricAttrs& attrs) {
  return CountsAtThresholds(at, "false_positives_at_thresholds", labels, predictions, thresholds,
                            attrs.weights, {Outcome::kFalsePositives}, false, Itself);
}
Metric FalseNegativesAtThresholds(ScopeAt at, Output labels, Output predictions,
                                  const std::vector<float>& thresholds, const MetricAttrs& attrs) {
  return CountsAtThresholds(at, "false_negatives_at_thresholds", labels, predictions, thresholds,
                            attrs.weights, {Outcome::kFalseNegatives}, false, Itself);
}
Metric PrecisionAtThresholds(ScopeAt at, Output labels, Output predictions,
                             const std::vector<float>& thresholds, const MetricAttrs& attrs) {
  return CountsAtThresholds(at, "precision_at_thresholds", labels, predictions, thresholds,
                            attrs.weights, {Outcome::kTruePositives, Outcome::kFalsePositives},
                            false, Share);
}
Metric RecallAtThresholds(ScopeAt at, Output labels, Output predictions,
                          const std::vector<float>& thresholds, const MetricAttrs& attrs) {
  return CountsAtThresholds(at, "recall_at_thresholds", labels, predictions, thresholds,
                            attrs.weights, {Outcome::kTruePositives, Outcome::kFalseNegatives},
                            false, Share);
}

Metric Auc(ScopeAt at, Output labels, Output predictions, const AucAttrs& attrs) {
  const std::string title =
      absl::StrCat("Metric '", at.scope.prefix(), at.scope.RequestedName("auc"), "': ");
  if (attrs.num_thresholds < 2) {
    at.scope.UpdateStatus(
        InvalidArgument(title, "num_thresholds must be >= 2, got ", attrs.num_thresholds),
        at.where);
    return {};
  }
  if (attrs.summation == AucSum::kCarefulInterpolation && attrs.curve != AucCurve::kPr) {
    at.scope.UpdateStatus(InvalidArgument(title,
                                          "careful interpolation must be of the PR curve, "
                                          "got ROC"),
                          at.where);
    return {};
  }
  std::vector<float> thresholds;
  const int last = attrs.num_thresholds - 1;
  thresholds.push_back(static_cast<float>(-1e-7));
  for (int i = 1; i < last; ++i) thresholds.push_back(static_cast<float>(i * 1.0 / last));
  thresholds.push_back(static_cast<float>(1 + 1e-7));
  return CountsAtThresholds(at, "auc", labels, predictions, thresholds, attrs.weights,
                            {Outcome::kTruePositives, Outcome::kFalseNegatives,
                             Outcome::kTrueNegatives, Outcome::kFalsePositives},
                            true, [attrs](const ScopeAt& in, absl::Span<const Output> totals) {
                              return AreaUnder(in, attrs, totals);
                            });
}

}  // namespace millrace::metrics
