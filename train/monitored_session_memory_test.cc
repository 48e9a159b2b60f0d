// SPDX-License-Identifier: Apache-2.0
//
// Hooks that have nothing to do cost a step no allocation; a replaced operator new counts.
#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/tensor.h"
#include "core/testing/counted_new.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "train/hooks/hooks.h"
#include "train/monitored_session.h"
#include "train/session_creator.h"
#include "train/testing/hooked_model.h"

// covers: training: five idle hooks allocate nothing in a step

namespace millrace {
namespace {

int64_t AllocationsOf1000Runs(bool with_hooks) {
  const std::string dir =
      JoinPath(::testing::TempDir(), absl::StrCat("idle_hooks_", RandomHexName()));
  const HookedModel model;
  StopAtStepHook stop({.last_step = 1'000'000});
  CheckpointSaverHook saver({.checkpoint_dir = dir, .every = absl::Hours(1)});
  StepCounterHook counter({.every = 1'000'000});
  LoggingTensorHook logging({.tensors = {{"y", model.y}}, .every = absl::Hours(1)});
  NanTensorHook nan(model.y);
  SessionCreatorOptions creator;
  creator.session.config.intra_op_parallelism_threads = 1;
  MonitoredSessionOptions options;
  if (with_hooks) options.hooks = {&stop, &saver, &counter, &logging, &nan};
  auto session = SingularMonitoredSession(model.root, creator, std::move(options));
  EXPECT_OK(session.status());
  const auto step = (*session)->Prepare({model.x}, {model.y}, {model.count});
  EXPECT_OK(step.status());
  const Tensor x = Tensor::Scalar(3.f);
  Tensor y;
  const auto run = [&] {
    return step->RunInto(absl::MakeConstSpan(&x, 1), absl::MakeSpan(&y, 1)).ok();
  };
  bool ok = true;
  for (int i = 0; i < 200; ++i) ok &= run();
  const int64_t before = testing::Allocations();
  for (int i = 0; i < 1000; ++i) ok &= run();
  const int64_t allocated = testing::Allocations() - before;
  EXPECT_TRUE(ok);
  EXPECT_EQ(y.scalar<float>(), 3);
  session->reset();
  FileSystem::Posix()->RecursivelyDelete(dir).IgnoreError();
  return allocated;
}

TEST(MonitoredSessionMemoryTest, AStepWithoutHooksAllocatesNothing) {
  EXPECT_EQ(AllocationsOf1000Runs(false), 0);
}

TEST(MonitoredSessionMemoryTest, FiveIdleHooksAllocateNothing) {
  EXPECT_EQ(AllocationsOf1000Runs(true), 0);
}

}  // namespace
}  // namespace millrace
