// SPDX-License-Identifier: Apache-2.0
// What a node costs beyond its elements: chains of ops on tensors of four floats, in a prepared
// step on one thread. Rules run in every step; here they are most of the time.
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "benchmark/benchmark.h"
#include "core/tensor.h"
#include "graph/scope.h"
#include "ops/linalg/matmul.h"
#include "ops/ops.h"
#include "runtime/session.h"

namespace millrace {
namespace {

constexpr int kLinks = 16;

Output MatMulOnce(const Scope& s, Output x) { return MatMul(s, x, x); }
Output SoftmaxOnce(const Scope& s, Output x) { return Softmax(s, x); }
Output First(const Scope& s, Output x) {
  return Slice(s, x, Const<int32_t>(s, {0, 0}), Const<int32_t>(s, {2, 2}));
}
Output TileAndSlice(const Scope& s, Output x) {
  return First(s, Tile(s, x, Const<int32_t>(s, {1, 2})));
}
Output ConcatAndSlice(const Scope& s, Output x) {
  return First(s, ConcatV2(s, {x, x}, Const(s, 1)));
}
Output SumAndTile(const Scope& s, Output x) {
  const Output sum = Sum(s, x, Const<int32_t>(s, {1}), {.keep_dims = true});
  return Tile(s, sum, Const<int32_t>(s, {1, 2}));
}
Output GatherRows(const Scope& s, Output x) {
  return GatherV2(s, x, Const<int32_t>(s, {1, 0}), Const(s, 0));
}

// kLinks times `link`, from a feed to a fetch.
void Chain(benchmark::State& state, Output (*link)(const Scope&, Output)) {
  Scope root;
  Output x = Placeholder(root.WithName("x"), DT_FLOAT, {2, 2});
  for (int i = 0; i < kLinks; ++i) x = link(root, x);
  SessionOptions options;
  options.config.intra_op_parallelism_threads = 1;
  StatusOr<std::unique_ptr<Session>> session = NewSession(options);
  if (!session.ok() || !(*session)->Extend(root).ok()) return state.SkipWithError("Extend");
  auto step = (*session)->Prepare({.feeds = {"x"}, .fetches = {x.name()}});
  if (!step.ok()) return state.SkipWithError("Prepare");
  const Tensor fed = Tensor::Zeros(DT_FLOAT, *Shape::Make({2, 2})).value();
  const std::vector<Tensor> feeds = {fed};
  for (auto _ : state) {
    auto out = (*step)->Run(feeds);
    if (!out.ok()) return state.SkipWithError("Run");
    benchmark::DoNotOptimize(out);
  }
  state.SetItemsProcessed(state.iterations() * kLinks);
}

BENCHMARK_CAPTURE(Chain, MatMul, MatMulOnce)->UseRealTime();
BENCHMARK_CAPTURE(Chain, Softmax, SoftmaxOnce)->UseRealTime();
BENCHMARK_CAPTURE(Chain, TileSlice, TileAndSlice)->UseRealTime();
BENCHMARK_CAPTURE(Chain, ConcatSlice, ConcatAndSlice)->UseRealTime();
BENCHMARK_CAPTURE(Chain, SumTile, SumAndTile)->UseRealTime();
BENCHMARK_CAPTURE(Chain, GatherRows, GatherRows)->UseRealTime();

}  // namespace
}  // namespace millrace
