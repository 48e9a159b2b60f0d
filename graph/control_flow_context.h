// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_GRAPH_CONTROL_FLOW_CONTEXT_H_
#define MILLRACE_GRAPH_CONTROL_FLOW_CONTEXT_H_

// ControlFlowContext: the inside of a branch or of a loop while the graph is built (conditionals
// and loops themselves are in graph/control_flow.h).
//
// A Scope is in a context, or in none. What is built with it
//   * takes tensors from around the context through it (Adopt): through a Switch into a branch,
//     through an Enter into a loop, so that a program may use any tensor of its own inside;
//   * runs when the context does and only then: what has no input of the context gets its pivot as
//     control input.
// Each node knows the context that its outputs are in (Scope::ContextOf).
//
// Contexts are nested: outer() is the one around. Null is the context outside of all.
//
// Thread-safety: as Scope's. Lifetime: a context lives as long as a Scope of its graph
// (Scope::AddContext).

#include <string>
#include <utility>

#include "absl/types/span.h"
#include "core/status.h"

namespace tensorflow {
class ControlFlowContextDef;
}

namespace millrace {

class Operation;
class Output;
class Scope;
class WhileContext;

class ControlFlowContext {
 public:
  ControlFlowContext(std::string name, ControlFlowContext* outer)
      : name_(std::move(name)), outer_(outer) {}
  virtual ~ControlFlowContext() = default;
  ControlFlowContext(const ControlFlowContext&) = delete;
  ControlFlowContext& operator=(const ControlFlowContext&) = delete;

  // Unique in the graph: "while/while_context"; for a loop the name of its frame.
  const std::string& name() const { return name_; }
  ControlFlowContext* outer() const { return outer_; }
  // "branch 'cond/cond_text'", "loop 'while/while_context'", for messages.
  virtual std::string Title() const = 0;
  // The innermost loop that this is or is in; null: none.
  virtual WhileContext* loop() { return outer_ == nullptr ? nullptr : outer_->loop(); }
  // Can a tensor of `other` be used here? Of this and of those around it.
  virtual bool Reaches(const ControlFlowContext* other) const {
    for (const ControlFlowContext* c = this; c != nullptr; c = c->outer_) {
      if (c == other) return true;
    }
    return other == nullptr;
  }
  // What runs whenever this does; invalid while there is none yet.
  virtual Operation pivot() const = 0;
  // Must a node with these inputs (of this context, as adopted) wait for the pivot, because they
  // are there in iterations that do not take place? Always so without inputs.
  virtual bool WaitsForPivot(absl::Span<const Output> inputs) const = 0;

  // `tensor` as a tensor of this context. New nodes are built with `scope`, which is in this
  // context and whose prefix and devices they get. InvalidArgument where it cannot be reached: the
  // message goes on after "input i ".
  virtual StatusOr<Output> Adopt(const Scope& scope, const Output& tensor) = 0;
  // What runs after `operation`, which is of a loop around this one, or of none.
  virtual StatusOr<Operation> AdoptControl(const Scope& scope, const Operation& operation) = 0;
  // A node of this op on these tensors belongs there (what a gradient needs of shapes alone). This,
  // mostly.
  virtual ControlFlowContext* HomeOfOp(absl::string_view, const Scope&, absl::Span<const Output>) {
    return this;
  }

  // As TensorFlow's collections have it, without nested contexts and values.
  virtual void ToProto(tensorflow::ControlFlowContextDef* def) const = 0;
  // The tensors around that have been taken in: (name outside, name inside).
  virtual std::vector<std::pair<std::string, std::string>> ExternalValues() const = 0;

 private:
  const std::string name_;
  ControlFlowContext* const outer_;
};

// As c->Reaches(other), for a context that may be null.
inline bool Reaches(const ControlFlowContext* c, const ControlFlowContext* other) {
  return c == nullptr ? other == nullptr : c->Reaches(other);
}
inline WhileContext* LoopOf(ControlFlowContext* c) { return c == nullptr ? nullptr : c->loop(); }

}  // namespace millrace

#endif  // MILLRACE_GRAPH_CONTROL_FLOW_CONTEXT_H_
