// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_HOOKS_LOGGING_TENSOR_H_
#define MILLRACE_TRAIN_HOOKS_LOGGING_TENSOR_H_

// LoggingTensorHook: values of the graph in the log: "loss = 2.5, step = 100 (0.251 sec)".
//
// At the first run and then each so many runs of this task, or after so much time; at the end, when
// asked for. Tags are sorted unless a formatter is given. Values are fetched in the runs that are
// logged and in no other.
//
// Failure: InvalidArgument without tensors, and unless `every` or at_end says when.

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "core/status.h"
#include "core/tensor.h"
#include "graph/scope.h"
#include "train/every.h"
#include "train/hooks/step_timer.h"
#include "train/session_run_hook.h"

namespace millrace {

struct LoggingTensorOptions {
  std::map<std::string, Output> tensors = {};  // by tag
  Every every = 0;                             // runs of this task
  bool at_end = false;
  // The line; otherwise as above.
  std::function<std::string(const std::map<std::string, Tensor>&)> formatter = {};
  // Where lines go; the log otherwise.
  std::function<void(const std::string&)> sink = {};
};

class LoggingTensorHook : public SessionRunHook {
 public:
  explicit LoggingTensorHook(LoggingTensorOptions options) : options_(std::move(options)) {}
  std::string name() const override { return "LoggingTensorHook"; }
  Status Begin(HookSetup* setup) override;
  StatusOr<GroupMask> BeforeRun(RunContext* context) override;
  Status AfterRun(RunContext* context, const RunValues& values) override;
  Status End(const LoopEnd& end) override;

 private:
  void Log(const std::map<std::string, Tensor>& values,
           std::optional<absl::Duration> elapsed) const;

  const LoggingTensorOptions options_;
  int group_ = 0;
  StepTimer timer_;
  int64_t runs_ = 0;
};

// A tensor for people: scalars as a number or text, others as "[1 2 3 ...]" with a few elements.
std::string TextOf(const Tensor& value);

}  // namespace millrace

#endif  // MILLRACE_TRAIN_HOOKS_LOGGING_TENSOR_H_
