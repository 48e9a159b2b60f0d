// SPDX-License-Identifier: Apache-2.0
#include "estimator/heads/regression_head.h"

#include <utility>

#include "core/dtype.h"
#include "core/status.h"
#include "estimator/export_output.h"
#include "estimator/heads/head_inputs.h"
#include "estimator/heads/keys.h"
#include "estimator/heads/loss_head.h"
#include "estimator/model_tensors.h"
#include "ops/math/cast.h"
#include "ops/math/cwise_binary.h"
#include "ops/math/cwise_unary.h"
#include "saver/saved_model.h"
#include "train/metrics.h"

namespace millrace {
namespace {

enum class Labels01 { kNo, kYes };

class Regression : public LossHead {
 public:
  Regression(const RegressionHeadOptions& options, Labels01 labels, LossHeadOptions common)
      : LossHead(std::move(common)), inverse_link_fn_(options.inverse_link_fn), labels_(labels) {}

 protected:
  Predicted Predict(const HeadInputs& in, const Output& logits, Mode mode) const override {
    Predicted predicted;
    Output value = logits;
    if (inverse_link_fn_) {
      const Scope own = in.scope().BuiltWhereCalled();
      value = inverse_link_fn_(in.Named(own), logits);
      if (!value.valid()) in.Refuse("inverse_link_fn must return a tensor, got an invalid Output");
      predicted.predictions[kLogits] = logits;
    }
    predicted.predictions[kPredictions] = value;
    if (mode != Mode::kPredict) return predicted;
    predicted.export_outputs = {{kDefaultServingSignature, RegressionOutput(value)},
                                {kRegressionSignature, RegressionOutput(value)},
                                {kPredictSignature, PredictOutput(predicted.predictions)}};
    return predicted;
  }

  Output LabelsAsNumbers(const HeadInputs& in, const Labels& given,
                         const Output& logits) const override {
    const Output one = in.OnlyLabel(given, logits_dimension());
    if (!one.valid()) return one;
    if (WithoutRef(one.dtype()) == DT_STRING) {
      return in.Refuse("labels must be numbers, got strings from '", one.name(), "'");
    }
    const Output labels = in.LabelsLike(one, logits, logits_dimension());
    if (!labels.valid()) return labels;
    const Output floats =
        WithoutRef(labels.dtype()) == DT_FLOAT ? labels : Cast(in.at(), labels, DT_FLOAT);
    return labels_ == Labels01::kYes ? in.InRange(floats, 1, "") : floats;
  }

  Output UnreducedLoss(const HeadInputs& in, const Output& labels,
                       const Output& logits) const override {
    return SquaredDifference(
        {in.scope().WithName("mean_squared_error/SquaredDifference"), in.where()}, logits, labels);
  }

  void Measure(ScopeAt at, const Measured& measured, MetricMap* metrics) const override {
    (*metrics)[kPredictionMeanMetric] =
        metrics::Mean({at.scope.WithName(kPredictionMeanMetric), at.where},
                      measured.predictions.at(kPredictions), {.weights = measured.weights});
    (*metrics)[kLabelMeanMetric] = metrics::Mean({at.scope.WithName(kLabelMeanMetric), at.where},
                                                 measured.labels, {.weights = measured.weights});
  }

 private:
  const std::function<Output(ScopeAt, Output)> inverse_link_fn_;
  const Labels01 labels_;
};

HeadPtr MakeRegression(const char* head, const RegressionHeadOptions& options, Labels01 labels,
                       std::source_location where) {
  const Status status =
      options.label_dimension >= 1
          ? absl::OkStatus()
          : InvalidArgument(head, ": label_dimension must be >= 1, got ", options.label_dimension);
  return std::make_shared<Regression>(options, labels,
                                      LossHeadOptions{.logits_dimension = options.label_dimension,
                                                      .name = options.name,
                                                      .weight_column = options.weight_column,
                                                      .per_logit_weights = true,
                                                      .loss_reduction = options.loss_reduction,
                                                      .loss_fn = options.loss_fn,
                                                      .loss_dimension = options.label_dimension,
                                                      .status = status,
                                                      .where = where});
}

}  // namespace

HeadPtr RegressionHead(const RegressionHeadOptions& options, std::source_location where) {
  return MakeRegression("RegressionHead", options, Labels01::kNo, where);
}

HeadPtr PoissonRegressionHead(const PoissonRegressionHeadOptions& options,
                              std::source_location where) {
  const bool full = options.compute_full_loss;
  return MakeRegression(
      "PoissonRegressionHead",
      {.label_dimension = options.label_dimension,
       .weight_column = options.weight_column,
       .loss_reduction = options.loss_reduction,
       .loss_fn = [full](ScopeAt at, Output labels,
                         Output logits) { return LogPoissonLoss(at, labels, logits, full); },
       .inverse_link_fn = [](ScopeAt at, Output logits) { return Exp(at, logits); },
       .name = options.name},
      Labels01::kNo, where);
}

HeadPtr LogisticRegressionHead(const LogisticRegressionHeadOptions& options,
                               std::source_location where) {
  return MakeRegression(
      "LogisticRegressionHead",
      {.weight_column = options.weight_column,
       .loss_reduction = options.loss_reduction,
       .loss_fn = [](ScopeAt at, Output labels,
                     Output logits) { return SigmoidCrossEntropyWithLogits(at, labels, logits); },
       .inverse_link_fn = [](ScopeAt at, Output logits) { return Sigmoid(at, logits); },
       .name = options.name},
      Labels01::kYes, where);
}

}  // namespace millrace
