// SPDX-License-Identifier: Apache-2.0
#include "estimator/heads/multi_class_head.h"

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
#include "ops/array/constant.h"
#include "ops/array/reshape.h"
#include "ops/math/cast.h"
#include "ops/nn/softmax.h"
#include "saver/saved_model.h"
#include "train/metrics.h"

namespace millrace {
namespace {

constexpr char kHead[] = "MultiClassHead";

class MultiClass : public LossHead {
 public:
  MultiClass(int64_t n_classes, const MultiClassHeadOptions& options, LossHeadOptions common)
      : LossHead(std::move(common)),
        classes_{n_classes, options.label_vocabulary},
        all_classes_(options.predict_all_classes) {}

 protected:
  Predicted Predict(const HeadInputs& in, const Output& logits, Mode mode) const override {
    const Scope scope = in.scope().WithSubScope("predictions");
    Predicted predicted;
    predicted.predictions[kLogits] = logits;
    AddClasses(in, scope, classes_, logits, all_classes_, &predicted.predictions);
    const Output probabilities = Softmax(in.Named(scope.WithName(kProbabilities)), logits);
    predicted.predictions[kProbabilities] = probabilities;
    if (mode != Mode::kPredict) return predicted;
    const ExportOutput classification = classes_.Classification(in.at(), probabilities);
    predicted.export_outputs = {{kDefaultServingSignature, classification},
                                {kClassificationSignature, classification},
                                {kPredictSignature, PredictOutput(predicted.predictions)}};
    return predicted;
  }

  Output LabelsAsNumbers(const HeadInputs& in, const Labels& given,
                         const Output& logits) const override {
    const Output one = in.OnlyLabel(given, 1);
    if (!one.valid()) return one;
    if (!classes_.vocabulary.empty()) {
      if (!in.AreWords(one)) return Output();
      return in.IndicesOf(in.LabelsLike(one, logits, 1), classes_.vocabulary);
    }
    const DType dtype = WithoutRef(one.dtype());
    if (!IsInteger(dtype)) {
      return in.Refuse("labels must be integers, got ", dtype, " from '", one.name(), "'",
                       dtype == DT_STRING ? "; words need a label_vocabulary" : "");
    }
    const Output labels = in.LabelsLike(one, logits, 1);
    if (!labels.valid()) return labels;
    const bool is_index = dtype == DT_INT32 || dtype == DT_INT64;
    return in.InRange(is_index ? labels : Cast(in.at(), labels, DT_INT64), classes_.count - 1, "");
  }

  Output UnreducedLoss(const HeadInputs& in, const Output& labels,
                       const Output& logits) const override {
    const Output losses = SparseSoftmaxCrossEntropy(
        in.at(), labels, logits, {.reduction = LossReduction::kNone, .collection = ""});
    return ExpandDims(in.at(), losses, Const(in.at(), int32_t{-1}));
  }

  void Measure(ScopeAt at, const Measured& measured, MetricMap* metrics) const override {
    (*metrics)[kAccuracyMetric] =
        metrics::Accuracy({at.scope.WithName(kAccuracyMetric), at.where}, measured.labels,
                          measured.predictions.at(kClassIds), {.weights = measured.weights});
  }

 private:
  const Classes classes_;
  const bool all_classes_;
};

}  // namespace

HeadPtr MultiClassHead(int64_t n_classes, const MultiClassHeadOptions& options,
                       std::source_location where) {
  Status status = n_classes > 2 ? absl::OkStatus()
                                : InvalidArgument(kHead, ": n_classes must be > 2, got ", n_classes,
                                                  "; BinaryHead is for two");
  if (status.ok()) status = Classes{n_classes, options.label_vocabulary}.Check(kHead);
  return std::make_shared<MultiClass>(n_classes, options,
                                      LossHeadOptions{.logits_dimension = n_classes,
                                                      .name = options.name,
                                                      .weight_column = options.weight_column,
                                                      .loss_reduction = options.loss_reduction,
                                                      .loss_fn = options.loss_fn,
                                                      .status = status,
                                                      .where = where});
}

}  // namespace millrace
