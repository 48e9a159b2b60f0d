// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_READ_AHEAD_H_
#define MILLRACE_TRAIN_READ_AHEAD_H_

// ReadAhead: the variables that a training step reads come with the end of the step before it.
//
// A step over parameter servers waits twice: RUN goes and the variables come; the gradients go and
// the end comes. With read-ahead each variable is read once more on its parameter server, after the
// step's own updates there, and comes with the end. The task keeps these values, and feeds its next
// step with them in place of the reads. So that step sends its gradients without a wait before.
//
//   one step       without                                 with
//   task -> ps     RUN | gradients                         RUN, gradients
//   ps -> task     variables | the step's count, end       variables, the step's count, end
//
// What always holds:
//   * A step sees all updates of its own task's steps. With one trainer the values are those of
//   training
//     without read-ahead, bit by bit, also where floats travel as bfloat16.
//   * It does not see what others have updated since the step before ended (where that step changes
//     nothing on a variable's server: since it began): a long pause between
//     two steps makes values old. Staleness (train/loss_guard.h) counts from the read, so it counts
//     the pause. Values of the global step's parameter server are read after the step's count,
//     those of another server after the own updates there: what others update between these and the
//     count is not seen and not counted.
//   * Only these nodes are read ahead: reads of whole resource variables on another job than their
//     readers, outside of branches, loops and functions, without control inputs; of trainable
//     variables, of the global step, and of what the step does not change. All others stay in the
//     step: rows of tables, moving averages, a read that is ordered after an update, reference
//     variables, variables whose handle goes into a branch or loop.
//   * A parameter server that reads the variable itself (an L2 penalty next to its weight) reads it
//     there, before the step's update.
//   * Whatever does not feed the reads (evaluations, exports, checkpoints) reads the variables.
//     There is no new variable, and checkpoints are the same.
//
// Thread-safety: Make adds nodes to a graph, as any builder; the rest is immutable.
// Failure: of the graph.

#include <string>
#include <vector>

#include "core/status.h"
#include "graph/scope.h"
#include "layers/variable.h"

namespace millrace {

class ReadAhead {
 public:
  // Of a step that fetches `step_after`, the global step after all updates (train/optimizer.h),
  // and `also`.
  struct Step {
    Output step_after;
    Variable global_step;
    std::vector<Output> also = {};
  };

  ReadAhead() = default;  // reads nothing ahead
  static StatusOr<ReadAhead> Make(const Scope& model, const Step& step);

  bool empty() const { return fed_.empty(); }
  // In a step: the reads that it is fed in place of, and what it fetches for the next one, in the
  // same order.
  const std::vector<Output>& fed() const { return fed_; }
  const std::vector<Output>& next() const { return next_; }
  // The same values now, for the first step: fetched by a run of its own.
  const std::vector<Output>& first() const { return first_; }

  // One line for people: how many variables are read ahead, and which ones that a step waits for
  // are not.
  std::string ToString() const;

 private:
  std::vector<Output> fed_, next_, first_;
  std::vector<std::string> left_;  // names of variables
};

}  // namespace millrace

#endif  // MILLRACE_TRAIN_READ_AHEAD_H_
