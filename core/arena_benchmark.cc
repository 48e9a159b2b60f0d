// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include "benchmark/benchmark.h"
#include "core/arena.h"
#include "core/notification.h"

namespace millrace {
namespace {

std::unique_ptr<Arena> MakeKind(int64_t kind, int num_threads) {
  return kind == 0 ? Arena::MakeTbb(num_threads) : Arena::MakeThreads(num_threads);
}

void SetKindLabel(benchmark::State& state) {
  state.SetLabel(state.range(0) == 0 ? "tbb" : "threads");
}

void InlineSmallLoop(benchmark::State& state) {
  SetKindLabel(state);
  auto arena = MakeKind(state.range(0), 2);
  int64_t sum = 0;
  for (auto _ : state) {
    arena->ParallelFor(16, 1.0, [&](int64_t begin, int64_t end) { sum += end - begin; });
    benchmark::DoNotOptimize(sum);
  }
}
BENCHMARK(InlineSmallLoop)->Arg(0)->Arg(1);

// 100 us and 1 ms of arithmetic; one thread (range 1 == 1) against two.
void SharedLoop(benchmark::State& state) {
  SetKindLabel(state);
  auto arena = MakeKind(state.range(0), static_cast<int>(state.range(1)));
  const int64_t n = state.range(2);
  for (auto _ : state) {
    arena->ParallelFor(n, 100.0, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        double x = static_cast<double>(i);
        for (int k = 0; k < 25; ++k) benchmark::DoNotOptimize(x = x * 0.5 + 1.0);
      }
    });
  }
}
BENCHMARK(SharedLoop)->ArgsProduct({{0, 1}, {1, 2}, {1'000, 10'000}})->UseRealTime();

// The second loop of SharedLoop in blocks of range(2) items.
void SharedBlocks(benchmark::State& state) {
  SetKindLabel(state);
  auto arena = MakeKind(state.range(0), static_cast<int>(state.range(1)));
  for (auto _ : state) {
    arena->ParallelBlocks(10'000, state.range(2), 100.0, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        double x = static_cast<double>(i);
        for (int k = 0; k < 25; ++k) benchmark::DoNotOptimize(x = x * 0.5 + 1.0);
      }
    });
  }
}
BENCHMARK(SharedBlocks)->ArgsProduct({{0, 1}, {1, 2}, {16, 128}})->UseRealTime();

void ScheduleRoundTrip(benchmark::State& state) {
  SetKindLabel(state);
  auto arena = MakeKind(state.range(0), 2);
  for (auto _ : state) {
    Notification ran;
    arena->Schedule([&] { ran.Notify(); });
    ran.Wait();
  }
}
BENCHMARK(ScheduleRoundTrip)->Arg(0)->Arg(1)->UseRealTime();

}  // namespace
}  // namespace millrace
