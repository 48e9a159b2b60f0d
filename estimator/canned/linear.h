// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_ESTIMATOR_CANNED_LINEAR_H_
#define MILLRACE_ESTIMATOR_CANNED_LINEAR_H_

// LinearClassifier, LinearRegressor, LinearEstimator: a weighted sum of columns.
//
//   const Estimator income = LinearClassifier({.feature_columns = {occupation, ages, cross}},
//                                             {.model_dir = "run"});
//
// Names and summaries: estimator/canned/logits.h. Optimizer: FTRL at 0.2, also the learning rate of
// any other that is chosen by name; without one, `.optimizer = {}`, FTRL at min(0.2, 1 /
// sqrt(columns)).
//
// Failure: kept in the Estimator (its status()), with the line that made it, or the column.

#include <cstdint>
#include <source_location>
#include <string>
#include <vector>

#include "estimator/canned/optimizer_choice.h"
#include "estimator/columns/feature_column.h"
#include "estimator/estimator.h"
#include "estimator/heads/head.h"
#include "layers/embedding.h"
#include "layers/losses.h"
#include "layers/partitioner.h"

namespace millrace {

struct LinearClassifierOptions {
  std::vector<FeatureColumn> feature_columns = {};  // required
  int64_t n_classes = 2;
  WeightColumn weight_column = {};
  std::vector<std::string> label_vocabulary = {};
  OptimizerChoice optimizer = "Ftrl";
  Partitioner partitioner = {};
  LossReduction loss_reduction = LossReduction::kSum;
  Combiner sparse_combiner = Combiner::kSum;  // of a categorical column with several ids
  bool predict_all_classes = false;           // estimator/heads/binary_head.h
};
Estimator LinearClassifier(const LinearClassifierOptions& options,
                           const EstimatorOptions& estimator_options = {},
                           std::source_location where = std::source_location::current());

struct LinearRegressorOptions {
  std::vector<FeatureColumn> feature_columns = {};
  int64_t label_dimension = 1;
  WeightColumn weight_column = {};
  OptimizerChoice optimizer = "Ftrl";
  Partitioner partitioner = {};
  LossReduction loss_reduction = LossReduction::kSum;
  Combiner sparse_combiner = Combiner::kSum;
};
Estimator LinearRegressor(const LinearRegressorOptions& options,
                          const EstimatorOptions& estimator_options = {},
                          std::source_location where = std::source_location::current());

struct LinearEstimatorOptions {
  HeadPtr head = nullptr;  // required
  std::vector<FeatureColumn> feature_columns = {};
  OptimizerChoice optimizer = "Ftrl";
  Partitioner partitioner = {};
  Combiner sparse_combiner = Combiner::kSum;
};
// With a head of the caller's.
Estimator LinearEstimator(const LinearEstimatorOptions& options,
                          const EstimatorOptions& estimator_options = {},
                          std::source_location where = std::source_location::current());

}  // namespace millrace

#endif  // MILLRACE_ESTIMATOR_CANNED_LINEAR_H_
