// SPDX-License-Identifier: Apache-2.0
// The loops of a convolutional network (MNIST's sizes, batch 100), and products, on 1 and 2
// threads.
//   bazel run //ops/math:layers_benchmark
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "benchmark/benchmark.h"
#include "core/arena.h"
#include "ops/loops/bias.h"
#include "ops/loops/conv2d.h"
#include "ops/loops/gemm.h"
#include "ops/loops/pool.h"
#include "ops/loops/softmax.h"

namespace millrace::math {
namespace {

std::vector<float> Values(int64_t n) {
  std::vector<float> values(static_cast<size_t>(n));
  uint32_t state = 1;
  for (float& v : values) {
    state = state * 1664525u + 1013904223u;
    v = static_cast<float>(state >> 8) / 16777216.0f - 0.5f;
  }
  return values;
}

Conv2DShape Square(int64_t batch, int64_t side, int64_t in, int64_t size, int64_t out) {
  Conv2DShape s;
  s.batch = batch;
  s.in_rows = s.in_cols = s.out_rows = s.out_cols = side;
  s.in_channels = in;
  s.out_channels = out;
  s.filter_rows = s.filter_cols = size;
  s.pad_top = s.pad_left = s.pad_bottom = s.pad_right = size / 2;
  return s;
}

// Arguments: pass, layer, threads.
void Convolution(benchmark::State& state) {
  const auto pass = static_cast<Conv2DPass>(state.range(0));
  const Conv2DShape s =
      state.range(1) == 0 ? Square(100, 14, 32, 5, 64) : Square(100, 28, 1, 5, 32);
  const int threads = static_cast<int>(state.range(2));
  const auto arena = Arena::MakeTbb(threads);
  const auto plan = MakeConv2DPlan(s, pass, DT_FLOAT);
  std::vector<float> input = Values(s.batch * s.in_rows * s.in_cols * s.in_channels);
  std::vector<float> filter =
      Values(s.filter_rows * s.filter_cols * s.in_channels * s.out_channels);
  std::vector<float> output = Values(s.batch * s.out_rows * s.out_cols * s.out_channels);
  Conv2DArrays arrays;
  switch (pass) {
    case Conv2DPass::kForward:
      arrays = {input.data(), filter.data(), output.data(), nullptr};
      break;
    case Conv2DPass::kInputGradient:
      arrays = {output.data(), filter.data(), input.data(), nullptr};
      break;
    case Conv2DPass::kFilterGradient:
      arrays = {input.data(), output.data(), filter.data(), nullptr};
      break;
  }
  const size_t bytes = (std::max<size_t>(plan->scratch_bytes(), 1) + 63) & ~size_t{63};
  const std::unique_ptr<char, void (*)(void*)> scratch(
      static_cast<char*>(std::aligned_alloc(64, bytes)), &std::free);
  arrays.scratch = scratch.get();
  for (auto _ : state) {
    plan->Begin(arrays);
    arena->ParallelFor(plan->num_parts(), plan->part_cost_ns(), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) plan->RunPart(i, arrays);
    });
    plan->End(arrays);
  }
  const double flops = 2.0 * static_cast<double>(s.batch * s.out_rows * s.out_cols) *
                       static_cast<double>(s.out_channels * s.in_channels) *
                       static_cast<double>(s.filter_rows * s.filter_cols);
  state.counters["FLOP/s"] = benchmark::Counter(flops * static_cast<double>(state.iterations()),
                                                benchmark::Counter::kIsRate);
  const char* names[] = {"forward", "input gradient", "filter gradient"};
  state.SetLabel(std::string(names[state.range(0)]) +
                 (state.range(1) == 0 ? " 14x14x32 k5 -> 64" : " 28x28x1 k5 -> 32"));
}
BENCHMARK(Convolution)
    ->ArgsProduct({{0, 1, 2}, {0, 1}, {1, 2}})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

// Products in slices. Arguments: m, n, k, threads.
void Product(benchmark::State& state) {
  const GemmShape s{state.range(0), state.range(1), state.range(2)};
  const auto arena = Arena::MakeTbb(static_cast<int>(state.range(3)));
  const std::vector<float> a = Values(s.m * s.k), b = Values(s.k * s.n);
  std::vector<float> c(static_cast<size_t>(s.m * s.n));
  const GemmSlices slices(s, DT_FLOAT);
  for (auto _ : state) {
    arena->ParallelFor(slices.count(), slices.cost_ns(), [&](int64_t begin, int64_t end) {
      slices.RunAll(begin, end, a.data(), b.data(), c.data());
    });
  }
  state.counters["FLOP/s"] =
      benchmark::Counter(2.0 * static_cast<double>(s.m) * static_cast<double>(s.n) *
                             static_cast<double>(s.k) * static_cast<double>(state.iterations()),
                         benchmark::Counter::kIsRate);
  state.SetLabel(std::to_string(slices.count()) + " slices");
}
BENCHMARK(Product)
    ->ArgsProduct({{256}, {256}, {256}, {1, 2}})
    ->ArgsProduct({{512}, {512}, {512}, {1, 2}})
    ->ArgsProduct({{1024}, {1024}, {1024}, {1, 2}})
    ->ArgsProduct({{128}, {512}, {784}, {1, 2}})
    ->ArgsProduct({{100}, {1024}, {3136}, {1, 2}})
    ->ArgsProduct({{3136}, {1024}, {100}, {1, 2}})
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);

