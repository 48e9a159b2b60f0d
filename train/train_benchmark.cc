// SPDX-License-Identifier: Apache-2.0
//
// What Train's loop costs above the bare prepared step: the same model, feeds and fetches.
//
//   bazel run -c opt //train:train_benchmark

#include <memory>
#include <optional>
#include <vector>

#include "benchmark/benchmark.h"
#include "core/tensor.h"
#include "layers/variable.h"
#include "ops/ops.h"
#include "runtime/session.h"
#include "train/gradient_descent.h"
#include "train/optimizer.h"
#include "train/train.h"

namespace millrace {
namespace {

struct Model {
  Model() {
    x = Placeholder(root.WithName("x"), DT_FLOAT, {4});
    t = Placeholder(root.WithName("t"), DT_FLOAT, {4});
    const Variable w = MakeVariable(root.WithName("w"), Const(root, 0.0f));
    loss = ReduceMean(root, Square(root, Sub(root, Mul(root, w.value, x), t)));
    step = GlobalStep(root);
    op = GradientDescentOptimizer({.learning_rate = 1e-3})
             .Minimize(root, loss, {.global_step = step});
  }
  Scope root;
  Output x, t, loss;
  Variable step;
  Operation op;
};

Tensor Batch() { return Tensor::Vector<float>({1, 2, 3, 4}); }

void PreparedSteps(benchmark::State& state) {
  Model model;
  const Output after = StepAfter(model.root, model.op, model.step);
  const Operation init = GlobalVariablesInitializer(model.root);
  const auto session = NewSession();
  if (!session.ok() || !(*session)->Extend(model.root).ok() ||
      !(*session)->Run({}, {}, {init}).ok()) {
    return state.SkipWithError("no session");
  }
  const auto step = (*session)->Prepare(
      {.feeds = {model.x.name(), model.t.name()}, .fetches = {after.name(), model.loss.name()}});
  if (!step.ok()) return state.SkipWithError(step.status().ToString().c_str());
  const std::vector<Tensor> feeds = {Batch(), Batch()};
  std::vector<Tensor> results(2);
  for (auto _ : state) {
    if (!(*step)->RunInto(feeds, absl::MakeSpan(results)).ok()) {
      return state.SkipWithError("a step failed");
    }
  }
}
BENCHMARK(PreparedSteps);

void TrainLoop(benchmark::State& state) {
  const Model model;
  const Tensor x = Batch(), t = Batch();
  const auto result = Train(model.root, model.op,
                            {.data = [&]() -> std::optional<Feeds> {
                               if (!state.KeepRunning()) return std::nullopt;
                               return Feeds{{model.x, x}, {model.t, t}};
                             },
                             .loss = model.loss,
                             .progress = false});
  if (!result.ok()) state.SkipWithError(result.status().ToString().c_str());
}
BENCHMARK(TrainLoop);

// The same with a progress line, to a file that swallows it.
void TrainLoopWithProgress(benchmark::State& state) {
  const Model model;
  const Tensor x = Batch(), t = Batch();
  const auto result = Train(model.root, model.op,
                            {.data = [&]() -> std::optional<Feeds> {
                               if (!state.KeepRunning()) return std::nullopt;
                               return Feeds{{model.x, x}, {model.t, t}};
                             },
                             .loss = model.loss});
  if (!result.ok()) state.SkipWithError(result.status().ToString().c_str());
}
BENCHMARK(TrainLoopWithProgress);

}  // namespace
}  // namespace millrace
