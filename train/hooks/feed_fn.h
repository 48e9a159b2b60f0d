// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_HOOKS_FEED_FN_H_
#define MILLRACE_TRAIN_HOOKS_FEED_FN_H_

// FeedFnHook: feeds tensors with what a function makes for each run.
//
// Failure: that of the function, where OutOfRange is the end of data; InvalidArgument when it gives
// another number of values than there are tensors.

#include <functional>
#include <string>
#include <vector>

#include "core/status.h"
#include "core/tensor.h"
#include "graph/scope.h"
#include "train/session_run_hook.h"

namespace millrace {

class FeedFnHook : public SessionRunHook {
 public:
  // `make`: one value per tensor, in their order. After a lost session the run that met it is begun
  // again with the values that it had.
  FeedFnHook(std::vector<Output> tensors, std::function<StatusOr<std::vector<Tensor>>()> make)
      : tensors_(std::move(tensors)), make_(std::move(make)) {}
  std::string name() const override { return "FeedFnHook"; }
  Status Begin(HookSetup* setup) override;
  StatusOr<GroupMask> BeforeRun(RunContext* context) override;
  Status AfterRun(RunContext* context, const RunValues& values) override;

 private:
  const std::vector<Output> tensors_;
  const std::function<StatusOr<std::vector<Tensor>>()> make_;
  std::vector<Tensor> pending_;  // of a run that has not ended; empty otherwise
  int group_ = 0;
};

}  // namespace millrace

#endif  // MILLRACE_TRAIN_HOOKS_FEED_FN_H_
