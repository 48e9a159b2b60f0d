// SPDX-License-Identifier: Apache-2.0
#include "estimator/heads/multi_head.h"

#include <cmath>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/shape.h"
#include "core/status.h"
#include "estimator/export_output.h"
#include "estimator/heads/head_inputs.h"
#include "estimator/heads/keys.h"
#include "estimator/heads/loss_head.h"
#include "estimator/model_fn.h"
#include "estimator/model_tensors.h"
#include "graph/scope.h"
#include "ops/array/constant.h"
#include "ops/array/identity.h"
#include "ops/array/slice.h"
#include "ops/math/add_n.h"
#include "ops/math/cwise_binary.h"
#include "saver/saved_model.h"
#include "train/metrics.h"
#include "train/summaries.h"

namespace millrace {
namespace {

class Multi : public Head {
 public:
  Multi(std::vector<HeadPtr> heads, std::vector<double> weights, Status status,
        std::source_location where)
      : heads_(std::move(heads)),
        weights_(std::move(weights)),
        status_(std::move(status)),
        where_(where) {
    if (!status_.ok()) return;
    for (const HeadPtr& head : heads_) logits_dimension_ += head->logits_dimension();
    name_ = absl::StrJoin(heads_, "_", [](std::string* out, const HeadPtr& head) {
      absl::StrAppend(out, head->name());
    });
  }

  const std::string& name() const override { return name_; }
  int64_t logits_dimension() const override { return logits_dimension_; }
  Status status() const override {
    if (!status_.ok()) return BuiltAt(status_, where_);
    for (const HeadPtr& head : heads_) MR_RETURN_IF_ERROR(head->status());
    return absl::OkStatus();
  }

  EstimatorSpec CreateEstimatorSpec(ScopeAt at, const HeadCall& call) const override {
    EstimatorSpec spec;
    spec.mode = call.mode;
    if (!at.scope.ok()) return spec;
    if (!status_.ok()) {
      at.scope.UpdateStatus(status_, where_);
      return spec;
    }
    const HeadInputs in(at.scope, at.where, name_);
    std::vector<EstimatorSpec> specs;
    const std::map<std::string, Output> logits = LogitsOf(in, call);
    for (const HeadPtr& head : heads_) {
      Labels labels;
      if (call.mode != Mode::kPredict && !LabelsOf(in, call.labels, head->name(), &labels)) {
        return spec;
      }
      specs.push_back(head->CreateEstimatorSpec(at, {.features = call.features,
                                                     .mode = call.mode,
                                                     .logits = logits.at(head->name()),
                                                     .labels = labels,
                                                     .train_op_fn = [&](const Scope& s, Output) {
                                                       return NoOp({s, at.where});
                                                     }}));
      if (!at.scope.ok()) return spec;
    }
    Predictions::Map predictions;
    for (size_t i = 0; i < heads_.size(); ++i) {
      for (const auto& [key, tensor] : specs[i].predictions.map()) {
        predictions[absl::StrCat(heads_[i]->name(), "/", key)] = tensor;
      }
    }
    spec.predictions = std::move(predictions);
    if (call.mode == Mode::kPredict) {
      spec.export_outputs = ExportsOf(specs);
      return spec;
    }
    spec.loss = LossOf(in, specs, call.regularization_losses);
    if (call.mode == Mode::kEval) {
      const Scope merge = at.scope.WithSubScope("merge_eval");
      for (size_t i = 0; i < heads_.size(); ++i) {
        const std::string key = KeyOfHead(kLossMetric, heads_[i]->name());
        spec.eval_metric_ops[key] = metrics::Mean({merge.WithName(key), at.where}, specs[i].loss);
        spec.eval_metric_ops.insert(specs[i].eval_metric_ops.begin(),
                                    specs[i].eval_metric_ops.end());
      }
      return spec;
    }
    spec.train_op = TrainOpOf(in, call, spec.loss);
    if (at.scope.ok()) {
      const Scope root = at.scope.WithRootPrefix();
      AddScalarSummary({root, at.where}, kLossMetric, spec.loss);
    }
    return spec;
  }

