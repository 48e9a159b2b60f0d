// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_GRAPH_GRADIENT_LOOP_H_
#define MILLRACE_GRAPH_GRADIENT_LOOP_H_

// GradientLoopContext: the inside of the loop that is the gradient of another one, the forward
// loop.
//
// It runs as many iterations as the forward loop, the last one first. A gradient function that is
// called for a node of the forward body takes tensors of it as it always does; here they become
// what they were in that iteration:
//
//   a constant                  the same constant
//   what every iteration gets   the same, by an Enter of its own
//   a shape                     computed in the forward body, then as any other tensor:
//   any other tensor            pushed onto a stack by the forward loop, popped by this one
//
//   forward:   StackV2 ─> Enter ─> Push(tensor) ─> f_sync ─> NextIteration of the count
//   backward:        └──> Enter ─> Pop          ─> b_sync ─> NextIteration of the count
//
// The count of iterations orders what the stacks get: an iteration pushes after the count has come
// to it, and the count goes on when all is pushed; likewise backwards. A tensor that only a branch
// computes is pushed when the branch is taken (its Push is dead otherwise), and popped on the same
// condition, which is itself popped from a stack.
//
// In nested loops a stack is made in the iteration around, and its handle is a tensor as any other.
//
// Thread-safety: as the Scope's.

#include <memory>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "core/status.h"
#include "graph/control_flow.h"
#include "graph/control_flow_context.h"
#include "graph/loops.h"
#include "graph/scope.h"

namespace millrace {

class GradientLoopContext : public WhileContext {
 public:
  // What the forward loop has got for the gradient.
  struct Forward {
    WhileContext* context = nullptr;
    Operation alive;  // around the loop, whenever that is entered
    Operation count;  // in each iteration, when the count has come to it
    Operation sync;   // what must be done before the next
  };

  // `outer` is where the gradient of what is around the forward loop is built.
  GradientLoopContext(std::string name, ControlFlowContext* outer, Forward forward,
                      std::shared_ptr<const Loops> loops);

  // What must be done before the next iteration of this loop.
  void set_sync(Operation sync) { sync_ = std::move(sync); }

  bool Reaches(const ControlFlowContext* other) const override;
  StatusOr<Output> Adopt(const Scope& scope, const Output& tensor) override;
  ControlFlowContext* HomeOfOp(absl::string_view op, const Scope& scope,
                               absl::Span<const Output> inputs) override;

 private:
  // `tensor`, of the forward body, by a stack.
  StatusOr<Output> Accumulate(const Scope& scope, const Output& tensor);
  // What runs in the iterations in which the condition held.
  StatusOr<Operation> Gate(const Scope& scope, const Loops::Condition& condition);

  const Forward forward_;
  const std::shared_ptr<const Loops> loops_;
  Operation sync_;
  absl::flat_hash_map<Output, Output> values_;  // of the forward body
  absl::flat_hash_map<Output, Operation> gates_[2];
};

}  // namespace millrace

#endif  // MILLRACE_GRAPH_GRADIENT_LOOP_H_
