// SPDX-License-Identifier: Apache-2.0
// An LSTM over 32 sequences of 50 steps, 128 inputs, 128 units: what it gives, and steps of
// training (the mean of the squares of all outputs, gradient descent), per second.
//
//   cell 0: LSTMCell in a loop, ops of its own     cell 1: FusedLSTMCell in a loop, one op a step
//   cell 2: LSTMCell as DynamicRnn builds it, one op for the sequence
//
// The peer is docs/internals/measurements/lstm_torch.py.
#include <benchmark/benchmark.h>

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "core/tensor.h"
#include "graph/scope.h"
#include "layers/layers.h"
#include "ops/ops.h"
#include "runtime/session.h"
#include "train/gradient_descent.h"

namespace millrace {
namespace {

constexpr int64_t kBatch = 32, kSteps = 50, kUnits = 128;

void Run(benchmark::State& state, bool train) {
  Scope s;
  s.SetGraphSeed(1);
  const Output x = Placeholder(s, DT_FLOAT, {kBatch, kSteps, kUnits});
  std::shared_ptr<const RnnCell> cell;
  if (state.range(0) == 1) {
    cell = std::make_shared<FusedLSTMCell>(kUnits);
  } else {
    cell = std::make_shared<LSTMCell>(kUnits);
  }
  const Output outputs = DynamicRnn(s, *cell, x, {.in_one_op = state.range(0) == 2}).outputs;
  const Output loss = ReduceMean(s, Square(s, outputs));
  Operation step;
  if (train) step = GradientDescentOptimizer({.learning_rate = 0.1}).Minimize(s, loss);
  const Operation init = GlobalVariablesInitializer(s);
  SessionOptions options;
  options.config.intra_op_parallelism_threads = static_cast<int>(state.range(1));
  options.config.inter_op_parallelism_threads = static_cast<int>(state.range(1));
  auto session = NewSession(options);
  Status status = s.status();
  if (status.ok()) status = session.status();
  if (status.ok()) status = (*session)->Extend(s);
  if (status.ok()) status = (*session)->Run({}, {}, {init}).status();
  std::mt19937 random(1);
  std::vector<float> values(kBatch * kSteps * kUnits);
  for (float& value : values) value = static_cast<float>(random() % 2000) / 1000 - 1;
  const auto fed = Tensor::FromValues<float>(Shape({kBatch, kSteps, kUnits}), values);
  if (status.ok()) status = fed.status();
  if (!status.ok()) {
    state.SkipWithError(status.ToString().c_str());
    return;
  }
  const std::vector<FetchName> fetches =
      train ? std::vector<FetchName>{loss, step} : std::vector<FetchName>{outputs};
  for (auto _ : state) {
    const auto out = (*session)->Run({{x, *fed}}, fetches);
    if (!out.ok()) {
      state.SkipWithError(out.status().ToString().c_str());
      return;
    }
    benchmark::DoNotOptimize(*out);
  }
  state.SetItemsProcessed(state.iterations());
}

void LstmForward(benchmark::State& state) { Run(state, /*train=*/false); }
void LstmTrainStep(benchmark::State& state) { Run(state, /*train=*/true); }
BENCHMARK(LstmForward)
    ->ArgNames({"cell", "threads"})
    ->ArgsProduct({{0, 1, 2}, {1, 2}})
    ->MeasureProcessCPUTime()
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK(LstmTrainStep)
    ->ArgNames({"cell", "threads"})
    ->ArgsProduct({{0, 1, 2}, {1, 2}})
    ->MeasureProcessCPUTime()
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace millrace
