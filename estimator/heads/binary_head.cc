// SPDX-License-Identifier: Apache-2.0
#include "estimator/heads/binary_head.h"

#include <utility>

#include "core/dtype.h"
#include "core/status.h"
#include "estimator/export_output.h"
#include "estimator/heads/classes.h"
#include "estimator/heads/head_inputs.h"
#include "estimator/heads/keys.h"
#include "estimator/heads/loss_head.h"
#include "estimator/model_tensors.h"
#include "graph/scope.h"
#include "ops/array/concat.h"
#include "ops/array/constant.h"
#include "ops/math/cast.h"
#include "ops/math/cwise_binary.h"
#include "ops/math/cwise_unary.h"
#include "ops/nn/softmax.h"
#include "saver/saved_model.h"
#include "train/metrics.h"

namespace millrace {
namespace {

constexpr char kHead[] = "BinaryHead";

class Binary : public LossHead {
 public:
  Binary(const BinaryHeadOptions& options, LossHeadOptions common)
      : LossHead(std::move(common)),
        classes_{2, options.label_vocabulary},
        thresholds_(options.thresholds),
        all_classes_(options.predict_all_classes) {}

 protected:
  Predicted Predict(const HeadInputs& in, const Output& logits, Mode mode) const override {
    const Scope scope = in.scope().WithSubScope("predictions");
    const auto named = [&](const char* name) { return scope.WithName(name); };
    const Output logistic = Sigmoid(in.Named(named(kLogistic)), logits);
    const Output both = ConcatV2(in.Named(named("two_class_logits")),
                                 {ZerosLike(in.Named(named("zeros_like")), logits), logits},
                                 Const(in.Named(named("two_class_logits/axis")), int32_t{-1}));
    const Output probabilities = Softmax(in.Named(named(kProbabilities)), both);
    Predicted predicted;
    predicted.predictions = {
        {kLogits, logits}, {kLogistic, logistic}, {kProbabilities, probabilities}};
    AddClasses(in, scope, classes_, both, all_classes_, &predicted.predictions);
    if (mode != Mode::kPredict) return predicted;
    const ExportOutput classification = classes_.Classification(in.at(), probabilities);
    predicted.export_outputs = {{kDefaultServingSignature, classification},
                                {kClassificationSignature, classification},
                                {kRegressionSignature, RegressionOutput(logistic)},
                                {kPredictSignature, PredictOutput(predicted.predictions)}};
    return predicted;
  }

  Output LabelsAsNumbers(const HeadInputs& in, const Labels& given,
                         const Output& logits) const override {
    const Output one = in.OnlyLabel(given, 1);
    if (!one.valid()) return one;
    if (!classes_.vocabulary.empty()) {
      if (!in.AreWords(one)) return Output();
      const Output words = in.LabelsLike(one, logits, 1);
      return Cast(in.at(), in.IndicesOf(words, classes_.vocabulary), DT_FLOAT);
    }
    if (WithoutRef(one.dtype()) == DT_STRING) {
      return in.Refuse("labels must be numbers, got strings from '", one.name(),
                       "'; words need a label_vocabulary");
    }
    const Output labels = in.LabelsLike(one, logits, 1);
    if (!labels.valid()) return labels;
    const Output floats =
        WithoutRef(labels.dtype()) == DT_FLOAT ? labels : Cast(in.at(), labels, DT_FLOAT);
    return in.InRange(floats, 1, "");
  }

  Output UnreducedLoss(const HeadInputs& in, const Output& labels,
                       const Output& logits) const override {
    return SigmoidCrossEntropyWithLogits({in.scope().WithName("logistic_loss"), in.where()}, labels,
                                         logits);
  }

  void Measure(ScopeAt at, const Measured& measured, MetricMap* metrics) const override {
    const metrics::MetricAttrs weighted = {.weights = measured.weights};
    const Output& labels = measured.labels;
    const Output& class_ids = measured.predictions.at(kClassIds);
    const Output& logistic = measured.predictions.at(kLogistic);
    const auto named = [&](const char* key) { return at.scope.WithName(key); };
    (*metrics)[kAccuracyMetric] =
        metrics::Accuracy({named(kAccuracyMetric), at.where}, labels, class_ids, weighted);
    (*metrics)[kPrecisionMetric] =
        metrics::Precision({named(kPrecisionMetric), at.where}, labels, class_ids, weighted);
    (*metrics)[kRecallMetric] =
        metrics::Recall({named(kRecallMetric), at.where}, labels, class_ids, weighted);
    (*metrics)[kPredictionMeanMetric] =
        metrics::Mean({named(kPredictionMeanMetric), at.where}, logistic, weighted);
    const metrics::Metric mean =
        metrics::Mean({named(kLabelMeanMetric), at.where}, labels, weighted);
    (*metrics)[kLabelMeanMetric] = mean;
    // As good as one that always says the same.
    const Scope scope = at.scope.WithSubScope(kAccuracyBaselineMetric);
    const auto baseline = [&](const char* name, const Output& share) {
      const ScopeAt in(scope, at.where);
      return Maximum({scope.WithName(name), at.where}, share, Sub(in, Const(in, 1.0f), share));
    };
    (*metrics)[kAccuracyBaselineMetric] = {baseline("value", mean.value),
                                           baseline("update_op", mean.update)};
    const Scores scores = {labels, logistic, measured.weights};
    AddAucMetrics(at, scores, metrics);
    AddThresholdMetrics(at, scores, thresholds_, metrics);
  }

 private:
  const Classes classes_;
  const std::vector<double> thresholds_;
  const bool all_classes_;
};

}  // namespace

HeadPtr BinaryHead(const BinaryHeadOptions& options, std::source_location where) {
  Status status = CheckThresholds(kHead, options.thresholds);
  if (status.ok()) status = Classes{2, options.label_vocabulary}.Check(kHead);
  return std::make_shared<Binary>(options, LossHeadOptions{.logits_dimension = 1,
                                                           .name = options.name,
                                                           .weight_column = options.weight_column,
                                                           .loss_reduction = options.loss_reduction,
                                                           .loss_fn = options.loss_fn,
                                                           .status = status,
                                                           .where = where});
}

}  // namespace millrace
