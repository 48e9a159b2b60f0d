// SPDX-License-Identifier: Apache-2.0
//
// The inner loops on one thread, in bytes or multiplications per second.
//
//   bazel run -c opt //ops/math:math_benchmark
//
// 64 Ki elements stay in the second-level cache, 16 Mi do not fit into any.

#include <cstdint>
#include <vector>

#include "benchmark/benchmark.h"
#include "ops/loops/binary.h"
#include "ops/loops/gemm.h"
#include "ops/loops/reduce.h"
#include "ops/loops/training.h"
#include "ops/loops/unary.h"
#include "ops/math/cwise_unary.h"
#include "ops/nn/activations.h"

namespace millrace::math {
namespace {

std::vector<float> Values(int64_t n) {
  std::vector<float> values(static_cast<size_t>(n));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(i % 1000) * 0.01f - 4.0f;
  }
  return values;
}

void SetBytes(benchmark::State& state, int64_t bytes_per_iteration) {
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations()) * bytes_per_iteration);
}

void BM_Add(benchmark::State& state) {
  const int64_t n = state.range(0);
  const std::vector<float> x = Values(n), y = Values(n);
  std::vector<float> z(x.size());
  const BinaryFn add = FindBinary(BinaryOp::kAdd, DT_FLOAT);
  for (auto _ : state) {
    add(x.data(), false, y.data(), false, z.data(), n);
    benchmark::ClobberMemory();
  }
  SetBytes(state, 12 * n);
}
BENCHMARK(BM_Add)->Arg(1 << 16)->Arg(1 << 24);

void BM_Unary(benchmark::State& state, UnaryOp op) {
  const int64_t n = state.range(0);
  const std::vector<float> x = Values(n);
  std::vector<float> y(x.size());
  const UnaryFn fn = FindUnary(op, DT_FLOAT);
  for (auto _ : state) {
    fn(x.data(), y.data(), n);
    benchmark::ClobberMemory();
  }
  SetBytes(state, 8 * n);
}
BENCHMARK_CAPTURE(BM_Unary, Exp, UnaryOp::kExp)->Arg(1 << 16)->Arg(1 << 24);
BENCHMARK_CAPTURE(BM_Unary, Tanh, UnaryOp::kTanh)->Arg(1 << 16)->Arg(1 << 24);
BENCHMARK_CAPTURE(BM_Unary, Sigmoid, UnaryOp::kSigmoid)->Arg(1 << 16);
BENCHMARK_CAPTURE(BM_Unary, Log, UnaryOp::kLog)->Arg(1 << 16);
BENCHMARK_CAPTURE(BM_Unary, Relu, UnaryOp::kRelu)->Arg(1 << 16)->Arg(1 << 24);
BENCHMARK_CAPTURE(BM_Unary, Erf, UnaryOp::kErf)->Arg(1 << 16);

void BM_Reduce(benchmark::State& state, ReduceOp op, bool rows) {
  const int64_t m = state.range(0), n = state.range(1);
  const std::vector<float> x = Values(m * n);
  const int64_t dims[] = {m, n};
  const bool reduced[] = {!rows, rows};
  const ReducePlan plan(dims, reduced);
  const ReduceFns fns = FindReduce(op, DT_FLOAT);
  std::vector<char> partials(static_cast<size_t>(plan.num_partials()) * fns.partial_size);
  std::vector<float> y(static_cast<size_t>(plan.num_outputs()));
  for (auto _ : state) {
    for (int64_t task = 0; task < plan.num_tasks(); ++task) {
      fns.run(plan, task, x.data(), partials.data());
    }
    fns.finish(plan, 0, plan.num_outputs(), partials.data(), y.data());
    benchmark::ClobberMemory();
  }
  SetBytes(state, 4 * m * n);
}
BENCHMARK_CAPTURE(BM_Reduce, SumRows, ReduceOp::kSum, true)->Args({4096, 1000})->Args({1, 1 << 16});
BENCHMARK_CAPTURE(BM_Reduce, SumColumns, ReduceOp::kSum, false)
    ->Args({4096, 1000})
    ->Args({4096, 10});
BENCHMARK_CAPTURE(BM_Reduce, MaxRows, ReduceOp::kMax, true)->Args({4096, 1000});

void BM_Adam(benchmark::State& state) {
  const int64_t n = state.range(0);
  std::vector<float> var = Values(n), m = Values(n), v(var.size(), 1.0f);
  const std::vector<float> grad = Values(n);
  for (auto _ : state) {
    Adam<float>({var.data(), var.data()}, {m.data(), m.data()}, {v.data(), v.data()}, grad.data(),
                {0.001f, 0.9f, 0.999f, 1e-8f}, false, n);
    benchmark::ClobberMemory();
  }
  SetBytes(state, 28 * n);
}
BENCHMARK(BM_Adam)->Arg(1 << 16)->Arg(1 << 22);

void BM_Gemm(benchmark::State& state) {
  const int64_t m = state.range(0), n = state.range(1), k = state.range(2);
  const std::vector<float> a = Values(m * k), b = Values(k * n);
  std::vector<float> c(static_cast<size_t>(m * n));
  const GemmFn gemm = FindGemm(DT_FLOAT);
  for (auto _ : state) {
    gemm({m, n, k}, a.data(), b.data(), c.data(), 0, m, 0, n);
    benchmark::ClobberMemory();
  }
  state.counters["FLOPS"] =
      benchmark::Counter(2.0 * static_cast<double>(m) * static_cast<double>(n) *
                             static_cast<double>(k) * static_cast<double>(state.iterations()),
                         benchmark::Counter::kIsRate);
}
BENCHMARK(BM_Gemm)
    ->Args({8, 8, 8})
    ->Args({16, 16, 16})
    ->Args({64, 64, 64})
    ->Args({256, 256, 256})
    ->Args({1024, 1024, 1024})
    ->Args({1, 512, 784})
    ->Args({128, 512, 784});

}  // namespace
}  // namespace millrace::math
