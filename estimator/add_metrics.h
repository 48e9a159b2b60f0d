// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_ESTIMATOR_ADD_METRICS_H_
#define MILLRACE_ESTIMATOR_ADD_METRICS_H_

// AddMetrics: an Estimator that measures more when it evaluates.
//
//   Estimator houses = AddMetrics(
//       DNNLinearCombinedRegressor(...),
//       [](const Scope& scope, const Labels& labels, const Predictions& predictions) -> MetricOps {
//         return {{"rmse", metrics::RootMeanSquaredError(scope, labels,
//                                                        predictions["predictions"])}};
//       });
//
// The function takes the scope and, in this order, what it wants of (Labels, Predictions, Features,
// RunConfig); it returns MetricOps or a StatusOr of them. Of two metrics of one name its own
// counts. The new Estimator trains, predicts and exports as the other one, in the same model_dir.
//
// Failure: of the other Estimator, of the function and its graph.

#include <functional>
#include <map>
#include <source_location>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "core/status.h"
#include "estimator/call_with.h"
#include "estimator/estimator.h"
#include "graph/scope.h"
#include "train/metrics.h"

namespace millrace {

using MetricOps = std::map<std::string, metrics::Metric>;

class MetricFn {
 public:
  MetricFn() = default;  // none
  template <typename F>
    requires(!std::is_same_v<std::remove_cvref_t<F>, MetricFn>)
  MetricFn(F f) {  // NOLINT
    constexpr unsigned kTaken =
        estimator_internal::TakenArguments<F, 1, const Scope&, const Labels&, const Predictions&,
                                           const Features&, const RunConfig&>;
    static_assert(kTaken != estimator_internal::kNoArguments,
                  "a metric function takes (const Scope&) and, in this order, what it wants of "
                  "(Labels, Predictions, Features, RunConfig)");
    if constexpr (kTaken != estimator_internal::kNoArguments) {
      call_ = [f = std::move(f)](const Scope& scope, const Labels& labels,
                                 const Predictions& predictions, const Features& features,
                                 const RunConfig& config) mutable -> StatusOr<MetricOps> {
        return estimator_internal::CallWith<kTaken>(
            f, std::tuple<const Scope&, const Labels&, const Predictions&, const Features&,
                          const RunConfig&>(scope, labels, predictions, features, config));
      };
    }
  }
  bool valid() const { return call_ != nullptr; }
  StatusOr<MetricOps> operator()(const Scope& scope, const Labels& labels,
                                 const Predictions& predictions, const Features& features,
                                 const RunConfig& config) const {
    return call_(scope, labels, predictions, features, config);
  }

 private:
  std::function<StatusOr<MetricOps>(const Scope&, const Labels&, const Predictions&,
                                    const Features&, const RunConfig&)>
      call_;
};

Estimator AddMetrics(const Estimator& estimator, MetricFn metric_fn,
                     std::source_location where = std::source_location::current());

}  // namespace millrace

#endif  // MILLRACE_ESTIMATOR_ADD_METRICS_H_
