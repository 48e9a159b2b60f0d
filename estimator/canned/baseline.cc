// SPDX-License-Identifier: Apache-2.0
#include "estimator/canned/baseline.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/dtype.h"
#include "core/shape.h"
#include "core/status.h"
#include "estimator/canned/premade.h"
#include "estimator/synced_optimizer.h"
#include "graph/scope.h"
#include "layers/initializers.h"
#include "layers/variable.h"
#include "ops/array/concat.h"
#include "ops/array/constant.h"
#include "ops/array/identity.h"
#include "ops/array/reshape.h"
#include "ops/array/slice.h"
#include "ops/control/asserts.h"
#include "ops/math/cwise_binary.h"
#include "ops/math/reduction.h"
#include "train/optimizer.h"

namespace millrace {
namespace {

constexpr double kLearningRate = 0.3;

// The number of examples, as an int64 vector of one; that of each feature is the same, or the step
// ends.
Output BatchSize(const Scope& scope, const Features& features, const WeightColumn& weight_column) {
  const Output zero = Const<int32_t>(scope, {0}), one = Const<int32_t>(scope, {1});
  std::vector<Output> sizes, told;
  const auto add = [&](const std::string& name, const Output& dims) {
    sizes.push_back(StridedSlice(scope, dims, zero, one, one));
    told.push_back(Const(scope, absl::StrCat("'", name, "'")));
    told.push_back(sizes.back());
  };
  for (const auto& [name, tensor] : features.map()) {
    if (name == weight_column.key()) continue;
    add(name, ShapeOf(scope, tensor, {.out_type = DT_INT64}));
  }
  for (const auto& [name, tensor] : features.sparse_map()) add(name, tensor.dense_shape);
  if (sizes.empty()) {
    scope.UpdateStatus(
        InvalidArgument("Baseline: features must have one besides the weights, which "
                        "says how many examples there are, got none"),
        ScopeAt(scope).where);
    return Output();
  }
  if (sizes.size() == 1) return sizes[0];
  const Output all = ConcatV2(scope, sizes, Const(scope, int32_t{0}));
  told.insert(told.begin(),
              Const(scope, "Baseline: features must have one number of examples, got"));
  const Operation same =
      Assert(scope, ReduceAll(scope, Equal(scope, all, sizes[0])), told, {.summarize = -1});
  if (!same.valid()) return Output();
  return Identity(scope.WithControlDependencies({same}), sizes[0]);
}

Estimator Baseline(const char* name, const BaselineEstimatorOptions& options,
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
    const int64_t units = options.head->logits_dimension();
    const Scope own = scope.WithSubScope("baseline");
    const Variable bias = MakeVariable(scope.WithRootPrefix().WithName("baseline/bias"),
                                       Shape{units}, DT_FLOAT, ZerosInitializer());
    const Output batch = BatchSize(own, features, options.weight_column);
    MR_RETURN_IF_ERROR(scope.status());
    const Output dims =
        ConcatV2(own, {batch, Const<int64_t>(own, {units})}, Const(own, int32_t{0}));
    const Output logits = Mul(own, bias.value, Fill(own, dims, Const(own, 1.0f)));
    return options.head->CreateEstimatorSpec(scope, {.features = features,
                                                     .mode = mode,
                                                     .logits = logits,
                                                     .labels = labels,
                                                     .optimizer = optimizer.get()});
  };
  return MakePremade(name, where, options.head, options.optimizer.Check("optimizer"), model,
                     estimator_options);
}

}  // namespace

Estimator BaselineClassifier(const BaselineClassifierOptions& options,
                             const EstimatorOptions& estimator_options,
                             std::source_location where) {
  return Baseline("BaselineClassifier",
                  {.head = ClassifierHeadOf(options, where),
                   .optimizer = options.optimizer,
                   .weight_column = options.weight_column},
                  estimator_options, where);
}

Estimator BaselineRegressor(const BaselineRegressorOptions& options,
                            const EstimatorOptions& estimator_options, std::source_location where) {
  return Baseline("BaselineRegressor",
                  {.head = RegressorHeadOf(options, where),
                   .optimizer = options.optimizer,
                   .weight_column = options.weight_column},
                  estimator_options, where);
}

Estimator BaselineEstimator(const BaselineEstimatorOptions& options,
                            const EstimatorOptions& estimator_options, std::source_location where) {
  return Baseline("BaselineEstimator", options, estimator_options, where);
}

}  // namespace millrace
