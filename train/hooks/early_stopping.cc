// SPDX-License-Identifier: Apache-2.0
#include "train/hooks/early_stopping.h"

#include <utility>

#include "core/logging.h"
#include "graph/graph.h"
#include "layers/variable.h"
#include "ops/array/constant.h"
#include "ops/state/resource_variable.h"
#include "train/session_manager.h"

namespace millrace {
namespace {

constexpr char kSignal[] = "signal_early_stopping/STOP";

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
      if (best == nullptr ||
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
  const Output handle =
      VarHandleOp(scope.WithName("STOP"), DT_BOOL, Shape(), {.shared_name = kSignal});
  signal_ = AssignVariableOp(scope.WithName("signal"), handle, Const(scope, true));
  clear_ = DestroyResourceOp(scope.WithName("clear"), handle, {.ignore_lookup_error = true});
  group_ =
      setup->AddGroup({.fetches = {VarIsInitializedOp(scope.WithName("is_signalled"), handle)}});
  timer_ = StepTimer(options_.every);
  signalled_ = false;
  return absl::OkStatus();
}

Status EarlyStoppingHook::AfterCreateSession(RunContext* context, const CreatedSession& created) {
  if (!options_.is_chief) return absl::OkStatus();
  // The servers may hold the signal of an end that is being gone on from, or have lost this one.
  MR_RETURN_IF_ERROR(context->session()->Run({}, {}, {signalled_ ? signal_ : clear_}).status());
  // The evaluations that ended it may end this one, too: not a step later.
  const bool was_trained = created.start != SessionManager::Start::kInitialized;
  return was_trained && !created.is_recovery ? Ask(context) : absl::OkStatus();
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
  if (!timer_.IsDue(context->run_number(),
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
