// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_HOOKS_NAN_TENSOR_H_
#define MILLRACE_TRAIN_HOOKS_NAN_TENSOR_H_

// NanTensorHook: the NaN guard of a loop (train/loss_guard.h): a loss that is
// NaN or infinite ends it, and no checkpoint is written of what it has trained since the last one.
//
// Failure: kError: InvalidArgument "NaN guard: the loss must be finite, got nan at global step 17"
// (IsLossNotFinite). kStop: one line in the log, an orderly end of this task alone, OK.

#include <string>

#include "core/status.h"
#include "graph/scope.h"
#include "train/session_run_hook.h"

namespace millrace {

enum class NanPolicy { kError, kStop };

class NanTensorHook : public SessionRunHook {
 public:
  // `loss`: float or double.
  explicit NanTensorHook(Output loss, NanPolicy policy = NanPolicy::kError)
      : loss_(std::move(loss)), policy_(policy) {}
  std::string name() const override { return "NanTensorHook"; }
  Status Begin(HookSetup* setup) override;
  StatusOr<GroupMask> BeforeRun(RunContext* context) override;
  Status AfterRun(RunContext* context, const RunValues& values) override;
  bool is_guard() const override { return true; }

 private:
  const Output loss_;
  const NanPolicy policy_;
  int group_ = 0;
  bool has_step_ = false;
};

}  // namespace millrace

#endif  // MILLRACE_TRAIN_HOOKS_NAN_TENSOR_H_
