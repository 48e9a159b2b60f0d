// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_HOOKS_STEP_COUNTER_H_
#define MILLRACE_TRAIN_HOOKS_STEP_COUNTER_H_

// StepCounterHook: how many global steps a second, of all tasks together: in the log, and as the
// scalar "<global step's name>/sec".
//
// A step that does not move in 20 runs in a row is a warning, once: what is trained does not count,
// and nothing that goes by steps will happen.
//
// Failure: InvalidArgument for a period that is none; FailedPrecondition without a global step.

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "core/status.h"
#include "layers/variable.h"
#include "train/every.h"
#include "train/hooks/step_timer.h"
#include "train/session_run_hook.h"
#include "train/summary_writer.h"

namespace millrace {

struct StepCounterOptions {
  Every every = 100;
  SummaryWriter* writer = nullptr;  // not owned
  bool logs = true;                 // off: for the writer alone
};

class StepCounterHook : public SessionRunHook {
 public:
  explicit StepCounterHook(StepCounterOptions options = {}) : options_(options) {}
  std::string name() const override { return "StepCounterHook"; }
  Status Begin(HookSetup* setup) override;
  Status AfterCreateSession(RunContext* context, const CreatedSession& created) override;
  StatusOr<GroupMask> BeforeRun(RunContext* context) override;
  Status AfterRun(RunContext* context, const RunValues& values) override;

  // Of the last period; 0 before the first one is over.
  double steps_per_second() const { return steps_per_second_; }

 private:
  const StepCounterOptions options_;
  Variable global_step_;
  int group_ = 0;
  StepTimer timer_;
  double steps_per_second_ = 0;
  int64_t former_step_ = -1;
  int stalled_runs_ = 0;
  bool has_warned_ = false;
};

}  // namespace millrace

#endif  // MILLRACE_TRAIN_HOOKS_STEP_COUNTER_H_
