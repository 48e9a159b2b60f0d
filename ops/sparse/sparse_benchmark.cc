// SPDX-License-Identifier: Apache-2.0
//
// What a wide model's sparse ops cost, each as one node of a prepared step on one thread; figures
// per item: a row, an example, a number.
//
//   bazel run -c opt //ops/sparse:sparse_benchmark
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "benchmark/benchmark.h"
#include "core/tensor.h"
#include "graph/scope.h"
#include "layers/variable.h"
#include "ops/ops.h"
#include "runtime/session.h"

namespace millrace {
namespace {

// Runs `target` (or fetches `fetch`) again and again.
void RunSteps(benchmark::State& state, const Scope& root, const std::vector<std::string>& fetches,
              const std::vector<std::string>& targets, int64_t items) {
  SessionOptions options;
  options.config.intra_op_parallelism_threads = 1;
  StatusOr<std::unique_ptr<Session>> session = NewSession(options);
  const Operation init = GlobalVariablesInitializer(root);
  if (!session.ok() || !(*session)->Extend(root).ok() || !(*session)->Run({}, {}, {init}).ok()) {
    return state.SkipWithError("Extend");
  }
  auto step = (*session)->Prepare({.fetches = fetches, .targets = targets});
  if (!step.ok()) return state.SkipWithError("Prepare");
  for (auto _ : state) {
    auto out = (*step)->Run({});
    if (!out.ok()) return state.SkipWithError(std::string(out.status().message()).c_str());
    benchmark::DoNotOptimize(out);
  }
  state.SetItemsProcessed(state.iterations() * items);
}

// Placeholders would be fed by copies of references; constants would be folded away. A variable's
// value is neither.
Output Hidden(const Scope& root, const Tensor& value) {
  return MakeVariable(root.WithName("in"), Const(root, value), {.trainable = false}).value;
}

// Lists of 1 to 5 ids of a table of 32 Ki rows. Arguments: lists, columns.
void SegmentRows(benchmark::State& state, const SparseSegmentBuilder& op) {
  const int64_t lists = state.range(0), columns = state.range(1), rows = 1 << 15;
  std::mt19937 random(1);
  std::vector<int32_t> ids, segments;
  for (int32_t list = 0; list < lists; ++list) {
    for (uint32_t i = 0; i <= random() % 5; ++i) {
      ids.push_back(static_cast<int32_t>(random() % rows));
      segments.push_back(list);
    }
  }
  Scope root;
  const Output table = Hidden(root, *Tensor::Zeros(DT_FLOAT, *Shape::Make({rows, columns})));
  const Output sums = op(root, table, Hidden(root, Tensor::Vector<int32_t>(ids)),
                         Hidden(root, Tensor::Vector<int32_t>(segments)));
  RunSteps(state, root, {sums.name()}, {}, static_cast<int64_t>(ids.size()));
}
#define SEGMENT_ARGS ArgsProduct({{40, 1024}, {1, 8, 64}})->UseRealTime()
BENCHMARK_CAPTURE(SegmentRows, Sum, SparseSegmentSum)->SEGMENT_ARGS;
BENCHMARK_CAPTURE(SegmentRows, SqrtN, SparseSegmentSqrtN)->SEGMENT_ARGS;
#undef SEGMENT_ARGS

// Crosses of so many features of one value for each example. Arguments: examples, features.
void Cross(benchmark::State& state) {
  const int64_t examples = state.range(0);
  Scope root;
  std::vector<SparseTensor> features;
  for (int64_t f = 0; f < state.range(1); ++f) {
    std::vector<int64_t> indices;
    std::vector<std::string> values;
    for (int64_t i = 0; i < examples; ++i) {
      indices.insert(indices.end(), {i, 0});
      values.push_back(absl::StrCat(" Machine-op-inspct ", (i + f) % 15));
    }
    const Tensor places = *Tensor::FromValues<int64_t>(*Shape::Make({examples, 2}), indices);
    features.push_back({Hidden(root, places), Hidden(root, Tensor::Vector<std::string>(values)),
                        Hidden(root, Tensor::Vector<int64_t>({examples, 1}))});
  }
  const SparseTensor cross = SparseCross(root, features, {}, {.num_buckets = 1000000});
  RunSteps(state, root, {cross.values.name()}, {}, examples);
}
BENCHMARK(Cross)->ArgsProduct({{40, 1024}, {2, 3}})->UseRealTime();

// Arguments: numbers, boundaries.
void Buckets(benchmark::State& state) {
  std::vector<float> numbers, boundaries;
  for (int64_t i = 0; i < state.range(0); ++i) {
    numbers.push_back(static_cast<float>(i * 7919 % 10007) * 0.01f);
  }
  for (int64_t i = 0; i < state.range(1); ++i) {
    boundaries.push_back(static_cast<float>(i) * 100 / static_cast<float>(state.range(1)));
  }
  Scope root;
  const Output buckets =
      Bucketize(root, Hidden(root, Tensor::Vector<float>(numbers)), {.boundaries = boundaries});
  RunSteps(state, root, {buckets.name()}, {}, state.range(0));
}
BENCHMARK(Buckets)->ArgsProduct({{1024, 1 << 20}, {10, 100}})->UseRealTime();

// Rows of a table of 32 Ki rows and its slots, as a linear model's step has them. Arguments: rows
// that change, columns.
void FtrlRows(benchmark::State& state) {
  const int64_t rows = 1 << 15, count = state.range(0), columns = state.range(1);
  Scope root;
  std::mt19937 random(1);
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < count; ++i) ids.push_back(static_cast<int64_t>(random() % rows));
  const auto table = [&](const char* name, float value) {
    Tensor t = *Tensor::Zeros(DT_FLOAT, *Shape::Make({rows, columns}));
    for (float& v : t.mutable_flat<float>()) v = value;
    return MakeVariable(root.WithName(name), Const(root, t)).handle;
  };
  Tensor grad = *Tensor::Zeros(DT_FLOAT, *Shape::Make({count, columns}));
  for (float& g : grad.mutable_flat<float>()) g = 0.01f;
  const Operation update = ResourceSparseApplyFtrl(
      root, table("w", 0), table("n", 0.1f), table("z", 0), Hidden(root, grad),
      Hidden(root, Tensor::Vector<int64_t>(ids)), Const(root, 0.2f), Const(root, 0.001f),
      Const(root, 0.0f), Const(root, -0.5f));
  RunSteps(state, root, {}, {update.name()}, count);
}
BENCHMARK(FtrlRows)->ArgsProduct({{40, 500, 4096}, {1, 8}})->UseRealTime();

}  // namespace
}  // namespace millrace
