// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_ESTIMATOR_HEADS_LOSS_HEAD_H_
#define MILLRACE_ESTIMATOR_HEADS_LOSS_HEAD_H_

// LossHead: a head with one loss. What heads share is here: the order of things, the weighting and
// reduction of losses, regularization, the training operation, summaries. What distinguishes a head
// is what it overrides: how logits become predictions, labels become numbers, and both a loss, and
// what is measured.
//
// In the order in which it happens, in the scope of the head's name:
//
//   logits -> Predict -> [kPredict: done]
//          -> labels -> UnreducedLoss -> weighted, reduced, regularized
//          -> [kEval: Measure, done]
//          -> training operation, with what the collection "update_ops" has; summaries
//
// For authors of heads. Threads and failure: estimator/heads/head.h.

#include <cstdint>
#include <map>
#include <source_location>
#include <string>
#include <vector>

#include "core/status.h"
#include "estimator/export_output.h"
#include "estimator/heads/head.h"
#include "estimator/heads/head_inputs.h"
#include "estimator/model_fn.h"
#include "estimator/model_tensors.h"
#include "graph/scope.h"
#include "layers/losses.h"
#include "ops/array/number_or_output.h"
#include "train/metrics.h"

namespace millrace {

// The options that all heads of one loss have.
struct LossHeadOptions {
  int64_t logits_dimension = 1;
  std::string name = "";
  WeightColumn weight_column = {};
  bool per_logit_weights = false;
  LossReduction loss_reduction = LossReduction::kSum;
  LossFn loss_fn = {};
  int64_t loss_dimension = 1;  // of the losses of one example: 1, or logits_dimension
  // What is wrong with the head's other options, and the line that made it.
  Status status = {};
  std::source_location where = {};
};

using MetricMap = std::map<std::string, metrics::Metric>;

class LossHead : public Head {
 public:
  const std::string& name() const override { return options_.name; }
  int64_t logits_dimension() const override { return options_.logits_dimension; }
  Status status() const override;
  EstimatorSpec CreateEstimatorSpec(ScopeAt at, const HeadCall& call) const override;

 protected:
  explicit LossHead(LossHeadOptions options);

  struct Predicted {
    Predictions::Map predictions;
    std::map<std::string, ExportOutput> export_outputs;
  };
  // In the head's scope. `mode`: exports are wanted in kPredict alone.
  virtual Predicted Predict(const HeadInputs& in, const Output& logits, Mode mode) const = 0;
  // Labels as numbers that fit the logits; floats, or indices of classes.
  virtual Output LabelsAsNumbers(const HeadInputs& in, const Labels& labels,
                                 const Output& logits) const = 0;
  // [D0, ..., loss_dimension], without weights. Not called where there is a loss_fn.
  virtual Output UnreducedLoss(const HeadInputs& in, const Output& labels,
                               const Output& logits) const = 0;

  struct Measured {
    const Predictions::Map& predictions;
    Output labels;           // as numbers
    NumberOrOutput weights;  // 1, or [D0, ..., 1]
    Output unreduced_loss;
  };
  // Adds what is measured besides the losses, by keys without the head's name, in `scope`.
  virtual void Measure(ScopeAt at, const Measured& measured, MetricMap* metrics) const = 0;

 private:
  Status WrongOptions() const;
  const LossHeadOptions options_;
};

// An error with the line that it is built at, as a Scope tells it; OK stays OK.
Status BuiltAt(const Status& status, std::source_location where);

// InvalidArgument for a threshold outside of (0, 1), by the name of the head's function.
Status CheckThresholds(const char* head, const std::vector<double>& thresholds);

// The operation that trains, with what the collection "update_ops" has. Invalid, with the error in
// the scope, when the call has none or two ways to make one.
Operation TrainOpOf(const HeadInputs& in, const HeadCall& call, const Output& loss);

// "<key>/<head's name>", or the key without a name.
std::string KeyOfHead(const std::string& key, const std::string& head_name);

}  // namespace millrace

#endif  // MILLRACE_ESTIMATOR_HEADS_LOSS_HEAD_H_
