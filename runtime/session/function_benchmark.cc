// SPDX-License-Identifier: Apache-2.0
//
// What a call of a function costs that stays a call.
//   bazel run //runtime/session:function_benchmark
// Chains of 100 nodes in a session of one thread: each is a Square (what a node costs), a call
// of a function that gives its argument back, of one with ten nodes, or one If of such functions.
// The time is per node of the chain. A While loop's is per iteration: condition and body.
#include <memory>
#include <string>
#include <vector>

#include "benchmark/benchmark.h"
#include "core/tensor.h"
#include "graph/function_builder.h"
#include "graph/scope.h"
#include "ops/ops.h"
#include "runtime/session.h"

namespace millrace {
namespace {

using Outputs = std::vector<Output>;

constexpr int kChain = 100;

void RunSession(benchmark::State& state, const Scope& scope, const Output& x, const Output& y,
                int items, int threads) {
  SessionOptions options;
  options.config.intra_op_parallelism_threads = threads;
  auto session = NewSession(options);
  if (!session.ok() || !scope.ok() || !(*session)->Extend(scope).ok()) {
    return state.SkipWithError("session");
  }
  auto step = (*session)->Prepare({x}, {y});
  if (!step.ok()) return state.SkipWithError(std::string(step.status().message()).c_str());
  const Tensor feed = Tensor::Scalar(1.0f);
  Tensor result;
  for (auto _ : state) {
    const Status status = (*step)->RunInto({&feed, 1}, {&result, 1});
    if (!status.ok()) return state.SkipWithError(std::string(status.message()).c_str());
  }
  state.counters["ns"] = benchmark::Counter(
      static_cast<double>(items) * static_cast<double>(state.iterations()) * 1e-9,
      benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

DefinedFunction Squares(const Scope& scope, int n) {
  return DefineFunction(scope, "f", {DT_FLOAT},
                        [n](const Scope& s, const Outputs& x) {
                          Output y = x[0];
                          for (int i = 0; i < n; ++i) y = Square(s, y);
                          return Outputs{y};
                        },
                        {.no_inline = true});
}

void BM_Node(benchmark::State& state) {
  Scope scope;
  const Output x = Placeholder(scope, DT_FLOAT, {});
  Output y = x;
  for (int i = 0; i < kChain; ++i) y = Square(scope, y);
  RunSession(state, scope, x, y, kChain, static_cast<int>(state.range(0)));
}
BENCHMARK(BM_Node)->Arg(1)->Arg(2)->UseRealTime();

void BM_Call(benchmark::State& state) {
  Scope scope;
  const DefinedFunction f = Squares(scope, static_cast<int>(state.range(0)));
  const Output x = Placeholder(scope, DT_FLOAT, {});
  Output y = x;
  for (int i = 0; i < kChain; ++i) y = Call(scope, f, {y})[0];
  RunSession(state, scope, x, y, kChain, static_cast<int>(state.range(1)));
}
BENCHMARK(BM_Call)->Args({0, 1})->Args({0, 2})->Args({10, 1})->UseRealTime();

void BM_If(benchmark::State& state) {
  Scope scope;
  const DefinedFunction f = Squares(scope, 0), g = Squares(scope, 1);
  const Output x = Placeholder(scope, DT_FLOAT, {}), pred = Const(scope, true);
  Output y = x;
  for (int i = 0; i < kChain; ++i) {
    y = StatelessIf(scope, pred, Outputs{y}, {DT_FLOAT}, {f.name}, {g.name});
  }
  RunSession(state, scope, x, y, kChain, 1);
}
BENCHMARK(BM_If)->UseRealTime();

void BM_While(benchmark::State& state) {
  constexpr int kIterations = 10'000;
  Scope scope;
  const DefinedFunction cond =
      DefineFunction(scope, "cond", {DT_INT32, DT_FLOAT}, [](const Scope& s, const Outputs& x) {
        return Outputs{Less(s, x[0], Const(s, kIterations))};
      });
  const DefinedFunction body =
      DefineFunction(scope, "body", {DT_INT32, DT_FLOAT}, [](const Scope& s, const Outputs& x) {
        return Outputs{Add(s, x[0], Const(s, 1)), Neg(s, x[1])};
      });
  const Output x = Placeholder(scope, DT_FLOAT, {});
  const Output y =
      StatelessWhile(scope, Outputs{Const(scope, 0), x}, {cond.name}, {body.name}).output(1);
  RunSession(state, scope, x, y, kIterations, 1);
}
BENCHMARK(BM_While)->UseRealTime();

}  // namespace
}  // namespace millrace
