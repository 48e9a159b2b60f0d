// SPDX-License-Identifier: Apache-2.0
// Training steps per second of the digit network (batch 100, Adam) in one process, with 1 and 2
// compute threads.
#include <benchmark/benchmark.h>

#include "core/tensor.h"
#include "examples/mnist/digits.h"
#include "examples/mnist/model.h"
#include "graph/scope.h"
#include "layers/variable.h"
#include "runtime/session.h"

namespace millrace {
namespace {

void TrainStep(benchmark::State& state) {
  Scope root;
  root.SetGraphSeed(1);
  const MnistTrainer trainer = BuildMnistTrainer(root);
  const Operation init = GlobalVariablesInitializer(root);
  SessionOptions options;
  options.config.intra_op_parallelism_threads = static_cast<int>(state.range(0));
  auto session = NewSession(options);
  if (!session.ok() || !(*session)->Extend(root).ok() || !(*session)->Run({}, {}, {init}).ok()) {
    state.SkipWithError("the model does not start");
    return;
  }
  const Digits digits = DrawDigits(1000, 1);
  BatchIterator batches(&digits, 1);
  const Tensor keep = Tensor::Scalar<float>(0.5f);
  for (auto _ : state) {
    const auto batch = batches.Next(100);
    const auto out = (*session)->Run({{trainer.images, batch->images},
                                      {trainer.labels, batch->labels},
                                      {trainer.keep_prob, keep}},
                                     {trainer.loss, trainer.step});
    if (!out.ok()) {
      state.SkipWithError(out.status().ToString().c_str());
      return;
    }
    benchmark::DoNotOptimize(*out);
  }
  state.counters["steps/s"] =
      benchmark::Counter(static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
}
BENCHMARK(TrainStep)
    ->Arg(1)
    ->Arg(2)
    ->ArgName("threads")
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond)
    ->MinTime(5);

}  // namespace
}  // namespace millrace
