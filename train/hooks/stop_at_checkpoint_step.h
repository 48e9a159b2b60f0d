// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_HOOKS_STOP_AT_CHECKPOINT_STEP_H_
#define MILLRACE_TRAIN_HOOKS_STOP_AT_CHECKPOINT_STEP_H_

// StopAtCheckpointStepHook: ends a worker's loop when a checkpoint of the last global step is on
// the disk, not before: a worker that left earlier could not help a chief that falls back.
//
// Once the global step is reached the task waits, and says every 10 s for what; where the chief
// falls back behind the step meanwhile (a parameter server was lost), it trains on.
//
// Failure: DeadlineExceeded when no such checkpoint comes within max_wait; a lost session as that
// of any step.

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "core/clock.h"
#include "core/file_system.h"
#include "core/status.h"
#include "layers/variable.h"
#include "train/coordinator.h"
#include "train/session_run_hook.h"

namespace millrace {

struct StopAtCheckpointStepOptions {
  std::string checkpoint_dir;
  int64_t last_step = 0;
  absl::Duration poll = absl::Seconds(1);
  absl::Duration max_wait = absl::Seconds(7200);
  Clock* clock = Clock::Real();
  FileSystem* file_system = FileSystem::Default();
};

class StopAtCheckpointStepHook : public SessionRunHook {
 public:
  explicit StopAtCheckpointStepHook(StopAtCheckpointStepOptions options)
      : options_(std::move(options)) {}
  std::string name() const override { return "StopAtCheckpointStepHook"; }
  Status Begin(HookSetup* setup) override;
  Status AfterCreateSession(RunContext* context, const CreatedSession& created) override;
  StatusOr<GroupMask> BeforeRun(RunContext* context) override;
  Status AfterRun(RunContext* context, const RunValues& values) override;

 private:
  const StopAtCheckpointStepOptions options_;
  Variable global_step_;
  Coordinator coordinator_;
  int group_ = 0;
};

// The step in a checkpoint's name ("run/model.ckpt-120": 120); -1 when there is none.
int64_t StepOfCheckpoint(absl::string_view path);

}  // namespace millrace

#endif  // MILLRACE_TRAIN_HOOKS_STOP_AT_CHECKPOINT_STEP_H_
