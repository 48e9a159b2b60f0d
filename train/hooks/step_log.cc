// SPDX-License-Identifier: Apache-2.0
#include "train/hooks/step_log.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/logging.h"
#include "train/hooks/logging_tensor.h"
#include "train/progress.h"

namespace millrace {

Status StepLogHook::Begin(HookSetup* setup) {
  if (!options_.loss.valid()) return InvalidArgument("loss must be a tensor, got an invalid one");
  MR_RETURN_IF_ERROR(CheckEvery("every", options_.every));
  MR_ASSIGN_OR_RETURN(global_step_, setup->GlobalStep());
  step_group_ = setup->AddGroup({.fetches = {global_step_.value}});
  loss_group_ = setup->AddGroup({.fetches = {options_.loss}});
  timer_ = StepTimer(options_.every);
  return absl::OkStatus();
}

Status StepLogHook::AfterCreateSession(RunContext*, const CreatedSession& created) {
  next_step_ = created.global_step;
  last_step_ = created.last_step;
  // What a recovery took, and how far back it went, is no speed.
  timer_.Reset();
  first_.reset();
  former_.reset();
  return absl::OkStatus();
}

StatusOr<GroupMask> StepLogHook::BeforeRun(RunContext* context) {
  const bool due =
      timer_.IsDue(next_step_, timer_.by_time() ? context->now() : absl::InfinitePast());
  return MaskOf(step_group_) | (due ? MaskOf(loss_group_) : kNoGroups);
}

Status StepLogHook::AfterRun(RunContext* context, const RunValues& values) {
  // That of the next run, as far as nobody else counts.
  const int64_t step = StepIn(values.value(step_group_));
  next_step_ = step + 1;
  if (!values.has(loss_group_)) return absl::OkStatus();
  const Shown now = {.step = step, .time = context->now()};
  timer_.Done(now.step, now.time);
  std::string line = absl::StrCat("loss = ", TextOf(values.value(loss_group_)), ", step = ", step);
  if (former_) {
    const double seconds = absl::ToDoubleSeconds(now.time - former_->time);
    absl::StrAppendFormat(&line, " (%.3f sec)", seconds);
    if (options_.shows_rate && seconds > 0) {
      absl::StrAppendFormat(&line, ", %s/sec: %g", global_step_.name,
                            static_cast<double>(now.step - former_->step) / seconds);
    }
  }
  if (!first_) first_ = now;
  former_ = now;
  LogInfo(line, TimeLeft(now));
  return absl::OkStatus();
}

std::string StepLogHook::TimeLeft(const Shown& now) const {
  const int64_t done = now.step - first_->step;
  const int64_t left = last_step_ - now.step;
  const double seconds = absl::ToDoubleSeconds(now.time - first_->time);
  if (last_step_ <= 0 || left <= 0 || done <= 0 || seconds <= 0) return "";
  return absl::StrCat(
      ", ", ClockText(seconds * static_cast<double>(left) / static_cast<double>(done)), " left");
}

}  // namespace millrace
