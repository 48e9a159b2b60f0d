// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_ESTIMATOR_CANNED_DNN_H_
#define MILLRACE_ESTIMATOR_CANNED_DNN_H_

// DNNClassifier, DNNRegressor, DNNEstimator: a network of dense layers over dense columns.
//
//   const Estimator digits = DNNClassifier({.hidden_units = {128, 64},
//                                           .feature_columns = {NumericColumn("pixels", {.shape =
//                                               {784}})},
//                                           .n_classes = 10},
//                                          {.model_dir = "run"});
//
// Layers, names and summaries: estimator/canned/logits.h. Optimizer: Adagrad at 0.05, also the
// learning rate of any other that is chosen by name.
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
#include "layers/losses.h"
#include "layers/partitioner.h"
#include "layers/weight.h"
#include "ops/nn/activations.h"

namespace millrace {

struct DNNClassifierOptions {
  std::vector<int64_t> hidden_units = {};         // of each layer
  std::vector<DenseColumn> feature_columns = {};  // required
  int64_t n_classes = 2;
  WeightColumn weight_column = {};
  std::vector<std::string> label_vocabulary = {};  // for labels that are words
  OptimizerChoice optimizer = "Adagrad";
  Activation activation_fn = Relu;
  std::optional<double> dropout = {};
  Partitioner input_layer_partitioner = {};
  LossReduction loss_reduction = LossReduction::kSum;
  bool batch_norm = false;
  bool predict_all_classes = false;  // estimator/heads/binary_head.h
};
Estimator DNNClassifier(const DNNClassifierOptions& options,
                        const EstimatorOptions& estimator_options = {},
                        std::source_location where = std::source_location::current());

struct DNNRegressorOptions {
  std::vector<int64_t> hidden_units = {};
  std::vector<DenseColumn> feature_columns = {};
  int64_t label_dimension = 1;
  WeightColumn weight_column = {};
  OptimizerChoice optimizer = "Adagrad";
  Activation activation_fn = Relu;
  std::optional<double> dropout = {};
  Partitioner input_layer_partitioner = {};
  LossReduction loss_reduction = LossReduction::kSum;
  bool batch_norm = false;
};
Estimator DNNRegressor(const DNNRegressorOptions& options,
                       const EstimatorOptions& estimator_options = {},
                       std::source_location where = std::source_location::current());

struct DNNEstimatorOptions {
  HeadPtr head = nullptr;  // required
  std::vector<int64_t> hidden_units = {};
  std::vector<DenseColumn> feature_columns = {};
  OptimizerChoice optimizer = "Adagrad";
  Activation activation_fn = Relu;
  std::optional<double> dropout = {};
  Partitioner input_layer_partitioner = {};
  bool batch_norm = false;
};
// With a head of the caller's.
Estimator DNNEstimator(const DNNEstimatorOptions& options,
                       const EstimatorOptions& estimator_options = {},
                       std::source_location where = std::source_location::current());

}  // namespace millrace

#endif  // MILLRACE_ESTIMATOR_CANNED_DNN_H_
