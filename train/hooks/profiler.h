// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_HOOKS_PROFILER_H_
#define MILLRACE_TRAIN_HOOKS_PROFILER_H_

// ProfilerHook: traces a step each so many global steps, or after so much time, and writes what its
// nodes did, when and on which device, to `<output_dir>/timeline-<global step>.json`, for
// chrome://tracing and Perfetto.
//
//   ProfilerHook profiler({.every = 1000, .output_dir = "run"});
//
// In a cluster the trace has the nodes of all tasks that the step ran on. The first run of a
// session is not traced: it compiles the step. A traced step is slower; the others cost nothing.
//
// Failure: InvalidArgument for a period that is none; FailedPrecondition without a global step. An
// error of the files is in the log, and training goes on.

#include <cstdint>
#include <string>

#include "core/file_system.h"
#include "core/status.h"
#include "layers/variable.h"
#include "train/every.h"
#include "train/hooks/step_timer.h"
#include "train/session_run_hook.h"
#include "train/summary_writer.h"

namespace millrace {

struct ProfilerOptions {
  Every every = absl::Minutes(10);  // global steps, or time
  std::string output_dir = "";      // made when it is missing; "": that of the program
  // Gets the trace, too, tagged "step_<global step>"; not owned.
  SummaryWriter* writer = nullptr;
  FileSystem* file_system = FileSystem::Default();
};

class ProfilerHook : public SessionRunHook {
 public:
  explicit ProfilerHook(ProfilerOptions options) : options_(std::move(options)) {}
  std::string name() const override { return "ProfilerHook"; }
  Status Begin(HookSetup* setup) override;
  Status AfterCreateSession(RunContext* context, const CreatedSession& created) override;
  StatusOr<GroupMask> BeforeRun(RunContext* context) override;
  Status AfterRun(RunContext* context, const RunValues& values) override;

 private:
  const ProfilerOptions options_;
  Variable global_step_;
  int group_ = 0;
  StepTimer timer_;
  int64_t next_step_ = -1;  // that the next run makes, as far as is known; -1: not at all
  bool traced_ = false;     // the run under way
};

}  // namespace millrace

#endif  // MILLRACE_TRAIN_HOOKS_PROFILER_H_
