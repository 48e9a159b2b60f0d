// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_ESTIMATOR_HEADS_REGRESSION_HEAD_H_
#define MILLRACE_ESTIMATOR_HEADS_REGRESSION_HEAD_H_

// RegressionHead, PoissonRegressionHead, LogisticRegressionHead: numbers.
//
//   logits          [batch, label_dimension]
//   labels          of that shape, or [batch] for a dimension of 1: any numbers
//   weights         [batch], [batch, 1] or [batch, label_dimension]
//   loss            squared error; of counts, log Poisson loss; of shares in [0, 1], sigmoid cross
//                   entropy
//   predictions     predictions; with an inverse link (exp, sigmoid), which makes them of logits,
//                   logits, too
//   export          serving_default and regression: predictions; predict: all
//   metrics         average_loss, label/mean, prediction/mean
//
// Failure: as any head (estimator/heads/head.h).

#include <cstdint>
#include <functional>
#include <source_location>
#include <string>

#include "estimator/heads/head.h"
#include "graph/scope.h"
#include "layers/losses.h"

namespace millrace {

struct RegressionHeadOptions {
  int64_t label_dimension = 1;  // >= 1
  WeightColumn weight_column = {};
  LossReduction loss_reduction = LossReduction::kSum;
  LossFn loss_fn = {};  // losses of the shape of logits, of labels that are floats
  // What is predicted of logits ("mean function"); none: the logits themselves.
  std::function<Output(ScopeAt at, Output logits)> inverse_link_fn = {};
  std::string name = "";
};
HeadPtr RegressionHead(const RegressionHeadOptions& options = {},
                       std::source_location where = std::source_location::current());

struct PoissonRegressionHeadOptions {
  int64_t label_dimension = 1;
  WeightColumn weight_column = {};
  LossReduction loss_reduction = LossReduction::kSum;
  bool compute_full_loss = true;  // with Stirling's approximation of log(labels!)
  std::string name = "";
};
// Counts; logits are logarithms of their means.
HeadPtr PoissonRegressionHead(const PoissonRegressionHeadOptions& options = {},
                              std::source_location where = std::source_location::current());

struct LogisticRegressionHeadOptions {
  WeightColumn weight_column = {};
  LossReduction loss_reduction = LossReduction::kSum;
  std::string name = "";
};
// Shares or probabilities in [0, 1].
HeadPtr LogisticRegressionHead(const LogisticRegressionHeadOptions& options = {},
                               std::source_location where = std::source_location::current());

}  // namespace millrace

#endif  // MILLRACE_ESTIMATOR_HEADS_REGRESSION_HEAD_H_
