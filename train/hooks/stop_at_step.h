// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_HOOKS_STOP_AT_STEP_H_
#define MILLRACE_TRAIN_HOOKS_STOP_AT_STEP_H_

// StopAtStepHook: ends the loop at a global step.
//
// Steps of all tasks count. The step that a run fetches is the one before its own update, or one
// that others have passed already: when it may have been the last the hook reads the step again
// before it asks for the stop. A session that begins at the last step or later runs none.
//
// Failure: InvalidArgument unless exactly one of the options is > 0; FailedPrecondition without a
// global step.

#include <cstdint>
#include <string>

#include "core/status.h"
#include "layers/variable.h"
#include "train/session_run_hook.h"

namespace millrace {

struct StopAtStepOptions {
  int64_t last_step = 0;
  // From the global step of the first session on: steps of a restored checkpoint do not count, a
  // recovery changes nothing.
  int64_t num_steps = 0;
};

class StopAtStepHook : public SessionRunHook {
 public:
  explicit StopAtStepHook(StopAtStepOptions options) : options_(options) {}
  std::string name() const override { return "StopAtStepHook"; }
  Status Begin(HookSetup* setup) override;
  Status AfterCreateSession(RunContext* context, const CreatedSession& created) override;
  StatusOr<GroupMask> BeforeRun(RunContext* context) override;
  Status AfterRun(RunContext* context, const RunValues& values) override;

 private:
  void StopIfReached(RunContext* context, int64_t step) const;

  const StopAtStepOptions options_;
  Variable global_step_;
  int group_ = 0;
  int64_t last_step_ = 0;
};

}  // namespace millrace

#endif  // MILLRACE_TRAIN_HOOKS_STOP_AT_STEP_H_
