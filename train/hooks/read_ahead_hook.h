// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_HOOKS_READ_AHEAD_HOOK_H_
#define MILLRACE_TRAIN_HOOKS_READ_AHEAD_HOOK_H_

// ReadAheadHook: the variables of a training step come with the end of the step before
// (train/read_ahead.h), in a MonitoredSession.
//
// Each run of the session must be a training step: with this hook it runs the training operation,
// whatever it fetches. Runs by RunContext::session and StepContext::session are without it. The
// first run in a session, one after a run that failed, and one after a pause of more than kMaxAge
// (another hook's evaluation, data that do not come) reads the variables first.
//
// A step does not see what other runs of this task's program have changed since the step before:
// a hook that trains another part of the model, or assigns a variable, by a run of its own calls
// ReadAnew.
//
// In a run, what reads a variable on the task that trains (a summary of a weight, a fetched weight)
// gets the value that the step uses.
//
// Failure: FailedPrecondition without a global step.

#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "core/status.h"
#include "core/tensor.h"
#include "graph/scope.h"
#include "train/read_ahead.h"
#include "train/session_run_hook.h"

namespace millrace {

struct ReadAheadOptions {
  Operation train_op;
  // What else each run fetches.
  std::vector<Output> fetches = {};
};

class ReadAheadHook : public SessionRunHook {
 public:
  static constexpr absl::Duration kMaxAge = absl::Seconds(1);

  explicit ReadAheadHook(ReadAheadOptions options) : options_(std::move(options)) {}
  std::string name() const override { return "ReadAheadHook"; }
  // The next step reads the variables first. By the thread that runs the session.
  void ReadAnew() { values_.clear(); }
  Status Begin(HookSetup* setup) override;
  Status AfterCreateSession(RunContext* context, const CreatedSession& created) override;
  StatusOr<GroupMask> BeforeRun(RunContext* context) override;
  Status AfterRun(RunContext* context, const RunValues& values) override;

 private:
  const ReadAheadOptions options_;
  ReadAhead ahead_;
  int group_ = 0;
  absl::Time kept_at_ = absl::InfinitePast();
  std::vector<Tensor> values_;  // of the next run; none: to be read now
};

}  // namespace millrace

#endif  // MILLRACE_TRAIN_HOOKS_READ_AHEAD_HOOK_H_
