// SPDX-License-Identifier: Apache-2.0
#include "estimator/add_metrics.h"

#include "estimator/estimator_parts.h"
#include "graph/scope.h"

namespace millrace {

Estimator AddMetrics(const Estimator& estimator, MetricFn metric_fn, std::source_location where) {
  if (!estimator.status().ok()) return estimator;
  if (!metric_fn.valid()) {
    return Estimator::ErrorAt(
        where, InvalidArgument("AddMetrics: metric_fn must be a function, got none"));
  }
  const auto model_fn = [model = estimator.model_fn(), metric_fn = std::move(metric_fn)](
                            const Scope& scope, const Features& features, const Labels& labels,
                            Mode mode, const Params& params,
                            const RunConfig& config) -> StatusOr<EstimatorSpec> {
    MR_ASSIGN_OR_RETURN(EstimatorSpec spec,
                        model(ModelFnCall{scope, features, labels, mode, params, config}));
    if (mode != Mode::kEval) return spec;
    MR_ASSIGN_OR_RETURN(MetricOps added,
                        metric_fn(scope, labels, spec.predictions.In(scope), features, config));
    for (auto& [name, metric] : added) spec.eval_metric_ops[name] = std::move(metric);
    return spec;
  };
  const EstimatorParts& parts = estimator.parts();
  return Estimator::MakeAt(where, model_fn,
                           {.config = parts.config,
                            .params = parts.params,
                            .warm_start_from = parts.warm_start,
                            .clock = parts.clock,
                            .file_system = parts.file_system});
}

}  // namespace millrace
