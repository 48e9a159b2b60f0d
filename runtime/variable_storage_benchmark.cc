// SPDX-License-Identifier: Apache-2.0
//
// A table of 1M rows of 64 floats, 4096 random rows per call; figures per row.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "benchmark/benchmark.h"
#include "core/arena.h"
#include "core/shape.h"
#include "ops/loops/training.h"
#include "runtime/testing/variable_walk.h"
#include "runtime/variable_storage.h"

namespace millrace {
namespace {

constexpr int64_t kRows = 1'000'000;
constexpr int64_t kColumns = 64;
constexpr size_t kBatch = 4096;

std::shared_ptr<VariableStorage> Table(int64_t rows) {
  const Shape shape = *Shape::Make({rows, kColumns});
  auto v = std::make_shared<VariableStorage>("table", DT_FLOAT, shape);
  v->Assign(*Tensor::Zeros(DT_FLOAT, shape), true).IgnoreError();
  return v;
}

// Other rows in every call, so that the table's memory and not a cache is measured.
std::vector<std::vector<int64_t>> Batches() {
  std::mt19937_64 random(1);
  std::vector<std::vector<int64_t>> batches(64);
  for (auto& batch : batches) {
    for (size_t i = 0; i < kBatch; ++i) {
      batch.push_back(static_cast<int64_t>(random() % static_cast<uint64_t>(kRows)));
    }
  }
  return batches;
}

void CountRows(benchmark::State& state) {
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(kBatch));
}

void StepRows(VariableStorage* v, const std::vector<int64_t>& batch, const float* gradient) {
  VariableStorage* const one[] = {v};
  const Status status = VariableStorage::UpdateRows<int64_t>(
      one, batch, {}, [](absl::Span<const Shape>) { return absl::OkStatus(); },
      [gradient](int64_t i, absl::Span<char* const> rows) {
        float* const row = reinterpret_cast<float*>(rows[0]);
        const float* const g = gradient + i * kColumns;
        for (int64_t c = 0; c < kColumns; ++c) row[c] -= 0.1f * g[c];
      });
  if (!status.ok()) abort();
}

void GatherShared(benchmark::State& state) {
  const auto table = Table(kRows);
  const auto batches = Batches();
  std::vector<float> out(kBatch * kColumns);
  size_t k = 0;
  for (auto _ : state) {
    const Status status = table->GatherRows<int64_t>(
        batches[k++ % 64], *Shape::Make({kRows, kColumns}), reinterpret_cast<char*>(out.data()));
    benchmark::DoNotOptimize(status);
    benchmark::ClobberMemory();
  }
  CountRows(state);
}
BENCHMARK(GatherShared);

// After row updates have begun: with row locks.
void GatherByRows(benchmark::State& state) {
  const auto table = Table(kRows);
  const auto batches = Batches();
  std::vector<float> out(kBatch * kColumns), gradient(kBatch * kColumns, 1.0f);
  StepRows(table.get(), batches[0], gradient.data());
  size_t k = 0;
  for (auto _ : state) {
    const Status status = table->GatherRows<int64_t>(
        batches[k++ % 64], *Shape::Make({kRows, kColumns}), reinterpret_cast<char*>(out.data()));
    benchmark::DoNotOptimize(status);
    benchmark::ClobberMemory();
  }
  CountRows(state);
}
BENCHMARK(GatherByRows);

void UpdateRowsSgd(benchmark::State& state) {
  const auto table = Table(kRows);
  const auto batches = Batches();
  const std::vector<float> gradient(kBatch * kColumns, 1.0f);
  size_t k = 0;
  for (auto _ : state) StepRows(table.get(), batches[k++ % 64], gradient.data());
  CountRows(state);
}
BENCHMARK(UpdateRowsSgd);

// A table and its accumulator, as SparseApplyAdagrad updates them.
// Argument: threads.
void UpdateRowsAdagrad(benchmark::State& state) {
  const auto table = Table(kRows);
  const auto accumulator = Table(kRows);
  const auto batches = Batches();
  const std::vector<float> gradient(kBatch * kColumns, 1.0f);
  VariableStorage* const both[] = {table.get(), accumulator.get()};
  const auto arena = Arena::Make(static_cast<int>(state.range(0)));
  RowUpdateOptions options;
  if (state.range(0) > 1) {
    options.parallel_for = [&](int64_t n, double cost_ns,
                               absl::FunctionRef<void(int64_t, int64_t)> body) {
      arena->ParallelFor(n, cost_ns, body);
    };
  }
  size_t k = 0;
  for (auto _ : state) {
    const Status status = VariableStorage::UpdateRows<int64_t>(
        both, batches[k++ % 64], options, [](absl::Span<const Shape>) { return absl::OkStatus(); },
        [&gradient](int64_t i, absl::Span<char* const> rows) {
          float* const w = reinterpret_cast<float*>(rows[0]);
          float* const a = reinterpret_cast<float*>(rows[1]);
          math::Adagrad<float>({w, w}, {a, a}, gradient.data() + i * kColumns, 0.1f, true,
                               kColumns);
        });
    if (!status.ok()) abort();
  }
  CountRows(state);
}
BENCHMARK(UpdateRowsAdagrad)->Arg(1)->Arg(2)->UseRealTime();

// Read after a row update, nobody else reading.
void ReadAfterRowUpdate(benchmark::State& state) {
  const auto table = Table(kRows);
  const auto batches = Batches();
  const std::vector<float> gradient(kBatch * kColumns, 1.0f);
  StepRows(table.get(), batches[0], gradient.data());
  for (auto _ : state) {
    StepRows(table.get(), {1, 2, 3}, gradient.data());
    benchmark::DoNotOptimize(table->Read());
  }
}
BENCHMARK(ReadAfterRowUpdate);

// Gathers of 64 rows while other threads work; the latency of one.
//   0  one walks the table again and again, as saves do
//   1  ... and one updates rows
//   2  two compute and touch no table: what the scheduler alone costs when there are as many
//      threads as in 1
void GatherDuringWalk(benchmark::State& state) {
  const auto table = Table(kRows);
  const auto batches = Batches();
  const std::vector<float> gradient(kBatch * kColumns, 1.0f);
  StepRows(table.get(), batches[0], gradient.data());
  std::atomic<bool> over{false};  // relaxed: no data goes with it
  std::atomic<int64_t> walks{0};  // relaxed: a counter
  const auto is_over = [&] { return over.load(std::memory_order_relaxed); };
  const auto walk_on = [&] {
    while (!is_over()) {
      // As a save: a step's read first, then the rows.
      if (!table->Read().ok()) abort();
      auto walk = VariableWalk::Begin({table});
      for (auto rows = walk->Next(); rows->begin < rows->end; rows = walk->Next()) {
        if (is_over()) return;
      }
      walks.fetch_add(1, std::memory_order_relaxed);
    }
  };
  const auto update_on = [&] {
    for (size_t k = 0; !is_over(); ++k) StepRows(table.get(), batches[k % 64], gradient.data());
  };
  const auto compute_on = [&] {
    for (uint64_t x = 1; !is_over(); ++x) benchmark::DoNotOptimize(x);
  };
  std::vector<std::thread> others;
  if (state.range(0) == 2) {
    others.emplace_back(compute_on);
    others.emplace_back(compute_on);
  } else {
    others.emplace_back(walk_on);
    if (state.range(0) == 1) others.emplace_back(update_on);
  }
  std::vector<float> out(64 * kColumns);
  std::vector<double> micros;
  const Shape shape = *Shape::Make({kRows, kColumns});
  size_t k = 0;
  for (auto _ : state) {
    const auto begin = std::chrono::steady_clock::now();
    const Status status =
        table->GatherRows<int64_t>(absl::MakeConstSpan(batches[k++ % 64]).subspan(0, 64), shape,
                                   reinterpret_cast<char*>(out.data()));
    benchmark::DoNotOptimize(status);
    micros.push_back(
        std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin)
            .count());
  }
  over.store(true, std::memory_order_relaxed);
  for (std::thread& t : others) t.join();
  std::sort(micros.begin(), micros.end());
  state.counters["p50_us"] = micros[micros.size() / 2];
  state.counters["p99.9_us"] = micros[micros.size() * 999 / 1000];
  state.counters["walks"] = static_cast<double>(walks.load(std::memory_order_relaxed));
}
BENCHMARK(GatherDuringWalk)->Arg(0)->Arg(1)->Arg(2)->UseRealTime();

void ReadShared(benchmark::State& state) {
  const auto table = Table(1000);
  for (auto _ : state) benchmark::DoNotOptimize(table->Read());
}
BENCHMARK(ReadShared);

// In place (0) or into the recycled buffer because a reader holds the value (1).
void UpdateDense(benchmark::State& state) {
  const auto table = Table(16384);
  VariableStorage* const one[] = {table.get()};
  for (auto _ : state) {
    Tensor reader;
    if (state.range(0) == 1) reader = *table->Read();
    const Status status = VariableStorage::UpdateDense(
        one, [](absl::Span<const Tensor>) { return absl::OkStatus(); },
        [](absl::Span<const Tensor> old, absl::Span<Tensor> fresh) {
          const float* const in = old[0].flat<float>().data();
          float* const out = fresh[0].mutable_raw<float>().data();
          const int64_t n = old[0].num_elements();
          for (int64_t i = 0; i < n; ++i) out[i] = in[i] - 0.1f;
          return absl::OkStatus();
        });
    benchmark::DoNotOptimize(status);
  }
  state.SetBytesProcessed(state.iterations() * 16384 * kColumns * 4);
}
BENCHMARK(UpdateDense)->Arg(0)->Arg(1);

}  // namespace
}  // namespace millrace
