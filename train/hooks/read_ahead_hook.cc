// SPDX-License-Identifier: Apache-2.0
#include "train/hooks/read_ahead_hook.h"

#include "core/logging.h"
#include "graph/graph.h"
#include "layers/variable.h"
#include "runtime/session.h"
#include "train/optimizer.h"

namespace millrace {

Status ReadAheadHook::Begin(HookSetup* setup) {
  values_.clear();
  ahead_ = ReadAhead();
  const Operation& train = options_.train_op;
  if (!train.valid() || train.node()->graph() != setup->scope().graph()) {
    return InvalidArgument("train_op must be of the session's graph, got ",
                           train.valid() ? "one of another" : "an invalid one");
  }
  MR_ASSIGN_OR_RETURN(const Variable global_step, setup->GlobalStep());
  const Scope root = setup->scope_of_session();
  const Output after = StepAfter(root.WithName("read_ahead/step_after"), train, global_step);
  MR_ASSIGN_OR_RETURN(ahead_, ReadAhead::Make(root, {.step_after = after,
                                                     .global_step = global_step,
                                                     .also = options_.fetches}));
  LogInfo(name(), ": ", ahead_.ToString());
  if (!ahead_.empty()) {
    // The count too: what is read ahead may be of other servers alone, and the step is a whole one.
    std::vector<Output> fetches = ahead_.next();
    fetches.push_back(after);
    group_ = setup->AddGroup({.fetches = std::move(fetches), .feeds = ahead_.fed()});
  }
  return absl::OkStatus();
}

Status ReadAheadHook::AfterCreateSession(RunContext*, const CreatedSession&) {
  values_.clear();
  return absl::OkStatus();
}

StatusOr<GroupMask> ReadAheadHook::BeforeRun(RunContext* context) {
  if (ahead_.empty()) return kNoGroups;
  if (context->now() - kept_at_ > kMaxAge) values_.clear();
  if (values_.empty()) {
    MR_ASSIGN_OR_RETURN(values_, context->session()->Run({}, ahead_.first()));
  }
  for (size_t i = 0; i < values_.size(); ++i) {
    context->Feed(group_, static_cast<int>(i), std::move(values_[i]));
  }
  values_.clear();  // a run that fails may have changed the variables
  return MaskOf(group_);
}

Status ReadAheadHook::AfterRun(RunContext* context, const RunValues& values) {
  kept_at_ = context->now();
  for (size_t i = 0; i < ahead_.fed().size(); ++i) {
    values_.push_back(values.value(group_, static_cast<int>(i)));
  }
  return absl::OkStatus();
}

}  // namespace millrace
