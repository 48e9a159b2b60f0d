// SPDX-License-Identifier: Apache-2.0
#include "estimator/canned/dnn_linear_combined.h"

#include <memory>
#include <utility>

#include "core/status.h"
#include "estimator/canned/logits.h"
#include "estimator/canned/premade.h"
#include "estimator/columns/column_lowering.h"
#include "estimator/columns/shared_ids.h"
#include "estimator/synced_optimizer.h"
#include "graph/scope.h"
#include "layers/variable.h"
#include "ops/math/cwise_binary.h"
#include "train/composite_optimizer.h"
#include "train/optimizer.h"

namespace millrace {
namespace {

constexpr double kDnnLearningRate = 0.001, kMaxLinearLearningRate = 0.005;

Status Check(const DNNLinearCombinedEstimatorOptions& options) {
  if (options.linear_feature_columns.empty() && options.dnn_feature_columns.empty()) {
    return InvalidArgument(
        "linear_feature_columns or dnn_feature_columns must be given, got none of both");
  }
  if (!options.linear_feature_columns.empty()) {
    MR_RETURN_IF_ERROR(CheckColumns("linear_feature_columns", options.linear_feature_columns));
    MR_RETURN_IF_ERROR(options.linear_optimizer.Check("linear_optimizer"));
  }
  if (options.dnn_feature_columns.empty()) return absl::OkStatus();
  MR_RETURN_IF_ERROR(CheckColumns("dnn_feature_columns", options.dnn_feature_columns));
  if (options.dnn_hidden_units.empty()) {
    return InvalidArgument("dnn_hidden_units must be given with dnn_feature_columns, got none");
  }
  MR_RETURN_IF_ERROR(CheckHiddenUnits("dnn_hidden_units", options.dnn_hidden_units));
  MR_RETURN_IF_ERROR(CheckDropout("dnn_dropout", options.dnn_dropout));
  return options.dnn_optimizer.Check("dnn_optimizer");
}

StatusOr<EstimatorSpec> Model(const DNNLinearCombinedEstimatorOptions& options, const Scope& scope,
                              const Features& features, const Labels& labels, Mode mode,
                              const RunConfig& config) {
  const bool has_dnn = !options.dnn_feature_columns.empty();
  const bool has_linear = !options.linear_feature_columns.empty();
  const int64_t units = options.head->logits_dimension();
  const ColumnLowering lowering = LoweringFor(mode, config);
  SharedIds shared_ids;
  if (has_dnn && has_linear && lowering == ColumnLowering::kFused) {
    shared_ids =
        MakeSharedIds(scope, features, options.dnn_feature_columns, options.linear_feature_columns);
  }
  std::shared_ptr<Optimizer> dnn_optimizer, linear_optimizer;
  Output logits;
  if (has_dnn) {
    if (mode == Mode::kTrain) {
      MR_ASSIGN_OR_RETURN(dnn_optimizer, options.dnn_optimizer.Make(scope, kDnnLearningRate));
    }
    logits = DnnLogits(scope, features, mode,
                       {.units = units,
                        .hidden_units = options.dnn_hidden_units,
                        .feature_columns = options.dnn_feature_columns,
                        .activation_fn = options.dnn_activation_fn,
                        .dropout = options.dnn_dropout,
                        .batch_norm = options.batch_norm,
                        .num_ps = config.num_ps_replicas(),
                        .input_layer_partitioner = options.input_layer_partitioner,
                        .partition_tables_above = config.partition_tables_above(),
                        .lowering = lowering,
                        .shared_ids = shared_ids})
                 .logits;
  }
  if (has_linear) {
    if (mode == Mode::kTrain) {
      MR_ASSIGN_OR_RETURN(linear_optimizer,
                          options.linear_optimizer.Make(
                              scope, LinearLearningRate(kMaxLinearLearningRate,
                                                        options.linear_feature_columns.size())));
    }
    const NetworkLogits linear =
        LinearLogits(scope, features, mode,
                     {.units = units,
                      .feature_columns = options.linear_feature_columns,
                      .sparse_combiner = options.linear_sparse_combiner,
                      .num_ps = config.num_ps_replicas(),
                      .partitioner = options.input_layer_partitioner,
                      .partition_tables_above = config.partition_tables_above(),
                      .lowering = lowering,
                      .shared_ids = shared_ids});
    if (mode == Mode::kTrain) AddLayerSummary(linear.scope, "linear", linear.logits);
    logits = has_dnn ? Add(scope.WithName("add"), logits, linear.logits) : linear.logits;
  }
  MR_RETURN_IF_ERROR(scope.status());
  const auto train = [&](const Scope& given, const Output& loss) {
    const Scope in = given.BuiltAt(scope.built_at());
    std::vector<CompositeOptimizer::Part> parts;
    if (has_dnn) parts.push_back({dnn_optimizer, TrainablesUnder(in, "dnn/")});
    if (has_linear) parts.push_back({linear_optimizer, TrainablesUnder(in, "linear/")});
    // Counts the step once; a synchronous step is one round of both.
    const auto both =
        SyncedOptimizer(std::make_shared<CompositeOptimizer>(std::move(parts)), config);
    return both->Minimize(in, loss, {.global_step = GlobalStep(in)});
  };
  return options.head->CreateEstimatorSpec(
      scope, {.features = features,
              .mode = mode,
              .logits = logits,
              .labels = labels,
              .train_op_fn = mode == Mode::kTrain ? TrainOpFn(train) : TrainOpFn()});
}

Estimator Combined(const char* name, const DNNLinearCombinedEstimatorOptions& options,
                   const EstimatorOptions& estimator_options, std::source_location where) {
  const auto model = [options, where](const Scope& scope, const Features& features,
                                      const Labels& labels, Mode mode, const RunConfig& config) {
    return Model(options, scope.BuiltAt(where), features, labels, mode, config);
  };
  return MakePremade(name, where, options.head, Check(options), model, estimator_options);
}

// The options of the network and the sum, of a classifier's or regressor's, with `head`.
template <typename Options>
DNNLinearCombinedEstimatorOptions WithHead(const Options& options, HeadPtr head) {
  return {.head = std::move(head),
          .linear_feature_columns = options.linear_feature_columns,
          .linear_optimizer = options.linear_optimizer,
          .dnn_feature_columns = options.dnn_feature_columns,
          .dnn_optimizer = options.dnn_optimizer,
          .dnn_hidden_units = options.dnn_hidden_units,
          .dnn_activation_fn = options.dnn_activation_fn,
          .dnn_dropout = options.dnn_dropout,
          .input_layer_partitioner = options.input_layer_partitioner,
          .batch_norm = options.batch_norm,
          .linear_sparse_combiner = options.linear_sparse_combiner};
}

}  // namespace

Estimator DNNLinearCombinedClassifier(const DNNLinearCombinedClassifierOptions& options,
                                      const EstimatorOptions& estimator_options,
                                      std::source_location where) {
  HeadPtr head = ClassifierHeadOf(options, where);
  return Combined("DNNLinearCombinedClassifier", WithHead(options, std::move(head)),
                  estimator_options, where);
}

Estimator DNNLinearCombinedRegressor(const DNNLinearCombinedRegressorOptions& options,
                                     const EstimatorOptions& estimator_options,
                                     std::source_location where) {
  HeadPtr head = RegressorHeadOf(options, where);
  return Combined("DNNLinearCombinedRegressor", WithHead(options, std::move(head)),
                  estimator_options, where);
}

Estimator DNNLinearCombinedEstimator(const DNNLinearCombinedEstimatorOptions& options,
                                     const EstimatorOptions& estimator_options,
                                     std::source_location where) {
  return Combined("DNNLinearCombinedEstimator", options, estimator_options, where);
}

}  // namespace millrace
