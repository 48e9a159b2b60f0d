// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_COUNTED_STEP_H_
#define MILLRACE_TRAIN_COUNTED_STEP_H_

// CountedStep: what one step of Train runs: the program's operation, the updates that belong to it,
// and the count of the global step, where the operation does not count itself.
//
// Thread-safety: adds nodes to a graph, as any builder. Failure: of the graph.

#include <cstdint>
#include <optional>
#include <string>

#include "core/status.h"
#include "core/tensor.h"
#include "graph/scope.h"
#include "layers/variable.h"

namespace millrace {

struct CountedStepOptions {
  // Runs the operations of the collection "update_ops" that `op` does not run itself.
  bool update_ops = true;
  std::optional<Variable> global_step =
      {};  // the graph's otherwise, which is made where it has none
};

struct CountedStep {
  Variable global_step;
  // Runs all of it: the global step after the own update; AmongOthers: [after, before], where
  // "before" is what was counted when the step began to read.
  Output step_after;
  std::string added = "";  // what a step runs besides the operation, for people
};

StatusOr<CountedStep> MakeCountedStep(const Scope& model, const Operation& op,
                                      const CountedStepOptions& options);

// Others count the same step: step_after tells what was counted before, too.
StatusOr<CountedStep> AmongOthers(const Scope& model, CountedStep step);

// One of them, int32 or int64.
int64_t StepOf(const Tensor& value);

}  // namespace millrace

#endif  // MILLRACE_TRAIN_COUNTED_STEP_H_
