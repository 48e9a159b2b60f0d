// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_ESTIMATOR_CANNED_DNN_LINEAR_COMBINED_H_
#define MILLRACE_ESTIMATOR_CANNED_DNN_LINEAR_COMBINED_H_

// DNNLinearCombinedClassifier, …Regressor, …Estimator: wide and deep. A network over dense columns
// and a weighted sum of columns, whose logits are added up, and which learn from one loss: each
// with an optimizer of its own for its own variables. A step counts once.
//
//   const Estimator income = DNNLinearCombinedClassifier(
//       {.linear_feature_columns = wide,
//        .dnn_feature_columns = deep,
//        .dnn_hidden_units = {100, 70, 48, 34}},
//       {.model_dir = "run"});
//
// One of the two may be left out. Names and summaries: estimator/canned/logits.h. Optimizers:
// Adagrad at 0.001 for the network, FTRL at min(0.005, 1 / sqrt(linear columns)) for the sum, also
// the learning rates of any others that are chosen by name. (Not those of the two models alone.)
//
// Failure: kept in the Estimator (its status()), with the line that made it, or the column.

#include <cstdint>
#include <optional>
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
#include "layers/weight.h"
#include "ops/nn/activations.h"

namespace millrace {

struct DNNLinearCombinedClassifierOptions {
  std::vector<FeatureColumn> linear_feature_columns = {};
  OptimizerChoice linear_optimizer = "Ftrl";
  std::vector<DenseColumn> dnn_feature_columns = {};
  OptimizerChoice dnn_optimizer = "Adagrad";
  std::vector<int64_t> dnn_hidden_units = {};  // required with dnn_feature_columns
  Activation dnn_activation_fn = Relu;
  std::optional<double> dnn_dropout = {};
  int64_t n_classes = 2;
  WeightColumn weight_column = {};
  std::vector<std::string> label_vocabulary = {};
  Partitioner input_layer_partitioner = {};  // of the columns' variables of both
  LossReduction loss_reduction = LossReduction::kSum;
  bool batch_norm = false;
  Combiner linear_sparse_combiner = Combiner::kSum;
  bool predict_all_classes = false;  // estimator/heads/binary_head.h
};
Estimator DNNLinearCombinedClassifier(const DNNLinearCombinedClassifierOptions& options,
                                      const EstimatorOptions& estimator_options = {},
                                      std::source_location where = std::source_location::current());

struct DNNLinearCombinedRegressorOptions {
  std::vector<FeatureColumn> linear_feature_columns = {};
  OptimizerChoice linear_optimizer = "Ftrl";
  std::vector<DenseColumn> dnn_feature_columns = {};
  OptimizerChoice dnn_optimizer = "Adagrad";
  std::vector<int64_t> dnn_hidden_units = {};
  Activation dnn_activation_fn = Relu;
  std::optional<double> dnn_dropout = {};
  int64_t label_dimension = 1;
  WeightColumn weight_column = {};
  Partitioner input_layer_partitioner = {};
  LossReduction loss_reduction = LossReduction::kSum;
  bool batch_norm = false;
  Combiner linear_sparse_combiner = Combiner::kSum;
};
Estimator DNNLinearCombinedRegressor(const DNNLinearCombinedRegressorOptions& options,
                                     const EstimatorOptions& estimator_options = {},
                                     std::source_location where = std::source_location::current());

struct DNNLinearCombinedEstimatorOptions {
  HeadPtr head = nullptr;  // required
  std::vector<FeatureColumn> linear_feature_columns = {};
  OptimizerChoice linear_optimizer = "Ftrl";
  std::vector<DenseColumn> dnn_feature_columns = {};
  OptimizerChoice dnn_optimizer = "Adagrad";
  std::vector<int64_t> dnn_hidden_units = {};
  Activation dnn_activation_fn = Relu;
  std::optional<double> dnn_dropout = {};
  Partitioner input_layer_partitioner = {};
  bool batch_norm = false;
  Combiner linear_sparse_combiner = Combiner::kSum;
};
// With a head of the caller's.
Estimator DNNLinearCombinedEstimator(const DNNLinearCombinedEstimatorOptions& options,
                                     const EstimatorOptions& estimator_options = {},
                                     std::source_location where = std::source_location::current());

}  // namespace millrace

#endif  // MILLRACE_ESTIMATOR_CANNED_DNN_LINEAR_COMBINED_H_
