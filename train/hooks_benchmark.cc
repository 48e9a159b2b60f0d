// SPDX-License-Identifier: Apache-2.0
//
// What hooks that have nothing to do add to a step: the same prepared step in a bare session, in a
// MonitoredSession without hooks, and with five (stop at a step, checkpoints, steps a second, a
// logged value, the NaN guard).
//
//   bazel run -c opt //train:hooks_benchmark

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "benchmark/benchmark.h"
#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/tensor.h"
#include "graph/scope.h"
#include "layers/variable.h"
#include "ops/ops.h"
#include "runtime/session.h"
#include "train/hooks/hooks.h"
#include "train/monitored_session.h"
#include "train/testing/hooked_model.h"

namespace millrace {
namespace {

void BareStep(benchmark::State& state) {
  const HookedModel model;
  const Operation init = GlobalVariablesInitializer(model.root);
  const auto session = NewSession();
  if (!session.ok() || !(*session)->Extend(model.root).ok() ||
      !(*session)->Run({}, {}, {init}).ok()) {
    return state.SkipWithError("no session");
  }
  const auto step = (*session)->Prepare(std::vector<FetchName>{model.x}, {model.y}, {model.count});
  if (!step.ok()) return state.SkipWithError(step.status().ToString().c_str());
  const Tensor x = Tensor::Scalar(3.f);
  Tensor y;
  for (auto _ : state) {
    if (!(*step)->RunInto(absl::MakeConstSpan(&x, 1), absl::MakeSpan(&y, 1)).ok()) {
      return state.SkipWithError("a step failed");
    }
  }
}
BENCHMARK(BareStep);

void Steps(benchmark::State& state, bool with_hooks, bool by_name) {
  const std::string dir = JoinPath(std::filesystem::temp_directory_path().string(),
                                   "hooks_benchmark_" + RandomHexName());
  const HookedModel model;
  StopAtStepHook stop({.last_step = int64_t{1} << 40});
  CheckpointSaverHook saver({.checkpoint_dir = dir, .every = absl::Hours(1)});
  StepCounterHook counter({.every = int64_t{1} << 40});
  LoggingTensorHook logging({.tensors = {{"y", model.y}}, .every = absl::Hours(1)});
  NanTensorHook nan(model.y);
  MonitoredSessionOptions options;
  if (with_hooks) options.hooks = {&stop, &saver, &counter, &logging, &nan};
  {
    const auto session = SingularMonitoredSession(model.root, {}, std::move(options));
    if (!session.ok()) return state.SkipWithError(session.status().ToString().c_str());
    const auto step = (*session)->Prepare({model.x}, {model.y}, {model.count});
    if (!step.ok()) return state.SkipWithError(step.status().ToString().c_str());
    const Tensor x = Tensor::Scalar(3.f);
    Tensor y;
    for (auto _ : state) {
      const bool ok = by_name
                          ? (*session)->Run({{model.x, x}}, {model.y}, {model.count}).ok()
                          : step->RunInto(absl::MakeConstSpan(&x, 1), absl::MakeSpan(&y, 1)).ok();
      if (!ok) return state.SkipWithError("a step failed");
    }
  }
  FileSystem::Posix()->RecursivelyDelete(dir).IgnoreError();
}

void NoHooks(benchmark::State& state) { Steps(state, false, false); }
BENCHMARK(NoHooks);
void FiveIdleHooks(benchmark::State& state) { Steps(state, true, false); }
BENCHMARK(FiveIdleHooks);
void FiveIdleHooksByName(benchmark::State& state) { Steps(state, true, true); }
BENCHMARK(FiveIdleHooksByName);

}  // namespace
}  // namespace millrace
