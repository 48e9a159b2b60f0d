// SPDX-License-Identifier: Apache-2.0
#include "train/hooks/nan_tensor.h"

#include <vector>

#include "core/logging.h"
#include "core/tensor.h"
#include "train/loss_guard.h"
#include "train/training_metrics.h"

namespace millrace {

Status NanTensorHook::Begin(HookSetup* setup) {
  if (!loss_.valid() || (loss_.dtype() != DT_FLOAT && loss_.dtype() != DT_DOUBLE)) {
    return InvalidArgument("the loss must be float or double, got ",
                           loss_.valid() ? DTypeName(loss_.dtype()) : "an invalid Output");
  }
  HookGroup group = {.fetches = {loss_}};
  const auto step = setup->GlobalStep();
  has_step_ = step.ok();
  if (has_step_) group.fetches.push_back(step->value);
  group_ = setup->AddGroup(std::move(group));
  return absl::OkStatus();
}

StatusOr<GroupMask> NanTensorHook::BeforeRun(RunContext*) { return MaskOf(group_); }

Status NanTensorHook::AfterRun(RunContext* context, const RunValues& values) {
  const int64_t step = has_step_ ? StepIn(values.value(group_, 1)) : context->run_number();
  const Tensor& loss = values.value(group_, 0);
  const Status status = CheckLossIsFinite(loss, step);
  if (!IsLossNotFinite(status)) {
    if (has_step_) NoteGlobalStep(step);
    if (loss.num_elements() == 1) {
      NoteLoss(loss.dtype() == DT_FLOAT ? static_cast<double>(loss.scalar<float>())
                                        : loss.scalar<double>());
    }
    return status;
  }
  context->NothingToSave();
  if (policy_ == NanPolicy::kError) return status;
  LogWarning(name(), ": training stops: ", status.message());
  context->RequestLeave(absl::OkStatus());
  return absl::OkStatus();
}

}  // namespace millrace
