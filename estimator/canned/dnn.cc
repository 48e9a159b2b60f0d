// SPDX-License-Identifier: Apache-2.0
#include "estimator/canned/dnn.h"

#include <memory>
#include <utility>

#include "core/status.h"
#include "estimator/canned/logits.h"
#include "estimator/canned/premade.h"
#include "estimator/synced_optimizer.h"
#include "graph/scope.h"
#include "train/optimizer.h"

namespace millrace {
namespace {

constexpr double kLearningRate = 0.05;

Status Check(const DNNEstimatorOptions& options) {
  MR_RETURN_IF_ERROR(CheckColumns("feature_columns", options.feature_columns));
  MR_RETURN_IF_ERROR(CheckHiddenUnits("hidden_units", options.hidden_units));
  MR_RETURN_IF_ERROR(CheckDropout("dropout", options.dropout));
  return options.optimizer.Check("optimizer");
}

Estimator Dnn(const char* name, const DNNEstimatorOptions& options,
              const EstimatorOptions& estimator_options, std::source_location where) {
  const auto model = [options, where](const Scope& given, const Features& features,
                                      const Labels& labels, Mode mode,
                                      const RunConfig& config) -> StatusOr<EstimatorSpec> {
    const Scope scope = given.BuiltAt(where);
    std::shared_ptr<Optimizer> optimizer;
    if (mode == Mode::kTrain) {
      MR_ASSIGN_OR_RETURN(optimizer, options.optimizer.Make(scope, kLearningRate));
      optimizer = SyncedOptimizer(std::move(optimizer), config);
    }
    const NetworkLogits dnn = DnnLogits(scope, features, mode,
                                        {.units = options.head->logits_dimension(),
                                         .hidden_units = options.hidden_units,
                                         .feature_columns = options.feature_columns,
                                         .activation_fn = options.activation_fn,
                                         .dropout = options.dropout,
                                         .batch_norm = options.batch_norm,
                                         .num_ps = config.num_ps_replicas(),
                                         .input_layer_partitioner = options.input_layer_partitioner,
                                         .partition_tables_above = config.partition_tables_above(),
                                         .lowering = LoweringFor(mode, config)});
    return options.head->CreateEstimatorSpec(dnn.scope, {.features = features,
                                                         .mode = mode,
                                                         .logits = dnn.logits,
                                                         .labels = labels,
                                                         .optimizer = optimizer.get()});
  };
  return MakePremade(name, where, options.head, Check(options), model, estimator_options);
}

}  // namespace

Estimator DNNClassifier(const DNNClassifierOptions& options,
                        const EstimatorOptions& estimator_options, std::source_location where) {
  return Dnn("DNNClassifier",
             {.head = ClassifierHeadOf(options, where),
              .hidden_units = options.hidden_units,
              .feature_columns = options.feature_columns,
              .optimizer = options.optimizer,
              .activation_fn = options.activation_fn,
              .dropout = options.dropout,
              .input_layer_partitioner = options.input_layer_partitioner,
              .batch_norm = options.batch_norm},
             estimator_options, where);
}

Estimator DNNRegressor(const DNNRegressorOptions& options,
                       const EstimatorOptions& estimator_options, std::source_location where) {
  return Dnn("DNNRegressor",
             {.head = RegressorHeadOf(options, where),
              .hidden_units = options.hidden_units,
              .feature_columns = options.feature_columns,
              .optimizer = options.optimizer,
              .activation_fn = options.activation_fn,
              .dropout = options.dropout,
              .input_layer_partitioner = options.input_layer_partitioner,
              .batch_norm = options.batch_norm},
             estimator_options, where);
}

Estimator DNNEstimator(const DNNEstimatorOptions& options,
                       const EstimatorOptions& estimator_options, std::source_location where) {
  return Dnn("DNNEstimator", options, estimator_options, where);
}

}  // namespace millrace