 private:
  std::map<std::string, Output> LogitsOf(const HeadInputs& in, const HeadCall& call) const {
    std::map<std::string, Output> result;
    if (call.logits_by_head.empty()) {
      const Output all = in.Logits(call.logits, logits_dimension_);
      const Scope scope = in.scope().WithSubScope("split_logits");
      const ScopeAt at = in.Named(scope);
      const PartialShape shape = all.valid() ? in.scope().shape(all) : PartialShape();
      const int rank = shape.has_rank() ? shape.rank() : 2;
      int32_t begin = 0;
      for (const HeadPtr& head : heads_) {
        std::vector<int32_t> from(static_cast<size_t>(rank), 0);
        std::vector<int32_t> size(static_cast<size_t>(rank), -1);
        from.back() = begin;
        size.back() = static_cast<int32_t>(head->logits_dimension());
        begin += size.back();
        result[head->name()] = all.valid() ? Slice(at, all, ConstVector<int32_t>(at, from),
                                                   ConstVector<int32_t>(at, size))
                                           : Output();
      }
      return result;
    }
    for (const HeadPtr& head : heads_) {
      const auto found = call.logits_by_head.find(head->name());
      result[head->name()] =
          found == call.logits_by_head.end()
              ? in.Refuse("logits_by_head must have those of each head, got none of '",
                          head->name(), "'")
              : found->second;
    }
    return result;
  }

  bool LabelsOf(const HeadInputs& in, const Labels& all, const std::string& name,
                Labels* labels) const {
    if (all.is_sparse(name)) {
      *labels = Labels(Labels::Map(), {{name, all.sparse_map().at(name)}});
    } else if (const auto found = all.map().find(name); found != all.map().end()) {
      *labels = found->second;
    } else {
      std::vector<std::string> names;
      for (const auto& [key, tensor] : all.map()) names.push_back(absl::StrCat("'", key, "'"));
      in.Refuse("labels must be given by the names of the heads, got none of '", name, "' (",
                names.empty() ? "none at all" : absl::StrJoin(names, ", "), ")");
      return false;
    }
    return true;
  }

  Output LossOf(const HeadInputs& in, const std::vector<EstimatorSpec>& specs,
                const std::vector<Output>& regularization_losses) const {
    const Scope scope = in.scope().WithSubScope("merge_losses");
    const ScopeAt at = in.Named(scope);
    std::vector<Output> losses;
    for (size_t i = 0; i < specs.size(); ++i) {
      losses.push_back(weights_.empty()
                           ? specs[i].loss
                           : Mul(at, specs[i].loss, Const(at, static_cast<float>(weights_[i]))));
    }
    losses.insert(losses.end(), regularization_losses.begin(), regularization_losses.end());
    return AddN(at, losses);
  }

  std::map<std::string, ExportOutput> ExportsOf(const std::vector<EstimatorSpec>& specs) const {
    std::map<std::string, ExportOutput> outputs;
    Predictions::Map all;
    for (size_t i = 0; i < heads_.size(); ++i) {
      const std::string& name = heads_[i]->name();
      for (const auto& [key, output] : specs[i].export_outputs) {
        const bool is_default = key == kDefaultServingSignature;
        if (is_default && i == 0) outputs[key] = output;
        outputs[is_default ? name : absl::StrCat(name, "/", key)] = output;
        if (key != kPredictSignature || output.kind != ExportOutput::Kind::kPredict) continue;
        for (const auto& [of, tensor] : output.outputs.map()) {
          all[absl::StrCat(name, "/", of)] = tensor;
        }
      }
    }
    outputs[kPredictSignature] = PredictOutput(std::move(all));
    return outputs;
  }

  const std::vector<HeadPtr> heads_;
  const std::vector<double> weights_;
  const Status status_;
  const std::source_location where_;
  std::string name_;
  int64_t logits_dimension_ = 0;
};

Status Check(const std::vector<HeadPtr>& heads, const std::vector<double>& weights) {
  if (heads.empty()) return InvalidArgument("MultiHead: heads must be given, got none");
  if (!weights.empty() && weights.size() != heads.size()) {
    return InvalidArgument("MultiHead: weights must be one for each of ", heads.size(),
                           " heads, got ", weights.size());
  }
  for (const double weight : weights) {
    if (!std::isfinite(weight)) {
      return InvalidArgument("MultiHead: weights must be finite, got ", weight);
    }
  }
  std::set<std::string> names;
  for (const HeadPtr& head : heads) {
    if (head == nullptr) return InvalidArgument("MultiHead: heads must be heads, got a null one");
    if (head->name().empty()) {
      return InvalidArgument("MultiHead: heads must have names, got one without");
    }
    if (!names.insert(head->name()).second) {
      return InvalidArgument("MultiHead: heads must have names of their own, got '", head->name(),
                             "' twice");
    }
  }
  return absl::OkStatus();
}

}  // namespace

HeadPtr MultiHead(std::vector<HeadPtr> heads, std::vector<double> weights,
                  std::source_location where) {
  const Status status = Check(heads, weights);
  return std::make_shared<Multi>(std::move(heads), std::move(weights), status, where);
}

}  // namespace millrace
