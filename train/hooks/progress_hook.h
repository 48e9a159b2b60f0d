// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_HOOKS_PROGRESS_HOOK_H_
#define MILLRACE_TRAIN_HOOKS_PROGRESS_HOOK_H_

// ProgressHook: how far a loop is, for a person: one live line on a terminal, plain lines elsewhere
// (train/progress.h).
//
// Failure: FailedPrecondition without a global step.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "core/status.h"
#include "graph/scope.h"
#include "layers/variable.h"
#include "train/progress.h"
#include "train/session_run_hook.h"

namespace millrace {

struct ProgressHookOptions {
  Output loss = {};  // shown when given: a scalar, float or double
  // last_step 0: as a hook of the session has said.
  ProgressOptions progress = {};
};

class ProgressHook : public SessionRunHook {
 public:
  explicit ProgressHook(ProgressHookOptions options) : options_(std::move(options)) {}
  std::string name() const override { return "ProgressHook"; }
  Status Begin(HookSetup* setup) override;
  Status AfterCreateSession(RunContext* context, const CreatedSession& created) override;
  StatusOr<GroupMask> BeforeRun(RunContext* context) override;
  Status AfterRun(RunContext* context, const RunValues& values) override;
  Status End(const LoopEnd& end) override;

 private:
  const ProgressHookOptions options_;
  std::unique_ptr<Progress> progress_;
  int64_t last_step_ = 0;
  Variable step_;
  int group_ = 0;
  absl::Time next_look_;
  std::optional<double> loss_;  // as it was shown last
};

}  // namespace millrace

#endif  // MILLRACE_TRAIN_HOOKS_PROGRESS_HOOK_H_
