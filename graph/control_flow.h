// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_GRAPH_CONTROL_FLOW_H_
#define MILLRACE_GRAPH_CONTROL_FLOW_H_

// Branches and loops of TensorFlow 1.x as contexts: which nodes they are made of, and how a tensor
// from around comes into them.
//
//   branch:  pred ─> Switch(pred, pred) ─> Identity switch_t / switch_f (its pivot)
//            outside ─> Switch(outside, pred) ─> inside; both branches' results ─> Merge
//   loop:    variable ─> Enter ─> Merge ─> Switch(LoopCond) ─┬─> Identity ─> ... ─> NextIteration
//                                   ^                        │                         │
//                                   └────────────────────────┼─────────────────────────┘
//            outside ─> Enter(is_constant) ─> inside         └─> Exit ─> the variable at the end
//
// The builders for programs are in layers/control_flow.h; gradients build loops of their own from
// the same parts.
//
// Thread-safety: as Scope's. Failure: InvalidArgument, kept in the Scope by what builds.

#include <cstdint>
#include <memory>
#include <source_location>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/status.h"
#include "graph/control_flow_context.h"
#include "graph/graph.h"
#include "graph/scope.h"

namespace millrace {

// --- Parts ---------------------------------------------------------------------------------------

// Enter (RefEnter for a reference) into the loop; its output is in `loop`. `scope` is around it.
Output EnterLoop(ScopeAt at, WhileContext* loop, const Output& data, bool is_constant);
// Exit from the loop that `scope` is in; its output is around that loop.
Output ExitLoop(ScopeAt at, const Output& data);
// Switch or RefSwitch, besides its data: output 0 is alive when `pred` is false, 1 when it is true.
std::pair<Output, Output> SwitchOn(ScopeAt at, const Output& data, const Output& pred);

// --- Contexts ------------------------------------------------------------------------------------

// What both kinds have in common: tensors from around come in one by one and stay.
class CapturingContext : public ControlFlowContext {
 public:
  using ControlFlowContext::ControlFlowContext;

  StatusOr<Output> Adopt(const Scope& scope, const Output& tensor) override;
  StatusOr<Operation> AdoptControl(const Scope& scope, const Operation& operation) override;
  std::vector<std::pair<std::string, std::string>> ExternalValues() const override;

  // `outside`, of outer(), is `inside` here: so it is used from now on.
  void Remember(const Output& outside, const Output& inside) { captured_[outside] = inside; }

 protected:
  // Takes `tensor` of outer() in. `around` builds in outer().
  virtual Output Capture(const Scope& around, const Output& tensor) = 0;

 private:
  absl::flat_hash_map<Output, Output> captured_;
};

class CondContext : public CapturingContext {
 public:
  // The branch that is taken when `pred`, a tensor of `outer`, is `branch`; `pivot` is alive then.
  CondContext(std::string name, ControlFlowContext* outer, Output pred, Output pivot, bool branch);

  std::string Title() const override;
  Operation pivot() const override { return pivot_.op(); }
  bool WaitsForPivot(absl::Span<const Output> inputs) const override { return inputs.empty(); }
  void ToProto(tensorflow::ControlFlowContextDef* def) const override;

 protected:
  Output Capture(const Scope& around, const Output& tensor) override;

 private:
  const Output pred_, pivot_;
  const bool branch_;
};

struct WhileContextOptions {
  int64_t parallel_iterations = 10;
  bool back_prop = true;
  bool swap_memory = false;
  Output maximum_iterations = {};  // may be invalid
};

class WhileContext : public CapturingContext {
 public:
  // `name` is that of the frame.
  WhileContext(std::string name, ControlFlowContext* outer, const WhileContextOptions& options);

  const WhileContextOptions& options() const { return options_; }
  std::string Title() const override;
  WhileContext* loop() override { return this; }
  // While the condition is built a Merge, then what the body begins with.
  Operation pivot() const override {
    return pivot_for_body_.valid() ? pivot_for_body_.op() : pivot_for_pred_.op();
  }
  bool WaitsForPivot(absl::Span<const Output> inputs) const override;
  // What every iteration gets: the output of an Enter that is constant.
  static bool IsInvariant(const Output& tensor);
  void ToProto(tensorflow::ControlFlowContextDef* def) const override;

  void set_pivot_for_pred(Output merge) { pivot_for_pred_ = std::move(merge); }
  void set_pivot_for_body(Output first) { pivot_for_body_ = std::move(first); }
  void set_pivot(Output loop_cond) { pivot_ = std::move(loop_cond); }
  // The LoopCond.
  const Output& loop_cond() const { return pivot_; }
  void AddVariable(const Output& enter, const Output& exit) {
    enters_.push_back(enter);
    exits_.push_back(exit);
  }

 protected:
  Output Capture(const Scope& around, const Output& tensor) override;

 private:
  const WhileContextOptions options_;
  Output pivot_, pivot_for_pred_, pivot_for_body_;
  std::vector<Output> enters_, exits_;
};

// --- A loop that is built ------------------------------------------------------------------------

// A loop, variable by variable; the condition before the body:
//
//   LoopBuilder loop(scope, "while_context", options);
//   const int i = loop.AddVariable(zero, {});
//   loop.SetCondition(Less(loop.inside(), loop.at_condition(i), limit));
//   loop.SetNext(i, Add(loop.inside(), loop.in_body(i), one));
//   Output end = loop.Exit(i);
//
// More variables may be added until the end, as accumulators of gradients are.
class LoopBuilder {
 public:
  // `context`, of scope's context, is given to the scope. Enters get the scope's control inputs.
  LoopBuilder(ScopeAt at, std::unique_ptr<WhileContext> context);

  WhileContext* context() const { return context_; }
  // Builds in the loop.
  const Scope& inside() const { return inside_; }
  int num_variables() const { return static_cast<int>(variables_.size()); }

  // A variable that begins as `initial`. `shape` holds in every iteration.
  int AddVariable(const Output& initial, const PartialShape& shape);
  const Output& at_condition(int i) const { return variables_[static_cast<size_t>(i)].merge; }
  // `go_on`: a bool scalar of the loop.
  void SetCondition(const Output& go_on);
  // The variable in an iteration; requires the condition.
  Output in_body(int i);
  // What the variable is in the next iteration. InvalidArgument unless of its dtype and shape.
  void SetNext(int i, const Output& next);
  // The variable at the end, a tensor around the loop.
  Output Exit(int i);

 private:
  struct Variable {
    Output enter, merge, body, exit;
    std::pair<Output, Output> ways;  // (out of the loop, into the body)
    PartialShape shape;
  };
  Variable& at(int i) { return variables_[static_cast<size_t>(i)]; }

  ScopeAt in() const { return {inside_, where_}; }

  const Scope scope_;
  const std::source_location where_;
  WhileContext* const context_;
  const Scope inside_;
  std::vector<Variable> variables_;
};

}  // namespace millrace

#endif  // MILLRACE_GRAPH_CONTROL_FLOW_H_
