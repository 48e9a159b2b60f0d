// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_HOOKS_GLOBAL_STEP_WAITER_H_
#define MILLRACE_TRAIN_HOOKS_GLOBAL_STEP_WAITER_H_

// GlobalStepWaiterHook: holds a task's steps back until others have reached a global step, so that
// workers start one after the other.
//
// Looks each half second and says every 10 s how far the others are. A thread that asks for the
// stop, and a lost session, end the wait.
//
// Failure: FailedPrecondition without a global step.

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "core/clock.h"
#include "core/status.h"
#include "layers/variable.h"
#include "train/coordinator.h"
#include "train/session_run_hook.h"

namespace millrace {

struct GlobalStepWaiterOptions {
  int64_t wait_until_step = 0;
  absl::Duration poll = absl::Milliseconds(500);
  Clock* clock = Clock::Real();
};

class GlobalStepWaiterHook : public SessionRunHook {
 public:
  explicit GlobalStepWaiterHook(GlobalStepWaiterOptions options) : options_(options) {}
  std::string name() const override { return "GlobalStepWaiterHook"; }
  Status Begin(HookSetup* setup) override;
  Status AfterCreateSession(RunContext* context, const CreatedSession& created) override;
  StatusOr<GroupMask> BeforeRun(RunContext* context) override;

 private:
  const GlobalStepWaiterOptions options_;
  Variable global_step_;
  Coordinator coordinator_;
  bool reached_ = false;
};

}  // namespace millrace

#endif  // MILLRACE_TRAIN_HOOKS_GLOBAL_STEP_WAITER_H_
