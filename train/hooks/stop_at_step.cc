// SPDX-License-Identifier: Apache-2.0
#include "train/hooks/stop_at_step.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "core/tensor.h"

namespace millrace {

Status StopAtStepHook::Begin(HookSetup* setup) {
  if ((options_.last_step > 0) == (options_.num_steps > 0) || options_.last_step < 0 ||
      options_.num_steps < 0) {
    return InvalidArgument("exactly one of last_step and num_steps must be > 0, got ",
                           options_.last_step, " and ", options_.num_steps);
  }
  MR_ASSIGN_OR_RETURN(global_step_, setup->GlobalStep());
  group_ = setup->AddGroup({.fetches = {global_step_.value}});
  last_step_ = options_.last_step;
  if (last_step_ > 0) {
    setup->SetLastStep(last_step_);
  } else {
    setup->SetNumSteps(options_.num_steps);
  }
  return absl::OkStatus();
}

Status StopAtStepHook::AfterCreateSession(RunContext* context, const CreatedSession& created) {
  if (last_step_ == 0) last_step_ = created.global_step + options_.num_steps;
  StopIfReached(context, created.global_step);
  return absl::OkStatus();
}

StatusOr<GroupMask> StopAtStepHook::BeforeRun(RunContext*) { return MaskOf(group_); }

Status StopAtStepHook::AfterRun(RunContext* context, const RunValues& values) {
  // What was fetched may not have this run's own update yet.
  if (StepIn(values.value(group_)) + 1 < last_step_) return absl::OkStatus();
  MR_ASSIGN_OR_RETURN(const std::vector<Tensor> now,
                      context->session()->Run({}, {global_step_.value}));
  StopIfReached(context, StepIn(now[0]));
  return absl::OkStatus();
}

void StopAtStepHook::StopIfReached(RunContext* context, int64_t step) const {
  if (step >= last_step_) {
    context->RequestStop(absl::StrCat("reached step ", step, " of ", last_step_));
  }
}

}  // namespace millrace
