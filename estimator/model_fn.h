// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_ESTIMATOR_MODEL_FN_H_
#define MILLRACE_ESTIMATOR_MODEL_FN_H_

// ModelFn: the function that a user writes to say what a model is, for training, evaluation and
// prediction. EstimatorSpec: what it returns.
//
//   EstimatorSpec Line(const Scope& scope, const Features& features, const Labels& labels,
//                      Mode mode) {
//     Variable w = MakeVariable(scope.WithName("w"), Const(scope, 0.1f));
//     Output y = Mul(scope, w.value, features["x"]);
//     if (mode == Mode::kPredict) return {.mode = mode, .predictions = y};
//     Output loss = MeanSquaredErrorLoss(scope, labels, y);
//     if (mode == Mode::kEval) {
//       return {.mode = mode, .predictions = y, .loss = loss,
//               .eval_metric_ops = {{"mse", metrics::MeanSquaredError(scope, labels, y)}}};
//     }
//     return {.mode = mode, .predictions = y, .loss = loss,
//             .train_op = AdamOptimizer({}).Minimize(scope, loss,
//                                                    {.global_step = GlobalStep(scope)})};
//   }
//
// It takes the scope to build in and the features, and of (Labels, Mode, Params, RunConfig) those
// that it wants, in this order; features and labels as such or as the one Output that they are.
// It returns an EstimatorSpec or a StatusOr of one; errors of builders are in the scope. It is
// called once per graph, and there is a graph per call of Train, Evaluate, Predict or export.
//
// What a spec must have (CheckSpec):
//   kTrain    loss, train_op
//   kEval     loss
//   kPredict  predictions
// The loss has one element. Everything is of the scope's graph.
//
// A train_op must count the global step (Minimize does with .global_step), or a max_steps is never
// reached.
//
// Values. Thread-safety: those of the functions.
// Failure: InvalidArgument, naming the field.

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/status.h"
#include "estimator/call_with.h"
#include "estimator/export_output.h"  // IWYU pragma: export
#include "estimator/mode.h"           // IWYU pragma: export
#include "estimator/model_tensors.h"  // IWYU pragma: export
#include "estimator/params.h"         // IWYU pragma: export
#include "estimator/run_config.h"     // IWYU pragma: export
#include "graph/scope.h"
#include "saver/saver.h"
#include "train/metrics.h"
#include "train/session_creator.h"
#include "train/session_run_hook.h"

namespace millrace {

// Shared with the code that made them: a hook lives as long as one session that it was given to.
using Hooks = std::vector<std::shared_ptr<SessionRunHook>>;

struct EstimatorSpec {
  Mode mode = Mode::kTrain;  // the one that the function was called with
  Predictions predictions = {};
  Output loss = {};
  Operation train_op = {};
  std::map<std::string, metrics::Metric> eval_metric_ops = {};
  // Of kPredict; none: the predictions under "serving_default" (estimator/export_output.h).
  std::map<std::string, ExportOutput> export_outputs = {};
  // Training: of the chief alone; of every task that trains.
  Hooks training_chief_hooks = {};
  Hooks training_hooks = {};
  Scaffold scaffold = {};
  Hooks evaluation_hooks = {};
  Hooks prediction_hooks = {};
  // Keeps what `scaffold.saver` points to.
  std::shared_ptr<Saver> saver = nullptr;
};

// What a model function is called with.
struct ModelFnCall {
  const Scope& scope;
  const Features& features;
  const Labels& labels;
  Mode mode;
  const Params& params;
  const RunConfig& config;
};

class ModelFn {
 public:
  ModelFn() = default;  // none
  template <typename F>
    requires(!std::is_same_v<std::remove_cvref_t<F>, ModelFn>)
  ModelFn(F f) {  // NOLINT
    constexpr unsigned kTaken =
        estimator_internal::TakenArguments<F, 3, const Scope&, const Features&, const Labels&, Mode,
                                           const Params&, const RunConfig&>;
    static_assert(kTaken != estimator_internal::kNoArguments,
                  "a model function takes (const Scope&, Features) and, in this order, what it "
                  "wants of (Labels, Mode, Params, RunConfig)");
    if constexpr (kTaken != estimator_internal::kNoArguments) {
      takes_ = kTaken;
      call_ = [f = std::move(f)](const ModelFnCall& call) mutable -> StatusOr<EstimatorSpec> {
        return estimator_internal::CallWith<kTaken>(
            f, std::tuple<const Scope&, const Features&, const Labels&, Mode, const Params&,
                          const RunConfig&>(call.scope, call.features, call.labels, call.mode,
                                            call.params, call.config));
      };
    }
  }

  bool valid() const { return call_ != nullptr; }
  bool takes_labels() const { return (takes_ & 4u) != 0; }
  bool takes_params() const { return (takes_ & 16u) != 0; }
  // What the function returns, or the first error of its graph.
  StatusOr<EstimatorSpec> operator()(const ModelFnCall& call) const;

 private:
  std::function<StatusOr<EstimatorSpec>(const ModelFnCall&)> call_;
  unsigned takes_ = 0;
};

// What is wrong with `spec`, if anything, as what a call in `mode` has returned. A loss of one
// element becomes a scalar.
Status CheckSpec(const Scope& scope, Mode mode, EstimatorSpec* spec);

}  // namespace millrace

#endif  // MILLRACE_ESTIMATOR_MODEL_FN_H_
