// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_HOOKS_READ_AHEAD_HOOK_H_
#define MILLRACE_TRAIN_HOOKS_READ_AHEAD_HOOK_H_

// ReadAheadHook: the variables of a training step come with the end of the step before
// (train/read_ahead.h), in a MonitoredSession.
//
// Each run of the session must be a training step: with this hook it runs the training operation,
// whatever it fetches. Runs by RunContext::session and StepContext::session are without it. The
// first run in a session, and one after a run that failed, reads the variables first.
//
// In a run, what reads a variable on the task that trains (a summary of a weight, a fetched weight)
// gets the value that the step uses.
//
// Failure: FailedPrecondition without a global step.

#include <string>
#include <utility>
#include <vector>

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
  explicit ReadAheadHook(ReadAheadOptions options) : options_(std::move(options)) {}
  std::string name() const override { return "ReadAheadHook"; }
  Status Begin(HookSetup* setup) override;
  Status AfterCreateSession(RunContext* context, const CreatedSession& created) override;
  StatusOr<GroupMask> BeforeRun(RunContext* context) override;
  Status AfterRun(RunContext* context, const RunValues& values) override;

 private:
  const ReadAheadOptions options_;
  ReadAhead ahead_;
  int group_ = 0;
  std::vector<Tensor> values_;  // of the next run; none: to be read now
};

}  // namespace millrace

#endif  // MILLRACE_TRAIN_HOOKS_READ_AHEAD_HOOK_H_
