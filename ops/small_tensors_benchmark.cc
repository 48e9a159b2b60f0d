// SPDX-License-Identifier: Apache-2.0
// What a node costs beyond its elements: chains of ops on tensors of four floats, in a prepared
// step on one thread. Rules run in every step; here they are most of the time.
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "benchmark/benchmark.h"
#include "core/tensor.h"
#include "graph/node_builder.h"
#include "graph/scope.h"
#include "ops/linalg/matmul.h"
#include "runtime/session.h"

namespace millrace {
namespace {

constexpr int kLinks = 16;

Output Ints(const Scope& s, std::initializer_list<int32_t> values) {
  return NodeBuilder(s, "Const")
      .Attr("dtype", DT_INT32)
      .Attr("value", Tensor::Vector<int32_t>(values))
      .Finish()
      .output(0);
}
Output Axis(const Scope& s, int32_t axis) {
  return NodeBuilder(s, "Const")
      .Attr("dtype", DT_INT32)
      .Attr("value", Tensor::Scalar<int32_t>(axis))
      .Finish()
      .output(0);
}
Output MatMulOnce(const Scope& s, Output x) {
  return NodeBuilder(s, "MatMul").Input(x).Input(x).Finish().output(0);
}
Output SoftmaxOnce(const Scope& s, Output x) {
  return NodeBuilder(s, "Softmax").Input(x).Finish().output(0);
}
Output First(const Scope& s, Output x) {
  return NodeBuilder(s, "Slice")
      .Input(x)
      .Input(Ints(s, {0, 0}))
      .Input(Ints(s, {2, 2}))
      .Finish()
      .output(0);
}
Output TileAndSlice(const Scope& s, Output x) {
  return First(s, NodeBuilder(s, "Tile").Input(x).Input(Ints(s, {1, 2})).Finish().output(0));
}
Output ConcatAndSlice(const Scope& s, Output x) {
  const Output both[] = {x, x};
  return First(s, NodeBuilder(s, "ConcatV2").Input(both).Input(Axis(s, 1)).Finish().output(0));
}
Output SumAndTile(const Scope& s, Output x) {
  const Output sum =
      NodeBuilder(s, "Sum").Input(x).Input(Ints(s, {1})).Attr("keep_dims", true).Finish().output(0);
  return NodeBuilder(s, "Tile").Input(sum).Input(Ints(s, {1, 2})).Finish().output(0);
}
Output GatherRows(const Scope& s, Output x) {
  return NodeBuilder(s, "GatherV2")
      .Input(x)
      .Input(Ints(s, {1, 0}))
      .Input(Axis(s, 0))
      .Finish()
      .output(0);
}

// kLinks times `link`, from a feed to a fetch.
void Chain(benchmark::State& state, Output (*link)(const Scope&, Output)) {
  Scope root;
  Output x = NodeBuilder(root.WithName("x"), "Placeholder")
                 .Attr("dtype", DT_FLOAT)
                 .Attr("shape", PartialShape({2, 2}))
                 .Finish()
                 .output(0);
  for (int i = 0; i < kLinks; ++i) x = link(root, x);
  SessionOptions options;
  options.config.set_intra_op_parallelism_threads(1);
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
