// SPDX-License-Identifier: Apache-2.0
#include "train/hooks/progress_hook.h"

#include <algorithm>
#include <vector>

#include "core/tensor.h"

namespace millrace {
namespace {

// Lines come no faster, so that neither the loss is fetched nor the clock of the line asked more
// often.
constexpr absl::Duration kLook = absl::Milliseconds(50);

std::optional<double> LossIn(const Tensor& value) {
  if (!value.has_value() || value.num_elements() != 1) return std::nullopt;
  if (value.dtype() == DT_FLOAT) return value.scalar<float>();
  if (value.dtype() == DT_DOUBLE) return value.scalar<double>();
  return std::nullopt;
}

}  // namespace

Status ProgressHook::Begin(HookSetup* setup) {
  MR_ASSIGN_OR_RETURN(step_, setup->GlobalStep());
  HookGroup group = {.fetches = {step_.value}};
  if (options_.loss.valid()) group.fetches.push_back(options_.loss);
  group_ = setup->AddGroup(std::move(group));
  next_look_ = absl::InfinitePast();
  loss_.reset();
  progress_ = nullptr;
  return absl::OkStatus();
}

Status ProgressHook::AfterCreateSession(RunContext*, const CreatedSession& created) {
  if (progress_ != nullptr && created.is_recovery) return absl::OkStatus();
  ProgressOptions options = options_.progress;
  if (options.last_step == 0) options.last_step = created.last_step;
  last_step_ = options.last_step;
  progress_ = std::make_unique<Progress>(options);
  return absl::OkStatus();
}

StatusOr<GroupMask> ProgressHook::BeforeRun(RunContext* context) {
  return context->now() >= next_look_ ? MaskOf(group_) : kNoGroups;
}

Status ProgressHook::AfterRun(RunContext* context, const RunValues& values) {
  if (!values.has(group_)) return absl::OkStatus();
  next_look_ = context->now() + kLook;
  const int64_t step = StepIn(values.value(group_, 0));
  loss_ = LossIn(values.value(group_, 1));
  progress_->Update(last_step_ > 0 ? std::min(step, last_step_) : step, loss_);
  return absl::OkStatus();
}

Status ProgressHook::End(const LoopEnd& end) {
  MR_ASSIGN_OR_RETURN(const std::vector<Tensor> out, end.session->Run({}, {step_.value}));
  progress_->Update(StepIn(out[0]), loss_);
  progress_->EndLine();
  return absl::OkStatus();
}

}  // namespace millrace
