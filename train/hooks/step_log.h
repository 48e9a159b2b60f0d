// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_HOOKS_STEP_LOG_H_
#define MILLRACE_TRAIN_HOOKS_STEP_LOG_H_

// StepLogHook: a line in the log for each group of steps, all that a person asks in one:
//
//   loss = 0.25, step = 100 (0.251 sec), global_step/sec: 398.4, 0:12 left
//
// It begins with what TensorFlow's loops log of the loss, and has what they log of the rate, word
// for word: programs that look for either find it (LoggingTensorHook, StepCounterHook). The rate is
// that of all tasks together since the line before. The time left, where a hook of the session has
// said which step is the last one, or how many there are, goes by all steps since the session's
// first line: evaluations in between count.
//
// At the first run of a session, without a rate, and then each so many global steps, of all tasks,
// or after so much time.
//
// Failure: InvalidArgument for a loss that is none, and a period that is none; FailedPrecondition
// without a global step.

#include <cstdint>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "core/status.h"
#include "graph/scope.h"
#include "layers/variable.h"
#include "train/every.h"
#include "train/hooks/step_timer.h"
#include "train/session_run_hook.h"

namespace millrace {

struct StepLogOptions {
  Output loss = {};
  Every every = 100;
  // Off: what is measured over time is not this task's to say.
  bool shows_rate = true;
};

class StepLogHook : public SessionRunHook {
 public:
  explicit StepLogHook(StepLogOptions options) : options_(std::move(options)) {}
  std::string name() const override { return "StepLogHook"; }
  Status Begin(HookSetup* setup) override;
  Status AfterCreateSession(RunContext* context, const CreatedSession& created) override;
  StatusOr<GroupMask> BeforeRun(RunContext* context) override;
  Status AfterRun(RunContext* context, const RunValues& values) override;

 private:
  // Of a line.
  struct Shown {
    int64_t step = 0;
    absl::Time time;
  };

  // ", 0:12 left"; "" where nobody knows.
  std::string TimeLeft(const Shown& now) const;

  const StepLogOptions options_;
  Variable global_step_;
  int step_group_ = 0, loss_group_ = 0;
  StepTimer timer_;
  int64_t next_step_ = 0, last_step_ = 0;
  std::optional<Shown> first_, former_;  // of the session
};

}  // namespace millrace

#endif  // MILLRACE_TRAIN_HOOKS_STEP_LOG_H_
