// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_HOOKS_IN_MEMORY_EVALUATOR_H_
#define MILLRACE_TRAIN_HOOKS_IN_MEMORY_EVALUATOR_H_

// InMemoryEvaluatorHook: evaluates what a loop trains in the same process, without a checkpoint.
//
//   Scope eval;  // the model once more, under the same names, with its own input and metrics
//   InMemoryEvaluatorHook hook({.graph = eval, .evaluate = [&](Session* session, int64_t step) {
//     return RunMetrics(session); }});
//
// Before the first step, each so many runs and at the end the values of the training graph's
// variables are copied into a session of the evaluation's graph, variable by name; that session's
// local variables (metrics) begin anew each time. Training waits meanwhile. Tasks of a cluster have
// an evaluator of their own instead.
//
// The evaluation's graph gets nodes that assign, and is finalized.
//
// Failure: InvalidArgument, by name, for a variable that the training graph has not, or has with
// another dtype or shape; of `evaluate`, as the hook's.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/status.h"
#include "graph/scope.h"
#include "layers/variable.h"
#include "runtime/session.h"
#include "train/hooks/step_timer.h"
#include "train/session_run_hook.h"

namespace millrace {

struct InMemoryEvaluatorOptions {
  Scope graph;
  // Returns a line for the log; "" for none.
  std::function<StatusOr<std::string>(Session*, int64_t global_step)> evaluate = {};
  int64_t every_n_runs = 100;
};

class InMemoryEvaluatorHook : public SessionRunHook {
 public:
  explicit InMemoryEvaluatorHook(InMemoryEvaluatorOptions options) : options_(std::move(options)) {}
  std::string name() const override { return "InMemoryEvaluatorHook"; }
  Status Begin(HookSetup* setup) override;
  Status AfterCreateSession(RunContext* context, const CreatedSession& created) override;
  Status AfterRun(RunContext* context, const RunValues& values) override;
  Status End(const LoopEnd& end) override;

 private:
  // A variable there, and where its value comes from.
  struct Copy {
    std::string name;
    Output from;
    Output placeholder;
    Operation assign;
  };
  // Adds the nodes that assign; once.
  Status CompleteGraph(const Scope& graph);
  Status Evaluate(Session* training);

  const InMemoryEvaluatorOptions options_;
  Variable global_step_;
  std::vector<Copy> copies_;
  std::vector<Operation> prepare_;  // local variables
  std::vector<std::string> tables_;
  std::unique_ptr<Session> session_;
  StepTimer timer_;
  int64_t evaluated_at_ = -1;  // global step
};

}  // namespace millrace

#endif  // MILLRACE_TRAIN_HOOKS_IN_MEMORY_EVALUATOR_H_