// A hidden layer behind a relu: forward, the gradients of its kernel and of its input, by oneDNN
// and without the zeros. Arguments: pass, examples, percent that is not zero. Of units, most are on
// or off for most examples.
void BehindRelu(benchmark::State& state, bool skip) {
  constexpr int64_t kIn = 100, kOut = 70;
  const int64_t examples = state.range(1);
  const GemmShape shapes[] = {
      {examples, kOut, kIn},
      {kIn, kOut, examples, Operand::kTransposed, Operand::kPlain},
      {examples, kIn, kOut, Operand::kPlain, Operand::kTransposed},
  };
  const GemmShape s = shapes[state.range(0)];
  std::vector<float> a = Values(s.m * s.k);
  const std::vector<float> b = Values(s.k * s.n);
  const int64_t units = state.range(0) == 2 ? kOut : kIn;
  for (size_t i = 0; i < a.size(); ++i) {
    const int64_t unit = static_cast<int64_t>(i) % units;
    const bool on = unit * 100 < units * state.range(2);
    if ((i * 2654435761u >> 8) % 100 < 8 ? on : !on) a[i] = 0;
  }
  std::vector<float> c(static_cast<size_t>(s.m * s.n));
  // oneDNN is called for what has no zeros.
  std::vector<float> full = a;
  for (float& v : full) v += 2;
  const GemmSlices slices(s, DT_FLOAT);
  const float* const left = skip ? a.data() : full.data();
  for (auto _ : state) slices.RunAll(0, slices.count(), left, b.data(), c.data());
  const char* names[] = {"forward", "kernel's gradient", "input's gradient"};
  state.SetLabel(names[state.range(0)]);
}
BENCHMARK_CAPTURE(BehindRelu, OneDnn, false)->ArgsProduct({{0, 1, 2}, {40, 1024}, {50}});
BENCHMARK_CAPTURE(BehindRelu, SkipZeros, true)->ArgsProduct({{0, 1, 2}, {40, 1024}, {30, 50}});

// 100 images of 28x28x32, windows of 2x2.
void Pooling(benchmark::State& state) {
  PoolShape s;
  s.in_rows = s.in_cols = 28;
  s.out_rows = s.out_cols = 14;
  s.channels = 32;
  s.window_rows = s.window_cols = s.stride_rows = s.stride_cols = 2;
  const int64_t in = 28 * 28 * 32, out = 14 * 14 * 32;
  std::vector<float> input = Values(100 * in), output = Values(100 * out);
  std::vector<float> grad(input.size());
  const PoolLoops& loops = *FindPool(DT_FLOAT);
  for (auto _ : state) {
    for (int64_t i = 0; i < 100; ++i) {
      if (state.range(0) == 0) {
        loops.max(s, input.data() + i * in, output.data() + i * out, 0, 14);
      } else {
        loops.max_gradient(s, input.data() + i * in, output.data() + i * out, grad.data() + i * in,
                           0, 32);
      }
    }
  }
  state.SetLabel(state.range(0) == 0 ? "max" : "max gradient");
}
BENCHMARK(Pooling)->Arg(0)->Arg(1)->Unit(benchmark::kMillisecond);

// Channels of 100x28x28x32: added to, and summed over.
void Bias(benchmark::State& state) {
  const int64_t rows = 100 * 28 * 28;
  std::vector<float> value = Values(rows * 32), bias = Values(32), out(value.size());
  const BiasLoops& loops = *FindBias(DT_FLOAT);
  for (auto _ : state) {
    if (state.range(0) == 0) {
      loops.add_last(value.data(), bias.data(), out.data(), rows, 32);
    } else {
      loops.sum_last(value.data(), rows, 32, out.data());
    }
  }
  state.SetLabel(state.range(0) == 0 ? "add" : "sum");
}
BENCHMARK(Bias)->Arg(0)->Arg(1)->Unit(benchmark::kMillisecond);

// Rows of 10 and of 1000 classes.
void CrossEntropyRows(benchmark::State& state) {
  const int64_t rows = 100, n = state.range(0);
  std::vector<float> x = Values(rows * n), labels = Values(rows * n), loss(100), backprop(x.size());
  const SoftmaxLoops& loops = *FindSoftmax(DT_FLOAT);
  for (auto _ : state) {
    loops.cross_entropy(x.data(), labels.data(), loss.data(), backprop.data(), rows, n);
  }
  state.SetItemsProcessed(state.iterations() * rows * n);
}
BENCHMARK(CrossEntropyRows)->Arg(10)->Arg(1000);

}  // namespace
}  // namespace millrace::math
