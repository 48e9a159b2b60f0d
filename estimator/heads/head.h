// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_ESTIMATOR_HEADS_HEAD_H_
#define MILLRACE_ESTIMATOR_HEADS_HEAD_H_

// Head: what a model does with its last layer: predictions, loss, metrics, training operation and
// what an export offers, of the logits that a network has computed.
//
//   EstimatorSpec Model(const Scope& scope, const Features& features, const Labels& labels,
//                       Mode mode) {
//     static const HeadPtr head = BinaryHead({.weight_column = "weight"});
//     Output logits = Dense(scope, Hidden(scope, features), head->logits_dimension());
//     AdagradOptimizer optimizer({.learning_rate = 0.05});
//     return head->CreateEstimatorSpec(scope, {.features = features, .mode = mode,
//                                              .logits = logits, .labels = labels,
//                                              .optimizer = &optimizer});
//   }
//
// Names are TensorFlow 1.15's: nodes stand in the scope of the head's name ("head" without one),
// predictions in "head/predictions"; keys of metrics and summaries end with "/<name>" when there is
// a name.
//
// The loss is the sum over the batch by default (TensorFlow 1.x): the metric "loss" is the mean of
// these sums over batches, "average_loss" the mean over examples.
//
// A head is immutable and may serve several graphs, on several threads.
// Failure: what is wrong with a head's options is told when it is used, with the source line that
// made it; what is wrong with logits, labels and weights goes into the scope, or ends the step
// where shapes and values are known only then. Messages begin with "Head '<name>'".

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/status.h"
#include "estimator/call_with.h"
#include "estimator/mode.h"
#include "estimator/model_fn.h"
#include "estimator/model_tensors.h"
#include "graph/scope.h"
#include "train/optimizer.h"

namespace millrace {

// Makes the operation that trains, from the loss; it counts the global step.
using TrainOpFn = std::function<Operation(const Scope& scope, Output loss)>;

struct HeadCall {
  const Features& features;
  Mode mode = Mode::kTrain;
  Output logits = {};
  // None when the model predicts.
  const Labels& labels;
  // Of kTrain, one of the two: the optimizer minimizes the loss and counts the global step.
  Optimizer* optimizer = nullptr;
  TrainOpFn train_op_fn = {};
  // Scalars that are added to the loss.
  std::vector<Output> regularization_losses = {};
  // For a MultiHead, in place of `logits`: those of each head, by its name.
  std::map<std::string, Output> logits_by_head = {};
};

class Head {
 public:
  virtual ~Head() = default;
  // "" when it has none.
  virtual const std::string& name() const = 0;
  // Size of the last dimension of logits; the first one is the batch.
  virtual int64_t logits_dimension() const = 0;
  // What is wrong with the options, if anything, with "; built at file:line".
  virtual Status status() const = 0;
  // What a model function returns. After an error, which is in the scope, it is not whole.
  virtual EstimatorSpec CreateEstimatorSpec(ScopeAt at, const HeadCall& call) const = 0;
};

using HeadPtr = std::shared_ptr<const Head>;

// A loss of one's own: a function of (ScopeAt, labels, logits) or (ScopeAt, labels, logits,
// features) that returns the losses of the elements, neither weighted nor reduced. Labels are as
// the head has prepared them: of the rank of logits, indices in place of words.
class LossFn {
 public:
  LossFn() = default;  // none: the head's own
  template <typename F>
    requires(!std::is_same_v<std::remove_cvref_t<F>, LossFn>)
  LossFn(F f) {  // NOLINT
    constexpr unsigned kTaken =
        estimator_internal::TakenArguments<F, 7, ScopeAt, Output, Output, const Features&>;
    static_assert(kTaken != estimator_internal::kNoArguments,
                  "a loss function takes (ScopeAt, Output labels, Output logits) and, if it wants "
                  "them, Features");
    call_ = [f = std::move(f)](ScopeAt at, Output labels, Output logits,
                               const Features& features) mutable -> Output {
      return estimator_internal::CallWith<kTaken>(
          f, std::tuple<ScopeAt, Output, Output, const Features&>(at, labels, logits, features));
    };
  }
  bool valid() const { return call_ != nullptr; }
  Output operator()(ScopeAt at, Output labels, Output logits, const Features& features) const {
    // Its own lines count.
    const Scope own = at.scope.BuiltWhereCalled();
    return call_(ScopeAt(own, at.where), std::move(labels), std::move(logits), features);
  }

 private:
  std::function<Output(ScopeAt, Output, Output, const Features&)> call_;
};

// The feature that says how much each example counts, in losses and metrics: numbers of shape
// [batch] or [batch, 1].
class WeightColumn {
 public:
  WeightColumn() = default;                                // none: all count 1
  WeightColumn(const char* key) : key_(key) {}             // NOLINT
  WeightColumn(std::string key) : key_(std::move(key)) {}  // NOLINT
  // What is computed from the feature before it is used.
  WeightColumn(std::string key, std::function<Output(ScopeAt, Output)> normalizer)
      : key_(std::move(key)), normalizer_(std::move(normalizer)) {}
  bool valid() const { return !key_.empty(); }
  const std::string& key() const { return key_; }
  const std::function<Output(ScopeAt, Output)>& normalizer() const { return normalizer_; }

 private:
  std::string key_;
  std::function<Output(ScopeAt, Output)> normalizer_;
};

}  // namespace millrace

#endif  // MILLRACE_ESTIMATOR_HEADS_HEAD_H_
