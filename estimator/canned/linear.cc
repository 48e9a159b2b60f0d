// SPDX-License-Identifier: Apache-2.0
#include "estimator/canned/linear.h"

#include <memory>
#include <utility>

#include "core/status.h"
#include "estimator/canned/logits.h"
#include "estimator/canned/premade.h"
#include "estimator/synced_optimizer.h"
#include "graph/scope.h"
#include "train/ftrl.h"
#include "train/optimizer.h"

namespace millrace {
namespace {

constexpr double kLearningRate = 0.2;

Status Check(const LinearEstimatorOptions& options) {
  MR_RETURN_IF_ERROR(CheckColumns("feature_columns", options.feature_columns));
  return options.optimizer.Check("optimizer");
}

Estimator Linear(const char* name, LinearEstimatorOptions options,
                 const EstimatorOptions& estimator_options, std::source_location where) {
  if (!options.optimizer.valid() && !options.feature_columns.empty()) {
    options.optimizer = FtrlOptions{
        .learning_rate = LinearLearningRate(kLearningRate, options.feature_columns.size())};
  }
  const auto model = [options, where](const Scope& given, const Features& features,
                                      const Labels& labels, Mode mode,
                                      const RunConfig& config) -> StatusOr<EstimatorSpec> {
    const Scope scope = given.BuiltAt(where);
    std::shared_ptr<Optimizer> optimizer;
    if (mode == Mode::kTrain) {
      MR_ASSIGN_OR_RETURN(optimizer, options.optimizer.Make(scope, kLearningRate));
      optimizer = SyncedOptimizer(std::move(optimizer), config);
    }
    const NetworkLogits linear =
        LinearLogits(scope, features, mode,
                     {.units = options.head->logits_dimension(),
                      .feature_columns = options.feature_columns,
                      .sparse_combiner = options.sparse_combiner,
                      .num_ps = config.num_ps_replicas(),
                      .partitioner = options.partitioner,
                      .partition_tables_above = config.partition_tables_above(),
                      .lowering = LoweringFor(mode, config)});
    return options.head->CreateEstimatorSpec(linear.scope, {.features = features,
                                                            .mode = mode,
                                                            .logits = linear.logits,
                                                            .labels = labels,
                                                            .optimizer = optimizer.get()});
  };
  return MakePremade(name, where, options.head, Check(options), model, estimator_options);
}

}  // namespace

Estimator LinearClassifier(const LinearClassifierOptions& options,
                           const EstimatorOptions& estimator_options, std::source_location where) {
  return Linear("LinearClassifier",
                {.head = ClassifierHeadOf(options, where),
                 .feature_columns = options.feature_columns,
                 .optimizer = options.optimizer,
                 .partitioner = options.partitioner,
                 .sparse_combiner = options.sparse_combiner},
                estimator_options, where);
}

Estimator LinearRegressor(const LinearRegressorOptions& options,
                          const EstimatorOptions& estimator_options, std::source_location where) {
  return Linear("LinearRegressor",
                {.head = RegressorHeadOf(options, where),
                 .feature_columns = options.feature_columns,
                 .optimizer = options.optimizer,
                 .partitioner = options.partitioner,
                 .sparse_combiner = options.sparse_combiner},
                estimator_options, where);
}

Estimator LinearEstimator(const LinearEstimatorOptions& options,
                          const EstimatorOptions& estimator_options, std::source_location where) {
  return Linear("LinearEstimator", options, estimator_options, where);
}

}  // namespace millrace
