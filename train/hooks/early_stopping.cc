// SPDX-License-Identifier: Apache-2.0
#include "train/hooks/early_stopping.h"

#include <cmath>
#include <utility>

#include "absl/time/time.h"
#include "core/clock.h"
#include "core/logging.h"
#include "core/tensor.h"
#include "graph/graph.h"
#include "layers/variable.h"
#include "ops/array/constant.h"
#include "ops/state/resource_variable.h"
#include "train/session_manager.h"

namespace millrace {
namespace {

constexpr char kSignal[] = "signal_early_stopping/STOP";
constexpr char kAsked[] = "signal_early_stopping/ASKED";
// The others wait so long for the chief's first question, and look so often.
constexpr absl::Duration kChiefTime = absl::Seconds(30);
constexpr absl::Duration kLook = absl::Milliseconds(50);

std::function<StatusOr<bool>()> StopIfCrossed(ReadEvaluations read, double threshold,
                                              int64_t min_steps, bool higher) {
  return [=]() -> StatusOr<bool> {
    MR_ASSIGN_OR_RETURN(const std::vector<Evaluation> evaluations, read());
    for (const Evaluation& evaluation : evaluations) {
      if (evaluation.global_step < min_steps) continue;
      if (higher ? evaluation.value > threshold : evaluation.value < threshold) return true;
    }
    return false;
  };
}

std::function<StatusOr<bool>()> StopIfNoBetter(ReadEvaluations read, int64_t max_steps,
                                               int64_t min_steps, bool higher) {
  return [=]() -> StatusOr<bool> {
    MR_ASSIGN_OR_RETURN(const std::vector<Evaluation> evaluations, read());
    const Evaluation* best = nullptr;
    for (const Evaluation& evaluation : evaluations) {
      if (evaluation.global_step < min_steps) continue;
      // A value that is not a number is never the best of several.
      if (best == nullptr || (std::isnan(best->value) && !std::isnan(evaluation.value)) ||
          (higher ? evaluation.value > best->value : evaluation.value < best->value)) {
        best = &evaluation;
      }
      if (evaluation.global_step - best->global_step >= max_steps) return true;
    }
    return false;
  };
}

}  // namespace

Status EarlyStoppingHook::Begin(HookSetup* setup) {
  MR_RETURN_IF_ERROR(options_.status);
  MR_RETURN_IF_ERROR(CheckEvery("every", options_.every));
  if (options_.is_chief && !options_.should_stop) {
    return InvalidArgument("should_stop must be given on the chief, got none");
  }
  MR_RETURN_IF_ERROR(setup->Claim(kSignal));
  // Where the others' step counter is, all tasks see it.
  MR_ASSIGN_OR_RETURN(const Variable step, setup->GlobalStep());
  const Scope scope = setup->scope_of_session()
                          .WithSubScope("signal_early_stopping")
                          .WithDevice(step.handle.node()->requested_device());
  const Output stop =
      VarHandleOp(scope.WithName("STOP"), DT_BOOL, Shape(), {.shared_name = kSignal});
  const Output asked =
      VarHandleOp(scope.WithName("ASKED"), DT_BOOL, Shape(), {.shared_name = kAsked});
  signal_ = AssignVariableOp(scope.WithName("signal"), stop, Const(scope, true));
  clear_ = DestroyResourceOp(scope.WithName("clear"), stop, {.ignore_lookup_error = true});
  say_asked_ = AssignVariableOp(scope.WithName("say_asked"), asked, Const(scope, true));
  clear_asked_ =
      DestroyResourceOp(scope.WithName("clear_asked"), asked, {.ignore_lookup_error = true});
  is_signalled_ = VarIsInitializedOp(scope.WithName("is_signalled"), stop);
  is_asked_ = VarIsInitializedOp(scope.WithName("is_asked"), asked);
  group_ = setup->AddGroup({.fetches = {is_signalled_}});
  timer_ = StepTimer(options_.every);
  signalled_ = false;
  return absl::OkStatus();
}

Status EarlyStoppingHook::AfterCreateSession(RunContext* context, const CreatedSession& created) {
  if (!options_.is_chief) return created.is_recovery ? absl::OkStatus() : AwaitChief(context);
  // The servers may hold the signal of an end that is being gone on from, or have lost this one.
  const Operation stop = signalled_ ? signal_ : clear_;
  const Operation asked = created.is_recovery ? say_asked_ : clear_asked_;
  MR_RETURN_IF_ERROR(context->session()->Run({}, {}, {stop, asked}).status());
  if (created.is_recovery) return absl::OkStatus();
  const bool is_new = created.start == SessionManager::Start::kInitialized;
  if (options_.on_begin) options_.on_begin(is_new ? -1 : created.global_step);
  // The evaluations that ended it may end this one, too: not a step later.
  if (!is_new) MR_RETURN_IF_ERROR(Ask(context));
  // After the signal: others look for that once this is said.
  return context->session()->Run({}, {}, {say_asked_}).status();
}

Status EarlyStoppingHook::AwaitChief(RunContext* context) const {
  Clock* const clock = options_.clock;
  const absl::Time deadline = clock->Now() + kChiefTime;
  while (!context->stop_requested()) {
    MR_ASSIGN_OR_RETURN(const std::vector<Tensor> said,
                        context->session()->Run({}, {is_asked_, is_signalled_}));
    MR_ASSIGN_OR_RETURN(const bool asked, said[0].value<bool>());
    MR_ASSIGN_OR_RETURN(const bool signalled, said[1].value<bool>());
    if (asked) {
      if (signalled) context->RequestStop(options_.reason);
      return absl::OkStatus();
    }
    if (clock->Now() >= deadline) {
      LogWarning(name(), ": the chief has not said within ", absl::FormatDuration(kChiefTime),
                 " whether training goes on; this task trains. Every task must be given the hook");
      return absl::OkStatus();
    }
    clock->SleepFor(kLook);
  }
  return absl::OkStatus();
}

StatusOr<GroupMask> EarlyStoppingHook::BeforeRun(RunContext*) {
  return options_.is_chief ? kNoGroups : MaskOf(group_);
}

Status EarlyStoppingHook::AfterRun(RunContext* context, const RunValues& values) {
  if (!options_.is_chief) {
    const StatusOr<bool> signalled = values.value(group_).value<bool>();
    if (signalled.value_or(false)) context->RequestStop(options_.reason);
    return absl::OkStatus();
  }
  const bool has_news = options_.has_news && options_.has_news();
  if (!has_news && !timer_.IsDue(context->run_number(),
                                 timer_.by_time() ? context->now() : absl::InfinitePast())) {
    return absl::OkStatus();
  }
  return Ask(context);
}

Status EarlyStoppingHook::Ask(RunContext* context) {
  timer_.Done(context->run_number(), context->now());
  MR_ASSIGN_OR_RETURN(const bool stop, options_.should_stop());
  if (!stop) return absl::OkStatus();
  LogInfo(name(), ": asks all tasks to stop: ", options_.reason);
  signalled_ = true;
  context->RequestStop(options_.reason);
  return context->session()->Run({}, {}, {signal_}).status();
}

std::function<StatusOr<bool>()> StopIfHigher(ReadEvaluations read, double threshold,
                                             int64_t min_steps) {
  return StopIfCrossed(std::move(read), threshold, min_steps, /*higher=*/true);
}

std::function<StatusOr<bool>()> StopIfLower(ReadEvaluations read, double threshold,
                                            int64_t min_steps) {
  return StopIfCrossed(std::move(read), threshold, min_steps, /*higher=*/false);
}

std::function<StatusOr<bool>()> StopIfNoIncrease(ReadEvaluations read, int64_t max_steps,
                                                 int64_t min_steps) {
  return StopIfNoBetter(std::move(read), max_steps, min_steps, /*higher=*/true);
}

std::function<StatusOr<bool>()> StopIfNoDecrease(ReadEvaluations read, int64_t max_steps,
                                                 int64_t min_steps) {
  return StopIfNoBetter(std::move(read), max_steps, min_steps, /*higher=*/false);
}

}  // namespace millrace
