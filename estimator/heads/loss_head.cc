// SPDX-License-Identifier: Apache-2.0
#include "estimator/heads/loss_head.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "estimator/heads/keys.h"
#include "layers/normalization.h"
#include "layers/variable.h"
#include "ops/array/constant.h"
#include "ops/array/number_or_output.h"
#include "ops/array/reshape.h"
#include "ops/math/add_n.h"
#include "ops/math/cast.h"
#include "ops/math/cwise_binary.h"
#include "ops/math/cwise_unary.h"
#include "ops/math/reduction.h"
#include "train/summaries.h"

namespace millrace {
namespace {

// The mean over examples of a loss that is their weighted sum.
Output MeanOf(const HeadInputs& in, const Output& loss, const Output& unreduced,
              const NumberOrOutput& weights) {
  const ScopeAt at = in.at();
  const Output count = weights.is_number()
                           ? Cast(at, Size(at, unreduced, {.out_type = DT_INT64}), DT_FLOAT)
                           : ReduceSum(at, Mul(at, weights.output(), OnesLike(at, unreduced)));
  return DivNoNan(at, loss, count);
}

}  // namespace

Operation TrainOpOf(const HeadInputs& in, const HeadCall& call, const Output& loss) {
  if ((call.optimizer != nullptr) == (call.train_op_fn != nullptr)) {
    in.Refuse("to train, one of optimizer and train_op_fn must be given, got ",
              call.optimizer != nullptr ? "both" : "none");
    return Operation();
  }
  const Operation train =
      call.optimizer != nullptr
          ? call.optimizer->Minimize(in.at(), loss, {.global_step = GlobalStep(in.at())})
          : call.train_op_fn(in.scope().BuiltWhereCalled(), loss);
  if (!in.scope().ok()) return Operation();
  if (!train.valid()) {
    in.Refuse("train_op_fn must return an operation, got an invalid one");
    return Operation();
  }
  return UpdateOps(in.at()).empty() ? train : TrainWithUpdates(in.at(), train);
}

Status BuiltAt(const Status& status, std::source_location where) {
  return Suffixed(status, absl::StrCat("; built at ", where.file_name(), ":", where.line()));
}

std::string KeyOfHead(const std::string& key, const std::string& head_name) {
  return head_name.empty() ? key : absl::StrCat(key, "/", head_name);
}

Status CheckThresholds(const char* head, const std::vector<double>& thresholds) {
  for (const double threshold : thresholds) {
    if (threshold > 0 && threshold < 1) continue;
    return InvalidArgument(head, ": thresholds must be in (0, 1), got ", threshold);
  }
  return absl::OkStatus();
}

LossHead::LossHead(LossHeadOptions options) : options_(std::move(options)) {}

Status LossHead::WrongOptions() const {
  if (!options_.status.ok() || options_.loss_reduction != LossReduction::kNone)
    return options_.status;
  return InvalidArgument("Head '", options_.name.empty() ? "head" : options_.name,
                         "': loss_reduction must give one number, got kNone");
}

Status LossHead::status() const { return BuiltAt(WrongOptions(), options_.where); }

EstimatorSpec LossHead::CreateEstimatorSpec(ScopeAt at, const HeadCall& call) const {
  EstimatorSpec spec;
  spec.mode = call.mode;
  if (!at.scope.ok()) return spec;
  if (const Status wrong = WrongOptions(); !wrong.ok()) {
    at.scope.UpdateStatus(wrong, options_.where);
    return spec;
  }
  const HeadInputs in(at.scope.WithSubScope(options_.name.empty() ? "head" : options_.name),
                      at.where, options_.name);
  const Scope& scope = in.scope();
  const Output logits = in.Logits(call.logits, options_.logits_dimension);
  if (!logits.valid()) return spec;
  Predicted predicted = Predict(in, logits, call.mode);
  spec.predictions = predicted.predictions;
  if (call.mode == Mode::kPredict) {
    spec.export_outputs = std::move(predicted.export_outputs);
    return spec;
  }

  const Output labels = LabelsAsNumbers(in, call.labels, logits);
  if (!labels.valid()) return spec;
  const Output unreduced =
      options_.loss_fn.valid()
          ? in.LossesLike(options_.loss_fn(in.at(), labels, logits, call.features), logits,
                          options_.loss_dimension)
          : UnreducedLoss(in, labels, logits);
  const Output weights =
      in.Weights(call.features, options_.weight_column, logits, options_.per_logit_weights);
  if (!scope.ok()) return spec;
  if (!unreduced.valid()) {
    in.Refuse("loss_fn must return a tensor of the graph, got an invalid Output");
    return spec;
  }
  const NumberOrOutput weighting = weights.valid() ? NumberOrOutput(weights) : NumberOrOutput(1);
  const Output training_loss = ComputeWeightedLoss(
      in.at(), unreduced, {.weights = weighting, .reduction = options_.loss_reduction});
  if (!scope.ok()) return spec;
  Output regularization;
  spec.loss = training_loss;
  if (!call.regularization_losses.empty()) {
    regularization = AddN(in.at(), call.regularization_losses);
    spec.loss = AddN(in.at(), {training_loss, regularization});
  }

  if (call.mode == Mode::kEval) {
    const Scope measuring = scope.WithSubScope("metrics");
    MetricMap all;
    all[kAverageLossMetric] = metrics::Mean({measuring.WithName(kAverageLossMetric), at.where},
                                            unreduced, {.weights = weighting});
    if (regularization.valid()) {
      all[kRegularizationLossMetric] =
          metrics::Mean({measuring.WithName(kRegularizationLossMetric), at.where}, regularization);
    }
    Measure(in.Named(measuring),
            {.predictions = predicted.predictions,
             .labels = labels,
             .weights = weighting,
             .unreduced_loss = unreduced},
            &all);
    for (auto& [key, metric] : all) {
      spec.eval_metric_ops[KeyOfHead(key, options_.name)] = std::move(metric);
    }
    return spec;
  }

  spec.train_op = TrainOpOf(in, call, spec.loss);
  if (!scope.ok()) return spec;
  const Scope root = at.scope.WithRootPrefix();
  const auto summarize = [&](const char* key, const Output& value) {
    AddScalarSummary(in.Named(root), KeyOfHead(key, options_.name), value);
  };
  summarize(kLossMetric, spec.loss);
  if (options_.loss_reduction == LossReduction::kSum) {
    summarize(kAverageLossMetric, MeanOf(in, training_loss, unreduced, weighting));
  }
  if (regularization.valid()) summarize(kRegularizationLossMetric, regularization);
  return spec;
}

}  // namespace millrace
