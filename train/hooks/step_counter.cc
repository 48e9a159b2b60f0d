// SPDX-License-Identifier: Apache-2.0
#include "train/hooks/step_counter.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/logging.h"
#include "train/training_metrics.h"

namespace millrace {
namespace {

constexpr int kStalledRuns = 20;

}  // namespace

Status StepCounterHook::Begin(HookSetup* setup) {
  MR_RETURN_IF_ERROR(CheckEvery("every", options_.every));
  MR_ASSIGN_OR_RETURN(global_step_, setup->GlobalStep());
  group_ = setup->AddGroup({.fetches = {global_step_.value}});
  timer_ = StepTimer(options_.every);
  steps_per_second_ = 0;
  former_step_ = -1;
  stalled_runs_ = 0;
  has_warned_ = false;
  return absl::OkStatus();
}

Status StepCounterHook::AfterCreateSession(RunContext* context, const CreatedSession& created) {
  // What a recovery took, and how far back it went, is no speed.
  timer_.Done(created.global_step, context->now());
  former_step_ = -1;
  stalled_runs_ = 0;
  return absl::OkStatus();
}

StatusOr<GroupMask> StepCounterHook::BeforeRun(RunContext*) { return MaskOf(group_); }

Status StepCounterHook::AfterRun(RunContext* context, const RunValues& values) {
  const int64_t step = StepIn(values.value(group_));
  NoteGlobalStep(step);
  stalled_runs_ = step == former_step_ ? stalled_runs_ + 1 : 0;
  former_step_ = step;
  if (stalled_runs_ >= kStalledRuns && !std::exchange(has_warned_, true)) {
    LogWarning(name(), ": the global step must grow with training, got ", step, " after ",
               kStalledRuns, " runs still; the optimizer counts it (.global_step)");
  }
  if (!timer_.IsDue(step, timer_.by_time() ? context->now() : absl::InfinitePast())) {
    return absl::OkStatus();
  }
  const auto elapsed = timer_.Since(step, context->now());
  timer_.Done(step, context->now());
  if (!elapsed || elapsed->time <= absl::ZeroDuration()) return absl::OkStatus();
  steps_per_second_ = static_cast<double>(elapsed->steps) / absl::ToDoubleSeconds(elapsed->time);
  const std::string tag = absl::StrCat(global_step_.name, "/sec");
  if (options_.logs) LogInfo(tag, ": ", absl::StrFormat("%g", steps_per_second_));
  if (options_.writer == nullptr) return absl::OkStatus();
  const Status added = options_.writer->AddScalar(tag, steps_per_second_, step);
  if (!added.ok()) LogWarning(name(), ": ", added.message());
  return absl::OkStatus();
}

}  // namespace millrace
