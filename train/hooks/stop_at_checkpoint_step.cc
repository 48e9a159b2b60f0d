// SPDX-License-Identifier: Apache-2.0
#include "train/hooks/stop_at_checkpoint_step.h"

#include <optional>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/logging.h"
#include "core/tensor.h"
#include "saver/saver.h"

namespace millrace {
namespace {

constexpr absl::Duration kReportPeriod = absl::Seconds(10);

}  // namespace

int64_t StepOfCheckpoint(absl::string_view path) {
  const size_t dash = path.rfind('-');
  int64_t step = -1;
  if (dash == absl::string_view::npos || !absl::SimpleAtoi(path.substr(dash + 1), &step)) return -1;
  return step;
}

Status StopAtCheckpointStepHook::Begin(HookSetup* setup) {
  if (options_.last_step <= 0 || options_.checkpoint_dir.empty() ||
      options_.poll <= absl::ZeroDuration()) {
    return InvalidArgument("last_step and poll must be > 0 and checkpoint_dir a directory, got ",
                           options_.last_step, ", ", absl::FormatDuration(options_.poll), " and '",
                           options_.checkpoint_dir, "'");
  }
  MR_ASSIGN_OR_RETURN(global_step_, setup->GlobalStep());
  group_ = setup->AddGroup({.fetches = {global_step_.value}});
  setup->SetLastStep(options_.last_step);
  return absl::OkStatus();
}

Status StopAtCheckpointStepHook::AfterCreateSession(RunContext*, const CreatedSession& created) {
  coordinator_ = created.coordinator;
  return absl::OkStatus();
}

StatusOr<GroupMask> StopAtCheckpointStepHook::BeforeRun(RunContext*) { return MaskOf(group_); }

Status StopAtCheckpointStepHook::AfterRun(RunContext* context, const RunValues& values) {
  if (StepIn(values.value(group_)) + 1 < options_.last_step) return absl::OkStatus();
  Clock* const clock = options_.clock;
  const absl::Time deadline = clock->Now() + options_.max_wait;
  LogThrottle throttle(kReportPeriod, /*wait_first=*/false, clock);
  while (true) {
    const std::optional<std::string> latest =
        LatestCheckpoint(options_.file_system, options_.checkpoint_dir);
    if (latest && StepOfCheckpoint(*latest) >= options_.last_step) {
      context->RequestStop(absl::StrCat("'", *latest, "' has step ", options_.last_step));
      return absl::OkStatus();
    }
    // The chief, or a parameter server, may have been lost meanwhile.
    MR_ASSIGN_OR_RETURN(const std::vector<Tensor> out,
                        context->session()->Run({}, {global_step_.value}));
    if (StepIn(out[0]) < options_.last_step) return absl::OkStatus();
    const std::string now = latest ? absl::StrCat("'", *latest, "'") : "none";
    if (clock->Now() >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat(
          "a checkpoint of step ", options_.last_step, " must be in '", options_.checkpoint_dir,
          "' after ", absl::FormatDuration(options_.max_wait), ", got ", now));
    }
    if (throttle.ShouldLog()) {
      LogInfo(name(), ": waits for the chief's checkpoint of step ", options_.last_step, " in '",
              options_.checkpoint_dir, "', now ", now);
    }
    if (coordinator_.WaitForStop(clock->Now() + options_.poll)) return absl::OkStatus();
  }
}

}  // namespace millrace
