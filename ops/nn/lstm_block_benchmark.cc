// SPDX-License-Identifier: Apache-2.0
// Steps of sequences per second through the block cells, forward and back: 32 examples, 128 inputs,
// 128 units, in a prepared step on one thread.
#include <cstdint>
#include <memory>
#include <source_location>
#include <string>
#include <variant>
#include <vector>

#include "benchmark/benchmark.h"
#include "core/tensor.h"
#include "graph/gradient.h"
#include "graph/scope.h"
#include "ops/ops.h"
#include "runtime/session.h"

namespace millrace {
namespace {

constexpr int64_t kBatch = 32, kUnits = 128, kSteps = 50;

Output Zeros(const Scope& s, std::vector<int64_t> dims) {
  return Const(s, Tensor::Zeros(DT_FLOAT, *Shape::Make(dims)).value());
}

void AddGradientsOf(const Scope& s, const std::vector<Output>& ys, const std::vector<Output>& xs,
                    std::vector<Output>* fetched) {
  const auto gradients = AddGradients(s, ys, xs);
  if (!gradients.ok()) return s.UpdateStatus(gradients.status(), std::source_location::current());
  for (const Gradient& gradient : *gradients) fetched->push_back(std::get<Output>(gradient));
}

void Measure(benchmark::State& state, const Scope& root, const std::vector<Output>& fetched,
             int64_t steps) {
  SessionOptions options;
  options.config.intra_op_parallelism_threads = 1;
  StatusOr<std::unique_ptr<Session>> session = NewSession(options);
  if (!root.ok()) return state.SkipWithError(root.status().ToString().c_str());
  if (!session.ok() || !(*session)->Extend(root).ok()) return state.SkipWithError("Extend");
  std::vector<std::string> fetches;
  for (const Output& output : fetched) fetches.push_back(output.name());
  auto step = (*session)->Prepare({.feeds = {"x"}, .fetches = fetches});
  if (!step.ok()) return state.SkipWithError("Prepare");
  std::vector<int64_t> dims = {kBatch, kUnits};
  if (steps > 1) dims.insert(dims.begin(), steps);
  const std::vector<Tensor> feeds = {Tensor::Zeros(DT_FLOAT, *Shape::Make(dims)).value()};
  for (auto _ : state) {
    auto out = (*step)->Run(feeds);
    if (!out.ok()) return state.SkipWithError(out.status().ToString().c_str());
    benchmark::DoNotOptimize(out);
  }
  state.SetItemsProcessed(state.iterations() * steps);
}

void LstmCell(benchmark::State& state) {
  Scope s;
  const Output x = Placeholder(s.WithName("x"), DT_FLOAT, {kBatch, kUnits});
  const Output diagonal = Zeros(s, {kUnits}), before = Zeros(s, {kBatch, kUnits});
  const Output w = Zeros(s, {2 * kUnits, 4 * kUnits});
  const auto cell =
      LSTMBlockCell(s, x, before, before, w, diagonal, diagonal, diagonal, Zeros(s, {4 * kUnits}));
  std::vector<Output> fetched = {cell.h};
  if (state.range(0) == 1) {
    AddGradientsOf(s, {cell.h}, {w, x}, &fetched);
  }
  Measure(state, s, fetched, 1);
}
BENCHMARK(LstmCell)->ArgName("gradient")->Arg(0)->Arg(1)->UseRealTime();

void LstmSequence(benchmark::State& state) {
  Scope s;
  const Output x = Placeholder(s.WithName("x"), DT_FLOAT, {kSteps, kBatch, kUnits});
  const Output diagonal = Zeros(s, {kUnits}), before = Zeros(s, {kBatch, kUnits});
  const Output w = Zeros(s, {2 * kUnits, 4 * kUnits});
  const auto sequence = BlockLSTM(s, Const(s, kSteps), x, before, before, w, diagonal, diagonal,
                                  diagonal, Zeros(s, {4 * kUnits}));
  std::vector<Output> fetched = {sequence.h};
  if (state.range(0) == 1) {
    AddGradientsOf(s, {sequence.h}, {w, x}, &fetched);
  }
  Measure(state, s, fetched, kSteps);
}
BENCHMARK(LstmSequence)->ArgName("gradient")->Arg(0)->Arg(1)->UseRealTime();

void GruCell(benchmark::State& state) {
  Scope s;
  const Output x = Placeholder(s.WithName("x"), DT_FLOAT, {kBatch, kUnits});
  const Output w_ru = Zeros(s, {2 * kUnits, 2 * kUnits}), w_c = Zeros(s, {2 * kUnits, kUnits});
  const auto cell = GRUBlockCell(s, x, Zeros(s, {kBatch, kUnits}), w_ru, w_c,
                                 Zeros(s, {2 * kUnits}), Zeros(s, {kUnits}));
  std::vector<Output> fetched = {cell.h};
  if (state.range(0) == 1) {
    AddGradientsOf(s, {cell.h}, {w_ru, w_c, x}, &fetched);
  }
  Measure(state, s, fetched, 1);
}
BENCHMARK(GruCell)->ArgName("gradient")->Arg(0)->Arg(1)->UseRealTime();

}  // namespace
}  // namespace millrace
