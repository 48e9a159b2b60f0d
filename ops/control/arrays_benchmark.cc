// SPDX-License-Identifier: Apache-2.0
// What loops keep tensors in, without a loop: elements per second of tensor arrays (taken apart and
// put together, written and read one by one), lists and stacks, in a prepared step on one thread.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "benchmark/benchmark.h"
#include "core/tensor.h"
#include "graph/scope.h"
#include "ops/ops.h"
#include "runtime/session.h"

namespace millrace {
namespace {

constexpr int kElements = 64;

// Of x = [kElements, width].
Output ThroughArray(const Scope& s, Output x, int64_t width) {
  const auto array = TensorArrayV3(s, Const(s, kElements), DT_FLOAT, {.element_shape = {width}});
  const Output all = Range(s, Const(s, 0), Const(s, kElements), Const(s, 1));
  const Output flow = TensorArrayScatterV3(s, array.handle, all, x, array.flow);
  return TensorArrayGatherV3(s, array.handle, all, flow, DT_FLOAT);
}
Output OneByOne(const Scope& s, Output x, int64_t) {
  const auto array = TensorArrayV3(s, Const(s, kElements), DT_FLOAT);
  const std::vector<Output> rows = Unpack(s, x, kElements);
  Output flow = array.flow;
  for (int i = 0; i < kElements; ++i) {
    flow = TensorArrayWriteV3(s, array.handle, Const(s, i), rows[static_cast<size_t>(i)], flow);
  }
  std::vector<Output> read;
  for (int i = 0; i < kElements; ++i) {
    read.push_back(TensorArrayReadV3(s, array.handle, Const(s, i), flow, DT_FLOAT));
  }
  return AddN(s, read);
}
Output ThroughList(const Scope& s, Output x, int64_t width) {
  const Output shape = Const(s, {static_cast<int32_t>(width)});
  Output list = EmptyTensorList(s, shape, Const(s, -1), DT_FLOAT);
  for (const Output& row : Unpack(s, x, kElements)) list = TensorListPushBack(s, list, row);
  return TensorListStack(s, list, shape, DT_FLOAT);
}
Output ThroughStack(const Scope& s, Output x, int64_t) {
  const Output stack = StackV2(s, Const(s, -1), DT_FLOAT);
  Operation last;
  for (const Output& row : Unpack(s, x, kElements)) {
    const Scope next = last.valid() ? s.WithControlDependencies({last}) : s;
    last = StackPushV2(next, stack, row).op();
  }
  std::vector<Output> popped;
  for (int i = 0; i < kElements; ++i) {
    popped.push_back(StackPopV2(s.WithControlDependencies({last}), stack, DT_FLOAT));
    last = popped.back().op();
  }
  return AddN(s, popped);
}

void Elements(benchmark::State& state, Output (*through)(const Scope&, Output, int64_t)) {
  const int64_t width = state.range(0);
  Scope root;
  const Output x = Placeholder(root.WithName("x"), DT_FLOAT, {kElements, width});
  const Output y = through(root, x, width);
  SessionOptions options;
  options.config.intra_op_parallelism_threads = 1;
  StatusOr<std::unique_ptr<Session>> session = NewSession(options);
  if (!root.ok()) return state.SkipWithError(root.status().ToString().c_str());
  if (!session.ok() || !(*session)->Extend(root).ok()) return state.SkipWithError("Extend");
  auto step = (*session)->Prepare({.feeds = {"x"}, .fetches = {y.name()}});
  if (!step.ok()) return state.SkipWithError("Prepare");
  const std::vector<Tensor> feeds = {
      Tensor::Zeros(DT_FLOAT, *Shape::Make({kElements, width})).value()};
  for (auto _ : state) {
    auto out = (*step)->Run(feeds);
    if (!out.ok()) return state.SkipWithError(out.status().ToString().c_str());
    benchmark::DoNotOptimize(out);
  }
  state.SetItemsProcessed(state.iterations() * kElements);
}

BENCHMARK_CAPTURE(Elements, ArrayOfRows, ThroughArray)->Arg(1)->Arg(4096)->UseRealTime();
BENCHMARK_CAPTURE(Elements, ArrayOneByOne, OneByOne)->Arg(1)->Arg(4096)->UseRealTime();
BENCHMARK_CAPTURE(Elements, List, ThroughList)->Arg(1)->Arg(4096)->UseRealTime();
BENCHMARK_CAPTURE(Elements, Stack, ThroughStack)->Arg(1)->Arg(4096)->UseRealTime();

}  // namespace
}  // namespace millrace
