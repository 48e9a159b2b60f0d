// SPDX-License-Identifier: Apache-2.0
#include "estimator/heads/multi_label_head.h"

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
#include "ops/array/reshape.h"
#include "ops/array/slice.h"
#include "ops/math/cast.h"
#include "ops/math/cwise_unary.h"
#include "ops/math/reduction.h"
#include "ops/sparse/sparse_tensor.h"
#include "ops/sparse/sparse_to_dense.h"
#include "saver/saved_model.h"

namespace millrace {
namespace {

constexpr char kHead[] = "MultiLabelHead";

class MultiLabel : public LossHead {
 public:
  MultiLabel(int64_t n_classes, const MultiLabelHeadOptions& options, LossHeadOptions common)
      : LossHead(std::move(common)),
        classes_{n_classes, options.label_vocabulary},
        thresholds_(options.thresholds) {}

 protected:
  Predicted Predict(const HeadInputs& in, const Output& logits, Mode mode) const override {
    const Scope scope = in.scope().WithSubScope("predictions");
    const Output probabilities = Sigmoid(in.Named(scope.WithName(kProbabilities)), logits);
    Predicted predicted;
    predicted.predictions = {{kLogits, logits}, {kProbabilities, probabilities}};
    if (mode != Mode::kPredict) return predicted;
    const ExportOutput classification = classes_.Classification(in.at(), probabilities);
    predicted.export_outputs = {{kDefaultServingSignature, classification},
                                {kClassificationSignature, classification},
                                {kPredictSignature, PredictOutput(predicted.predictions)}};
    return predicted;
  }

  Output LabelsAsNumbers(const HeadInputs& in, const Labels& given,
                         const Output& logits) const override {
    if (given.map().empty() && given.sparse_map().size() == 1) {
      return in.LabelsLike(Indicator(in, given.sparse_map().begin()->second), logits,
                           classes_.count);
    }
    const Output one = in.OnlyLabel(given, classes_.count);
    if (!one.valid()) return one;
    const DType dtype = WithoutRef(one.dtype());
    if (dtype == DT_STRING) {
      return in.Refuse(
          "labels must be numbers 0 and 1 for each class, or words in a sparse tensor, "
          "got strings in the dense '",
          one.name(), "'");
    }
    const Output labels = in.LabelsLike(one, logits, classes_.count);
    if (!labels.valid()) return labels;
    return in.InRange(dtype == DT_FLOAT ? labels : Cast(in.at(), labels, DT_FLOAT), 1,
                      " for each class");
  }

  Output UnreducedLoss(const HeadInputs& in, const Output& labels,
                       const Output& logits) const override {
    const Output losses = SigmoidCrossEntropyWithLogits(
        {in.scope().WithName("sigmoid_cross_entropy_loss"), in.where()}, labels, logits);
    return ReduceMean(in.at(), losses, {-1}, {.keep_dims = true});
  }

  void Measure(ScopeAt at, const Measured& measured, MetricMap* metrics) const override {
    const Scores scores = {measured.labels, measured.predictions.at(kProbabilities),
                           measured.weights};
    AddAucMetrics(at, scores, metrics);
    AddThresholdMetrics(at, scores, thresholds_, metrics);
  }

 private:
  // 1 for each class that an example has.
  Output Indicator(const HeadInputs& in, const SparseTensor& sparse) const {
    if (!sparse.valid()) return in.Refuse("labels must be a tensor, got an invalid SparseTensor");
    const DType dtype = WithoutRef(sparse.dtype());
    Output ids;
    if (!classes_.vocabulary.empty()) {
      if (!in.AreWords(sparse.values)) return Output();
      ids = in.IndicesOf(sparse.values, classes_.vocabulary);
    } else if (IsInteger(dtype)) {
      ids = Cast(in.at(), in.InRange(sparse.values, classes_.count - 1, ""), DT_INT64);
    } else {
      return in.Refuse("sparse labels must be integers, got ", dtype, " from '",
                       sparse.values.name(), "'",
                       dtype == DT_STRING ? "; words need a label_vocabulary" : "");
    }
    // The class takes the place of the last index.
    const Scope sub = in.scope().WithSubScope("SparseToIndicator");
    const ScopeAt at = in.Named(sub);
    const Output one = Const<int32_t>(at, {1}), last = Const<int32_t>(at, {-1});
    const Output leading =
        StridedSlice(at, sparse.indices, Const<int32_t>(at, {0, 0}), Const<int32_t>(at, {0, -1}),
                     Const<int32_t>(at, {1, 1}), {.begin_mask = 3, .end_mask = 1});
    const Output places =
        ConcatV2(at, {leading, ExpandDims(at, ids, Const(at, int32_t{1}))}, Const(at, int32_t{1}));
    const Output dims = ConcatV2(at,
                                 {StridedSlice(at, sparse.dense_shape, Const<int32_t>(at, {0}),
                                               last, one, {.begin_mask = 1}),
                                  Const<int64_t>(at, {classes_.count})},
                                 Const(at, int32_t{0}));
    // A class may be there twice, and in any order.
    return SparseToDense(at, places, dims, Const(at, 1.0f), Const(at, 0.0f),
                         {.validate_indices = false});
  }

  const Classes classes_;
  const std::vector<double> thresholds_;
};

}  // namespace

HeadPtr MultiLabelHead(int64_t n_classes, const MultiLabelHeadOptions& options,
                       std::source_location where) {
  Status status = n_classes > 1
                      ? absl::OkStatus()
                      : InvalidArgument(kHead, ": n_classes must be > 1, got ", n_classes);
  if (status.ok()) status = CheckThresholds(kHead, options.thresholds);
  if (status.ok()) status = Classes{n_classes, options.label_vocabulary}.Check(kHead);
  return std::make_shared<MultiLabel>(n_classes, options,
                                      LossHeadOptions{.logits_dimension = n_classes,
                                                      .name = options.name,
                                                      .weight_column = options.weight_column,
                                                      .loss_reduction = options.loss_reduction,
                                                      .loss_fn = options.loss_fn,
                                                      .status = status,
                                                      .where = where});
}

}  // namespace millrace
