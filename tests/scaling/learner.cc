// SPDX-License-Identifier: Apache-2.0
#include "tests/scaling/learner.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/types/span.h"
#include "graph/gradient.h"
#include "layers/variable.h"
#include "layers/variable_update.h"
#include "ops/array/placeholder.h"
#include "tests/scaling/auc.h"
#include "train/adagrad.h"
#include "train/gradient_descent.h"
#include "train/momentum.h"
#include "train/optimizer.h"

namespace millrace::scaling {
namespace {

StatusOr<std::unique_ptr<Optimizer>> MakeOptimizer(const LearnerOptions& options) {
  const double rate = options.learning_rate;
  if (options.optimizer == "adagrad") {
    return std::make_unique<AdagradOptimizer>(AdagradOptions{
        .learning_rate = rate, .initial_accumulator_value = options.initial_accumulator});
  }
  if (options.optimizer == "sgd") {
    return std::make_unique<GradientDescentOptimizer>(
        GradientDescentOptions{.learning_rate = rate});
  }
  if (options.optimizer == "momentum") {
    return std::make_unique<MomentumOptimizer>(
        MomentumOptions{.learning_rate = rate, .momentum = 0.9});
  }
  return InvalidArgument("Learner: optimizer must be 'adagrad', 'sgd' or 'momentum', got '",
                         options.optimizer, "'");
}

// The dimensions with any number of rows.
StatusOr<PartialShape> RowsOf(const PartialShape& shape) {
  std::vector<int64_t> dims(shape.dims().begin(), shape.dims().end());
  if (!dims.empty()) dims[0] = -1;
  return PartialShape::Make(dims);
}

// (t[0] + t[1] + ...) / n, of one shape.
StatusOr<Tensor> MeanOf(const std::vector<const Tensor*>& tensors) {
  MR_ASSIGN_OR_RETURN(Tensor sum, tensors[0]->Clone());
  const absl::Span<float> to = sum.mutable_flat<float>();
  for (size_t i = 1; i < tensors.size(); ++i) {
    MR_ASSIGN_OR_RETURN(const absl::Span<const float> from, tensors[i]->values<float>());
    for (size_t j = 0; j < to.size(); ++j) to[j] += from[j];
  }
  for (float& value : to) value /= static_cast<float>(tensors.size());
  return sum;
}

// All rows, one tensor's behind the other's, over `divisor`.
template <typename T>
StatusOr<Tensor> Joined(const std::vector<const Tensor*>& tensors, T divisor) {
  std::vector<int64_t> dims(tensors[0]->shape().dims().begin(), tensors[0]->shape().dims().end());
  dims[0] = 0;
  for (const Tensor* tensor : tensors) dims[0] += tensor->dim(0);
  MR_ASSIGN_OR_RETURN(const Shape shape, Shape::Make(dims));
  MR_ASSIGN_OR_RETURN(Tensor joined, Tensor::Allocate(DTypeOf<T>, shape));
  T* to = joined.template mutable_flat<T>().data();
  for (const Tensor* tensor : tensors) {
    MR_ASSIGN_OR_RETURN(const absl::Span<const T> from, tensor->values<T>());
    for (const T value : from) *to++ = value / divisor;
  }
  return joined;
}

}  // namespace

StatusOr<std::unique_ptr<Learner>> Learner::Make(const Problem& problem,
                                                 const LearnerOptions& options) {
  std::unique_ptr<Learner> learner(new Learner);
  MR_RETURN_IF_ERROR(learner->Build(problem, options));
  return learner;
}

Status Learner::Build(const Problem& problem, const LearnerOptions& options) {
  MR_ASSIGN_OR_RETURN(auto inner, MakeOptimizer(options));
  root_.SetGraphSeed(static_cast<int64_t>(options.seed));
  const ModelNodes model = problem.Build(root_);
  const Variable step = GlobalStep(root_);
  StalenessAwareOptimizer optimizer(std::move(inner), options.staleness);

  // What the first run yields is what the second one is fed with.
  std::vector<FetchName> computed, fed, new_values, weights;
  std::vector<GradientAndVariable> pairs = optimizer.ComputeGradients(root_, model.loss);
  MR_RETURN_IF_ERROR(root_.status());
  for (GradientAndVariable& pair : pairs) {
    const Variable& variable = pair.variable;
    const Scope own = root_.WithSubScope("fed/" + variable.name);
    if (const auto* dense = std::get_if<Output>(&pair.gradient)) {
      computed.emplace_back(*dense);
      const Output gradient = Placeholder(own.WithName("gradient"), variable.dtype, variable.shape);
      fed.emplace_back(gradient);
      pair.gradient = gradient;
    } else if (const auto* slices = std::get_if<IndexedSlices>(&pair.gradient)) {
      computed.emplace_back(slices->values);
      computed.emplace_back(slices->indices);
      MR_ASSIGN_OR_RETURN(const PartialShape rows, RowsOf(variable.shape));
      // Those of several workers have rows in common.
      const IndexedSlices gradient = {
          .values = Placeholder(own.WithName("values"), variable.dtype, rows),
          .indices = Placeholder(own.WithName("rows"), slices->indices.dtype(), {-1}),
          .dense_shape = {}};
      fed.emplace_back(gradient.values);
      fed.emplace_back(gradient.indices);
      pair.gradient = gradient;
    } else {
      return Internal("Learner: '", variable.name, "' must have a gradient, got none");
    }
    is_rows_.push_back(std::holds_alternative<IndexedSlices>(pair.gradient));
  }
  computed.emplace_back(step.value);
  const Operation apply = optimizer.ApplyGradients(root_, pairs, {.global_step = step});
  if (optimizer.read_step().valid()) {
    applies_read_step_ = true;
    fed.emplace_back(optimizer.read_step());
  }

  std::vector<FetchName> assigned;
  for (const GradientAndVariable& pair : pairs) {
    const Variable& variable = pair.variable;
    const Scope own = root_.WithSubScope("assigned/" + variable.name);
    const Output value = Placeholder(own.WithName("value"), variable.dtype, variable.shape);
    new_values.emplace_back(value);
    assigned.emplace_back(AssignVariable(own, variable, value));
    weights.emplace_back(variable.value);
  }
  const Operation global = GlobalVariablesInitializer(root_);
  const Operation local = LocalVariablesInitializer(root_);
  MR_RETURN_IF_ERROR(root_.status());

  MR_ASSIGN_OR_RETURN(session_, NewSession({.config = {.intra_op_parallelism_threads = -1,
                                                       .inter_op_parallelism_threads = -1}}));
  MR_RETURN_IF_ERROR(session_->Extend(root_));
  MR_RETURN_IF_ERROR(session_->Run({}, {}, {global, local}).status());
  const std::vector<FetchName> inputs(model.inputs.begin(), model.inputs.end());
  const std::vector<FetchName> features(inputs.begin(), inputs.end() - 1);
  MR_ASSIGN_OR_RETURN(compute_, session_->Prepare(inputs, computed));
  MR_ASSIGN_OR_RETURN(apply_, session_->Prepare(fed, {}, {FetchName(apply)}));
  MR_ASSIGN_OR_RETURN(evaluate_, session_->Prepare(features, {FetchName(model.logit)}));
  MR_ASSIGN_OR_RETURN(weights_, session_->Prepare(std::vector<FetchName>{}, weights));
  MR_ASSIGN_OR_RETURN(set_weights_, session_->Prepare(new_values, {}, assigned));
  if (optimizer.counts().valid()) {
    MR_ASSIGN_OR_RETURN(dropped_, session_->Prepare(std::vector<FetchName>{},
                                                    {FetchName(optimizer.counts().value)}));
  }
  held_out_features_ = problem.held_out();
  if (held_out_features_.size() != inputs.size()) {
    return Internal("Learner: examples to judge by must be ", inputs.size(), " tensors, got ",
                    held_out_features_.size());
  }
  held_out_labels_ = std::move(held_out_features_.back());
  held_out_features_.pop_back();
  return absl::OkStatus();
}

StatusOr<WorkerGradient> Learner::Compute(const ExampleBatch& batch) {
  WorkerGradient gradient;
  MR_ASSIGN_OR_RETURN(gradient.tensors, compute_->Run(batch));
  gradient.read_step = std::move(gradient.tensors.back());
  gradient.tensors.pop_back();
  return gradient;
}

StatusOr<WorkerGradient> Learner::Mean(const std::vector<WorkerGradient>& gradients) const {
  if (gradients.size() == 1) return gradients[0];
  WorkerGradient mean{.tensors = {}, .read_step = gradients[0].read_step};
  const auto all = [&](size_t i) {
    std::vector<const Tensor*> tensors;
    for (const WorkerGradient& gradient : gradients) tensors.push_back(&gradient.tensors[i]);
    return tensors;
  };
  for (const bool is_rows : is_rows_) {
    const size_t next = mean.tensors.size();
    if (!is_rows) {
      MR_ASSIGN_OR_RETURN(Tensor values, MeanOf(all(next)));
      mean.tensors.push_back(std::move(values));
      continue;
    }
    MR_ASSIGN_OR_RETURN(Tensor values,
                        Joined<float>(all(next), static_cast<float>(gradients.size())));
    MR_ASSIGN_OR_RETURN(Tensor rows, Joined<int64_t>(all(next + 1), 1));
    mean.tensors.push_back(std::move(values));
    mean.tensors.push_back(std::move(rows));
  }
  return mean;
}

Status Learner::Apply(const WorkerGradient& gradient) {
  std::vector<Tensor> fed = gradient.tensors;
  if (applies_read_step_) fed.push_back(gradient.read_step);
  return apply_->Run(fed).status();
}

StatusOr<double> Learner::HeldOutAuc() {
  MR_ASSIGN_OR_RETURN(const std::vector<Tensor> out, evaluate_->Run(held_out_features_));
  MR_ASSIGN_OR_RETURN(const absl::Span<const float> scores, out[0].values<float>());
  MR_ASSIGN_OR_RETURN(const absl::Span<const float> labels, held_out_labels_.values<float>());
  if (scores.size() != labels.size()) {
    return Internal("Learner: logits must be one for each label, got ", scores.size(), " and ",
                    labels.size());
  }
  return RankAuc(scores, labels);
}

StatusOr<int64_t> Learner::NumDropped() {
  if (dropped_ == nullptr) return 0;
  MR_ASSIGN_OR_RETURN(const std::vector<Tensor> out, dropped_->Run({}));
  MR_ASSIGN_OR_RETURN(const absl::Span<const int64_t> counts, out[0].values<int64_t>());
  return counts.back();
}

StatusOr<std::vector<Tensor>> Learner::Weights() { return weights_->Run({}); }

Status Learner::SetWeights(const std::vector<Tensor>& weights) {
  return set_weights_->Run(weights).status();
}

}  // namespace millrace::scaling
