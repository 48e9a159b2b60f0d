// SPDX-License-Identifier: Apache-2.0
#include "train/hooks/global_step_waiter.h"

#include <vector>

#include "core/logging.h"
#include "core/tensor.h"

namespace millrace {
namespace {

constexpr absl::Duration kReportPeriod = absl::Seconds(10);

}  // namespace

Status GlobalStepWaiterHook::Begin(HookSetup* setup) {
  if (options_.poll <= absl::ZeroDuration()) {
    return InvalidArgument("poll must be > 0, got ", absl::FormatDuration(options_.poll));
  }
  MR_ASSIGN_OR_RETURN(global_step_, setup->GlobalStep());
  reached_ = options_.wait_until_step <= 0;
  return absl::OkStatus();
}

Status GlobalStepWaiterHook::AfterCreateSession(RunContext*, const CreatedSession& created) {
  coordinator_ = created.coordinator;
  return absl::OkStatus();
}

StatusOr<GroupMask> GlobalStepWaiterHook::BeforeRun(RunContext* context) {
  LogThrottle throttle(kReportPeriod, /*wait_first=*/false, options_.clock);
  while (!reached_) {
    MR_ASSIGN_OR_RETURN(const std::vector<Tensor> out,
                        context->session()->Run({}, {global_step_.value}));
    const int64_t step = StepIn(out[0]);
    reached_ = step >= options_.wait_until_step;
    if (reached_) break;
    if (throttle.ShouldLog()) {
      LogInfo(name(), ": waits for global step ", options_.wait_until_step, ", now ", step);
    }
    if (coordinator_.WaitForStop(options_.clock->Now() + options_.poll)) break;
  }
  return kNoGroups;
}

}  // namespace millrace
