// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_HOOKS_SUMMARY_SAVER_H_
#define MILLRACE_TRAIN_HOOKS_SUMMARY_SAVER_H_

// SummarySaverHook: writes what the graph's summaries say of a step (train/summaries.h): of the
// first run, then each so many global steps or after so much time.
//
//   AddScalarSummary(model, "loss", loss);
//   SummarySaverHook summaries({.every = 100, .output_dir = "run"});
//
// Summaries are fetched with the step itself, in those runs alone, and written under the global
// step after it. The first run of each session writes a START, by which TensorBoard drops what a
// lost session had trained beyond its checkpoint. The file is flushed at the end.
//
// Failure: InvalidArgument without a writer or a directory, and for a summary_op that gives no
// strings; FailedPrecondition without a global step. An error of the files is in the log, and
// training goes on.

#include <cstdint>
#include <memory>
#include <string>

#include "core/status.h"
#include "graph/scope.h"
#include "layers/variable.h"
#include "train/every.h"
#include "train/hooks/step_timer.h"
#include "train/session_run_hook.h"
#include "train/summary_writer.h"

namespace millrace {

struct SummarySaverOptions {
  Every every = 100;  // global steps, or time
  // Strings of any shape, each a serialized Summary. Otherwise the one of the collection
  // "summary_op", or all summaries that the graph has when this hook's Begin is called; a graph
  // without any gets START alone.
  Output summary_op = {};
  SummaryWriter* writer = nullptr;  // not owned
  std::string output_dir = "";      // of event files, in place of `writer`
};

class SummarySaverHook : public SessionRunHook {
 public:
  explicit SummarySaverHook(SummarySaverOptions options) : options_(std::move(options)) {}
  std::string name() const override { return "SummarySaverHook"; }
  Status Begin(HookSetup* setup) override;
  Status AfterCreateSession(RunContext* context, const CreatedSession& created) override;
  StatusOr<GroupMask> BeforeRun(RunContext* context) override;
  Status AfterRun(RunContext* context, const RunValues& values) override;
  Status End(const LoopEnd& end) override;

 private:
  void Note(const Status& written) const;

  const SummarySaverOptions options_;
  std::unique_ptr<SummaryWriter> owned_writer_;
  SummaryWriter* writer_ = nullptr;
  Variable global_step_;
  int step_group_ = 0;
  int summary_group_ = -1;  // none: there are no summaries
  StepTimer timer_;
  int64_t next_step_ = -1;  // that the next run makes, as far as is known; -1: not at all
};

}  // namespace millrace

#endif  // MILLRACE_TRAIN_HOOKS_SUMMARY_SAVER_H_
