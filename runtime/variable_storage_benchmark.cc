// SPDX-License-Identifier: Apache-2.0
//
// A table of 1M rows of 64 floats, 4096 random rows per call; figures per row.
#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "benchmark/benchmark.h"
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
      one, batch, false, [](absl::Span<const Shape>) { return absl::OkStatus(); },
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
          float* const out = fresh[0].mutable_flat<float>().data();
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
