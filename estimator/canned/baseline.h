// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_ESTIMATOR_CANNED_BASELINE_H_
#define MILLRACE_ESTIMATOR_CANNED_BASELINE_H_

// BaselineClassifier, BaselineRegressor, BaselineEstimator: models that ignore their features and
// learn what labels are like on average: what every other model has to beat.
//
// One variable, "baseline/bias", a number for each logit. Optimizer: FTRL at 0.3, also the learning
// rate of any other that is chosen by name.
//
// Failure: kept in the Estimator (its status()), with the line that made it.

#include <cstdint>
#include <source_location>
#include <string>
#include <vector>

#include "estimator/canned/optimizer_choice.h"
#include "estimator/estimator.h"
#include "estimator/heads/head.h"
#include "layers/losses.h"

namespace millrace {

struct BaselineClassifierOptions {
  int64_t n_classes = 2;
  WeightColumn weight_column = {};
  std::vector<std::string> label_vocabulary = {};
  OptimizerChoice optimizer = "Ftrl";
  LossReduction loss_reduction = LossReduction::kSum;
  bool predict_all_classes = false;  // estimator/heads/binary_head.h
};
Estimator BaselineClassifier(const BaselineClassifierOptions& options = {},
                             const EstimatorOptions& estimator_options = {},
                             std::source_location where = std::source_location::current());

struct BaselineRegressorOptions {
  int64_t label_dimension = 1;
  WeightColumn weight_column = {};
  OptimizerChoice optimizer = "Ftrl";
  LossReduction loss_reduction = LossReduction::kSum;
};
Estimator BaselineRegressor(const BaselineRegressorOptions& options = {},
                            const EstimatorOptions& estimator_options = {},
                            std::source_location where = std::source_location::current());

struct BaselineEstimatorOptions {
  HeadPtr head = nullptr;  // required
  OptimizerChoice optimizer = "Ftrl";
  // The head's, if it has one: not needed where labels are not, so it says nothing of the batch.
  WeightColumn weight_column = {};
};
// With a head of the caller's.
Estimator BaselineEstimator(const BaselineEstimatorOptions& options,
                            const EstimatorOptions& estimator_options = {},
                            std::source_location where = std::source_location::current());

}  // namespace millrace

#endif  // MILLRACE_ESTIMATOR_CANNED_BASELINE_H_
