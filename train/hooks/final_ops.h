// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_HOOKS_FINAL_OPS_H_
#define MILLRACE_TRAIN_HOOKS_FINAL_OPS_H_

// FinalOpsHook: runs something once, at the end of the loop: what an evaluation has counted.
//
// Failure: of that step, as the hook's in End.

#include <string>
#include <vector>

#include "core/status.h"
#include "core/tensor.h"
#include "runtime/session.h"
#include "train/session_run_hook.h"

namespace millrace {

struct FinalOpsOptions {
  std::vector<FetchName> fetches = {};
  std::vector<Feed> feeds = {};
  std::vector<FetchName> targets = {};
};

class FinalOpsHook : public SessionRunHook {
 public:
  explicit FinalOpsHook(FinalOpsOptions options) : options_(std::move(options)) {}
  std::string name() const override { return "FinalOpsHook"; }
  Status Begin(HookSetup* setup) override;
  Status End(const LoopEnd& end) override;

  // Of the fetches; empty before the end.
  const std::vector<Tensor>& values() const { return values_; }

 private:
  const FinalOpsOptions options_;
  std::vector<Tensor> values_;
};

}  // namespace millrace

#endif  // MILLRACE_TRAIN_HOOKS_FINAL_OPS_H_
