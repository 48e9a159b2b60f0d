// SPDX-License-Identifier: Apache-2.0
//
// What a head's step costs besides its network: a step of training over batches of a census model
// (40) and larger ones, and what an evaluation does with one batch, streamed thresholds included.
//
//   bazel run -c opt //estimator/heads:heads_benchmark

#include <vector>

#include "absl/types/span.h"
#include "benchmark/benchmark.h"
#include "core/tensor.h"
#include "estimator/heads/binary_head.h"
#include "estimator/heads/head.h"
#include "estimator/heads/multi_class_head.h"
#include "estimator/mode.h"
#include "estimator/model_fn.h"
#include "estimator/model_tensors.h"
#include "graph/scope.h"
#include "layers/variable.h"
#include "ops/array/constant.h"
#include "ops/array/identity.h"
#include "ops/array/placeholder.h"
#include "ops/math/cwise_binary.h"
#include "runtime/session.h"
#include "train/gradient_descent.h"
#include "train/optimizer.h"

namespace millrace {
namespace {

void HeadSteps(benchmark::State& state, const HeadPtr& head, Mode mode) {
  const int64_t batch = state.range(0), classes = head->logits_dimension();
  const Scope root;
  GlobalStep(root);
  const Output given = Placeholder(root.WithName("given"), DT_FLOAT, {-1, classes});
  const Output labels = Placeholder(root.WithName("labels"), DT_INT64, {-1, 1});
  const Variable shift = MakeVariable(root.WithName("shift"), Const(root, 0.0f));
  GradientDescentOptimizer optimizer({.learning_rate = 0.01});
  const EstimatorSpec spec =
      head->CreateEstimatorSpec(root, {.features = {},
                                       .mode = mode,
                                       .logits = Add(root, given, shift.value),
                                       .labels = Labels(labels).In(root),
                                       .optimizer = mode == Mode::kTrain ? &optimizer : nullptr});
  const Operation init =
      Group(root, {GlobalVariablesInitializer(root), LocalVariablesInitializer(root)});
  const auto session = NewSession();
  if (!root.status().ok() || !session.ok() || !(*session)->Extend(root).ok() ||
      !(*session)->Run({}, {}, {init}).ok()) {
    return state.SkipWithError("no session");
  }
  Signature prepare = {.feeds = {given.name(), labels.name()}};
  if (mode == Mode::kTrain) {
    prepare.fetches = {spec.loss.name()};
    prepare.targets = {spec.train_op.name()};
  } else {
    for (const auto& [key, metric] : spec.eval_metric_ops) {
      prepare.fetches.push_back(metric.update.name());
    }
  }
  const auto step = (*session)->Prepare(prepare);
  if (!step.ok()) return state.SkipWithError(step.status().ToString().c_str());

  std::vector<float> logits(static_cast<size_t>(batch * classes));
  for (size_t i = 0; i < logits.size(); ++i) {
    logits[i] = static_cast<float>(i * 7919 % 1000) / 250 - 2;
  }
  std::vector<int64_t> ids(static_cast<size_t>(batch));
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(i * 31 % 2);
  const std::vector<Tensor> feeds = {*Tensor::FromValues<float>(Shape{batch, classes}, logits),
                                     *Tensor::FromValues<int64_t>(Shape{batch, 1}, ids)};
  std::vector<Tensor> results(prepare.fetches.size());
  for (auto _ : state) {
    if (!(*step)->RunInto(feeds, absl::MakeSpan(results)).ok()) {
      return state.SkipWithError("a step failed");
    }
  }
  state.SetItemsProcessed(state.iterations() * batch);
}

void BinaryTrains(benchmark::State& state) { HeadSteps(state, BinaryHead(), Mode::kTrain); }
BENCHMARK(BinaryTrains)->Arg(40)->Arg(1024)->Arg(32768);
void BinaryEvaluates(benchmark::State& state) { HeadSteps(state, BinaryHead(), Mode::kEval); }
BENCHMARK(BinaryEvaluates)->Arg(40)->Arg(1024)->Arg(32768);
void TenClassesTrain(benchmark::State& state) {
  HeadSteps(state, MultiClassHead(10), Mode::kTrain);
}
BENCHMARK(TenClassesTrain)->Arg(40)->Arg(1024);

}  // namespace
}  // namespace millrace
