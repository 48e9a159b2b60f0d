// SPDX-License-Identifier: Apache-2.0
//
// Two dense layers of 2048 x 2048, asked for one row at a time, batched by what waits and not
// batched; by one client and by 64. For people:
//
//   bazel run -c opt //serving/batching:batching_benchmark

#include <cstdint>
#include <memory>
#include <random>
#include <utility>

#include "absl/types/span.h"
#include "benchmark/benchmark.h"
#include "core/shape.h"
#include "core/status.h"
#include "core/tensor.h"
#include "graph/scope.h"
#include "ops/ops.h"
#include "runtime/session.h"
#include "serving/batching/batching.h"
#include "serving/run_step.h"
#include "serving/step_bounds.h"
#include "serving/step_runner.h"

namespace millrace {
namespace {

constexpr int64_t kWidth = 2048;

// The model and its runner, for all threads of a benchmark.
struct Served {
  std::unique_ptr<Session> session;
  std::unique_ptr<PreparedStep> step;
  std::unique_ptr<Batching> batching;
  std::shared_ptr<StepRunner> runner;
};

template <typename T>
T OrEnd(StatusOr<T> value) {
  if (!value.ok()) EndProgram(value.status());
  return *std::move(value);
}

// Values of their own: pages of zeros may be one page, which stays in the first cache.
Tensor Weights() {
  static std::minstd_rand random;
  Tensor weights = OrEnd(Tensor::Allocate(DT_FLOAT, Shape{kWidth, kWidth}));
  std::uniform_real_distribution<float> values(-0.05f, 0.05f);
  for (float& value : weights.mutable_flat<float>()) value = values(random);
  return weights;
}

Served* NewServed() {
  auto served = std::make_unique<Served>();
  const Scope root;
  const Output x = Placeholder(root.WithName("x"), DT_FLOAT, {-1, kWidth});
  const Output first = Const(root, Weights());
  const Output second = Const(root, Weights());
  const Output bias = Const(root, OrEnd(Tensor::Zeros(DT_FLOAT, Shape{kWidth})));
  const Output hidden = Relu(root, BiasAdd(root, MatMul(root, x, first), bias));
  BiasAdd(root.WithName("y"), MatMul(root, hidden, second), bias);
  served->session = OrEnd(NewSession());
  if (const Status extended = served->session->Extend(root); !extended.ok()) EndProgram(extended);
  served->step = OrEnd(served->session->Prepare(Signature{.feeds = {"x"}, .fetches = {"y"}}));
  served->batching = OrEnd(Batching::Create({}));
  served->runner = OrEnd(served->batching->RunnerOf("the benchmark", ""));
  return served.release();
}

void Ask(benchmark::State& state, bool batched) {
  static Served* const served = NewServed();
  Tensor row = OrEnd(Tensor::Allocate(DT_FLOAT, Shape{1, kWidth}));
  for (float& value : row.mutable_flat<float>()) value = 0.5f;
  Tensor result;
  for (auto _ : state) {
    const Status status = batched
                              ? served->runner->Run(served->step.get(), {}, {&row, 1}, {&result, 1})
                              : RunStep(served->step.get(), {}, {&row, 1}, {&result, 1});
    if (!status.ok()) EndProgram(status);
  }
  state.SetItemsProcessed(state.iterations());
}

void Unbatched(benchmark::State& state) { Ask(state, false); }
void Batched(benchmark::State& state) { Ask(state, true); }
BENCHMARK(Unbatched)->Threads(1)->Threads(64)->UseRealTime();
BENCHMARK(Batched)->Threads(1)->Threads(64)->UseRealTime();

}  // namespace
}  // namespace millrace
