// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_STEP_TRACE_H_
#define MILLRACE_TRAIN_STEP_TRACE_H_

// StepTrace: traces a few steps of a program that trains, which needs no change for it.
//
//   MILLRACE_TRACE=100:5    five steps, from the first one after global step 100 on
//   SIGUSR2                 as many, five without the variable, from now on; each time it comes
//
// The steps, with the nodes of all tasks that they ran on and the tensors between them, are one
// file for chrome://tracing and Perfetto: `trace-<task>-<first>-<last>.json` in MILLRACE_TRACE_DIR,
// or in the current directory. The log says where it is.
//
//   idle -> tracing   the step, or the signal, has come
//   tracing -> idle   the last step has been written, or the session was lost
//
// A step that is traced is slower; others pay for one load.
//
// Thread-safety: thread-compatible; the signal may come at any time. One per loop: of several loops
// in a process one answers a signal. A handler for SIGUSR2 that the program has stays.
// Failure: InvalidArgument for a variable that is none; a file that cannot be written is in the
// log.

#include <cstdint>
#include <memory>
#include <string>

#include "core/file_system.h"
#include "core/status.h"
#include "proto/step_stats.pb.h"
#include "train/session_run_hook.h"

namespace millrace {

class StepTrace {
 public:
  static StatusOr<std::unique_ptr<StepTrace>> OfEnvironment();

  // Whether the run that follows global step `step` is to be traced.
  bool Wants(int64_t step) { return left_ > 0 || ((step >= from_ || HasSignal()) && Begins(step)); }
  // What such a run was; `step`: the global step that it made.
  void Add(int64_t step, const tensorflow::StepStats& stats);
  // A session was lost: what was traced so far is written.
  void End();

 private:
  StepTrace() = default;
  static bool HasSignal();
  bool Begins(int64_t step);

  int64_t from_ = INT64_MAX;  // that no step begins after yet; no more once it has begun
  int64_t count_ = 5;
  std::string directory_;

  int64_t left_ = 0;
  int64_t first_ = 0, last_ = 0;
  tensorflow::StepStats stats_;
};

// The same as a hook. Its global step is that with which the session began, and the steps of this
// task since then.
class StepTraceHook : public SessionRunHook {
 public:
  explicit StepTraceHook(std::unique_ptr<StepTrace> trace) : trace_(std::move(trace)) {}
  std::string name() const override { return "StepTraceHook"; }
  Status AfterCreateSession(RunContext* context, const CreatedSession& created) override;
  StatusOr<GroupMask> BeforeRun(RunContext* context) override;
  Status AfterRun(RunContext* context, const RunValues& values) override;

 private:
  const std::unique_ptr<StepTrace> trace_;
  int64_t step_ = 0;
  bool is_first_ = true;  // run of a session: it compiles the step
  bool is_traced_ = false;
};

}  // namespace millrace

#endif  // MILLRACE_TRAIN_STEP_TRACE_H_
