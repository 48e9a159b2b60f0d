// SPDX-License-Identifier: Apache-2.0
//
// What it costs to add sparse gradients: rows of 64 floats with random ids of a million, in
// gradients of 4,096 rows or of all at once, and to take them; beside a direct update of a table.
// For people:
//
//   bazel run -c opt //ops/kernels:accumulator_benchmark

#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "absl/types/span.h"
#include "benchmark/benchmark.h"
#include "core/shape.h"
#include "core/status.h"
#include "core/tensor.h"
#include "ops/kernels/accumulator.h"
#include "runtime/variable_storage.h"

namespace millrace {
namespace {

constexpr int64_t kIds = 1'000'000;
constexpr int64_t kColumns = 64;

void OrEnd(const Status& status) {
  if (!status.ok()) EndProgram(status);
}

// `n` rows with ids in random order, in gradients of `size`.
std::vector<GradientAccumulator::Gradient> Gradients(int64_t n, int64_t size) {
  std::mt19937_64 random(1);
  std::vector<GradientAccumulator::Gradient> gradients;
  for (int64_t begin = 0; begin < n; begin += size) {
    GradientAccumulator::Gradient& gradient = gradients.emplace_back();
    gradient.indices = *Tensor::Allocate(DT_INT64, Shape{size});
    gradient.values = *Tensor::Allocate(DT_FLOAT, Shape{size, kColumns});
    for (int64_t& id : gradient.indices.mutable_flat<int64_t>()) {
      id = static_cast<int64_t>(random() % static_cast<uint64_t>(kIds));
    }
    for (float& value : gradient.values.mutable_flat<float>()) value = 0.5f;
  }
  return gradients;
}

void Accumulated(benchmark::State& state) {
  const auto gradients = Gradients(kIds, state.range(0));
  AccumulatorSpec spec;
  spec.is_sparse = true;
  spec.dtype = DT_FLOAT;
  const auto accumulator = std::make_shared<GradientAccumulator>(spec);
  for (auto _ : state) {
    for (const auto& gradient : gradients) {
      OrEnd(accumulator->Apply(INT64_MAX, gradient).status());
    }
    accumulator->Take(nullptr, 1, [](StatusOr<GradientAccumulator::Taken> taken) {
      OrEnd(taken.status());
      benchmark::DoNotOptimize(taken->values.raw_data());
    });
  }
  state.SetItemsProcessed(state.iterations() * kIds);
}
BENCHMARK(Accumulated)->Arg(4096)->Arg(kIds);

void Direct(benchmark::State& state) {
  const auto gradients = Gradients(kIds, state.range(0));
  const Shape shape{kIds, kColumns};
  VariableStorage table("table", DT_FLOAT, PartialShape(shape));
  OrEnd(table.Assign(*Tensor::Zeros(DT_FLOAT, shape), true));
  VariableStorage* const one[] = {&table};
  for (auto _ : state) {
    for (const auto& gradient : gradients) {
      const float* const values = gradient.values.raw<float>().data();
      OrEnd(VariableStorage::UpdateRows<int64_t>(
          one, gradient.indices.raw<int64_t>(), {},
          [](absl::Span<const Shape>) { return absl::OkStatus(); },
          [values](int64_t i, absl::Span<char* const> rows) {
            float* const row = reinterpret_cast<float*>(rows[0]);
            const float* const g = values + i * kColumns;
            for (int64_t c = 0; c < kColumns; ++c) row[c] -= 0.1f * g[c];
          }));
    }
  }
  state.SetItemsProcessed(state.iterations() * kIds);
}
BENCHMARK(Direct)->Arg(4096)->Arg(kIds);

}  // namespace
}  // namespace millrace
