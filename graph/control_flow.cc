// SPDX-License-Identifier: Apache-2.0
#include "graph/control_flow.h"

#include <memory>
#include <source_location>

#include "absl/strings/str_cat.h"
#include "core/tensor.h"
#include "graph/node_builder.h"
#include "graph/shape_inference.h"
#include "proto/control_flow.pb.h"

namespace millrace {

// --- Parts ---------------------------------------------------------------------------------------

Output EnterLoop(ScopeAt at, WhileContext* loop, const Output& data, bool is_constant) {
  const bool is_ref = is_constant && IsRef(data.dtype());
  const BuiltNode enter = NodeBuilder(at, is_ref ? "RefEnter" : "Enter")
                              .Input(data)
                              .Attr("frame_name", loop->name())
                              .Attr("is_constant", is_constant)
                              .Attr("parallel_iterations", loop->options().parallel_iterations)
                              .Finish();
  if (enter.operation().valid()) at.scope.SetContextOf(*enter.operation().node(), loop);
  return enter.output(0);
}

Output ExitLoop(ScopeAt at, const Output& data) {
  const BuiltNode exit = NodeBuilder(at, "Exit").Input(data).Finish();
  if (exit.operation().valid()) {
    at.scope.SetContextOf(*exit.operation().node(), at.scope.context()->loop()->outer());
  }
  return exit.output(0);
}

std::pair<Output, Output> SwitchOn(ScopeAt at, const Output& data, const Output& pred) {
  const Scope beside = data.valid() ? at.scope.ColocatedWith(data.op()) : at.scope;
  const BuiltNode node =
      NodeBuilder({beside, at.where}, IsRef(data.dtype()) ? "RefSwitch" : "Switch")
          .Input(data)
          .Input(pred)
          .Finish();
  return {node.output(0), node.output(1)};
}

// --- CapturingContext ----------------------------------------------------------------------------

StatusOr<Output> CapturingContext::Adopt(const Scope& scope, const Output& tensor) {
  ControlFlowContext* const of = scope.ContextOf(*tensor.node());
  if (of == this) return tensor;
  if (const auto it = captured_.find(tensor); it != captured_.end()) return it->second;
  const Scope around = scope.InContext(outer());
  Output outside = tensor;
  if (!around.UsesAsTheyAre(of)) {
    if (!millrace::Reaches(outer(), of)) {
      return InvalidArgument("must be of ", Title(), " or around it, got '", tensor.name(), "' of ",
                             of->Title(), "; return it from there");
    }
    MR_ASSIGN_OR_RETURN(outside, outer()->Adopt(around, tensor));
  }
  Output& inside = captured_[outside];
  if (!inside.valid()) {
    const Output taken_in = Capture(around, outside);
    MR_RETURN_IF_ERROR(scope.status());
    captured_[outside] = taken_in;
  }
  const Output result = captured_[outside];
  captured_[tensor] = result;
  return result;
}

StatusOr<Operation> CapturingContext::AdoptControl(const Scope& scope, const Operation& operation) {
  WhileContext* const of = LoopOf(scope.ContextOf(*operation.node()));
  if (of == loop()) return operation;
  if (!millrace::Reaches(outer(), of)) {
    return InvalidArgument("must be of ", Title(), " or around it, got '", operation.name(),
                           "' of ", of->Title());
  }
  const Scope around = scope.InContext(outer());
  Operation outside = operation;
  if (outer() != nullptr) {
    MR_ASSIGN_OR_RETURN(outside, outer()->AdoptControl(around, operation));
  }
  if (loop() != this) return outside;
  // What has no output crosses into a loop as a constant that waits for it.
  const Output after = NodeBuilder(around.WithControlDependencies({outside}), "Const")
                           .Attr("dtype", DT_FLOAT)
                           .Attr("value", Tensor::Scalar(0.0f))
                           .Finish()
                           .output(0);
  MR_RETURN_IF_ERROR(scope.status());
  MR_ASSIGN_OR_RETURN(const Output inside, Adopt(scope, after));
  return inside.op();
}

std::vector<std::pair<std::string, std::string>> CapturingContext::ExternalValues() const {
  std::vector<std::pair<std::string, std::string>> values;
  for (const auto& [outside, inside] : captured_) {
    if (outside.valid() && inside.valid()) values.emplace_back(outside.name(), inside.name());
  }
  return values;
}

// --- CondContext ---------------------------------------------------------------------------------

CondContext::CondContext(std::string name, ControlFlowContext* outer, Output pred, Output pivot,
                         bool branch)
    : CapturingContext(std::move(name), outer),
      pred_(std::move(pred)),
      pivot_(std::move(pivot)),
      branch_(branch) {}

std::string CondContext::Title() const { return absl::StrCat("branch '", name(), "'"); }

Output CondContext::Capture(const Scope& around, const Output& tensor) {
  const std::pair<Output, Output> ways = SwitchOn(around, tensor, pred_);
  const Output inside = branch_ ? ways.second : ways.first;
  if (inside.valid()) around.SetContextOf(*inside.node(), this);
  return inside;
}

void CondContext::ToProto(tensorflow::ControlFlowContextDef* def) const {
  tensorflow::CondContextDef* const cond = def->mutable_cond_ctxt();
  cond->set_context_name(name());
  cond->set_pred_name(pred_.name());
  cond->set_pivot_name(pivot_.name());
  cond->set_branch(branch_ ? 1 : 0);
}

// --- WhileContext --------------------------------------------------------------------------------

WhileContext::WhileContext(std::string name, ControlFlowContext* outer,
                           const WhileContextOptions& options)
    : CapturingContext(std::move(name), outer), options_(options) {}

std::string WhileContext::Title() const { return absl::StrCat("loop '", name(), "'"); }

bool WhileContext::IsInvariant(const Output& tensor) {
  if (!tensor.valid() || !tensor.node()->is_enter()) return false;
  const StatusOr<bool> is_constant = GetAttr<bool>(*tensor.node(), "is_constant");
  return is_constant.ok() && *is_constant;
}

// Invariants are there in the last iteration, too, whose body does not take place.
bool WhileContext::WaitsForPivot(absl::Span<const Output> inputs) const {
  for (const Output& input : inputs) {
    if (!IsInvariant(input)) return false;
  }
  return true;
}

Output WhileContext::Capture(const Scope& around, const Output& tensor) {
  return EnterLoop(around, this, tensor, /*is_constant=*/true);
}

void WhileContext::ToProto(tensorflow::ControlFlowContextDef* def) const {
  tensorflow::WhileContextDef* const loop = def->mutable_while_ctxt();
  loop->set_context_name(name());
  loop->set_parallel_iterations(static_cast<int32_t>(options_.parallel_iterations));
  loop->set_back_prop(options_.back_prop);
  loop->set_swap_memory(options_.swap_memory);
  if (options_.maximum_iterations.valid()) {
    loop->set_maximum_iterations_name(options_.maximum_iterations.name());
  }
  loop->set_pivot_name(pivot_.name());
  loop->set_pivot_for_pred_name(pivot_for_pred_.name());
  loop->set_pivot_for_body_name(pivot_for_body_.name());
  for (const Output& enter : enters_) loop->add_loop_enter_names(enter.name());
  for (const Output& exit : exits_) loop->add_loop_exit_names(exit.name());
}

// --- LoopBuilder ---------------------------------------------------------------------------------

LoopBuilder::LoopBuilder(ScopeAt at, std::unique_ptr<WhileContext> context)
    : scope_(at.scope),
      where_(at.where),
      context_(at.scope.AddContext(std::move(context))),
      inside_(at.scope.InContext(context_).WithoutControlDependencies()) {}

int LoopBuilder::AddVariable(const Output& initial, const PartialShape& shape) {
  Variable variable;
  const int index = num_variables();
  variable.shape = shape;
  variable.enter = EnterLoop({scope_, where_}, context_, initial, /*is_constant=*/false);
  if (variable.enter.valid()) {
    // The second input comes when there is a next iteration.
    const Output both[] = {variable.enter, variable.enter};
    variable.merge = NodeBuilder(in(), "Merge").Input(absl::MakeConstSpan(both)).Finish().output(0);
  }
  if (variable.merge.valid()) {
    inside_.refiner()->ReplaceOutputShape(*variable.merge.node(), 0, shape);
    if (index == 0) context_->set_pivot_for_pred(variable.merge);
    if (context_->loop_cond().valid()) {
      variable.ways = SwitchOn(in(), variable.merge, context_->loop_cond());
    }
  }
  variables_.push_back(std::move(variable));
  return index;
}

void LoopBuilder::SetCondition(const Output& go_on) {
  const Output loop_cond = NodeBuilder(in(), "LoopCond").Input(go_on).Finish().output(0);
  if (!loop_cond.valid()) return;
  context_->set_pivot(loop_cond);
  for (Variable& variable : variables_) {
    variable.ways = SwitchOn(in(), variable.merge, loop_cond);
  }
}

Output LoopBuilder::in_body(int i) {
  Variable& variable = at(i);
  if (!variable.body.valid()) {
    variable.body = NodeBuilder(in(), "Identity").Input(variable.ways.second).Finish().output(0);
    if (variable.body.valid() && context_->pivot().node() != variable.body.node() && i == 0) {
      context_->set_pivot_for_body(variable.body);
    }
  }
  return variable.body;
}

void LoopBuilder::SetNext(int i, const Output& next) {
  Variable& variable = at(i);
  if (!next.valid() || !variable.merge.valid()) {
    inside_.UpdateStatus(InvalidArgument(context_->Title(), ": variable ", i,
                                         " must get a value for the next iteration, got none"),
                         where_);
    return;
  }
  const DType type = variable.merge.dtype();
  if (WithoutRef(next.dtype()) != type) {
    inside_.UpdateStatus(
        InvalidArgument(context_->Title(), ": variable ", i, " must keep its type ", type, ", got ",
                        next.dtype(), " from '", next.name(), "' after one iteration"),
        where_);
    return;
  }
  Output value = next;
  if (inside_.ContextOf(*next.node()) != context_ || WhileContext::IsInvariant(next) ||
      IsRef(next.dtype())) {
    // An invariant is there in every iteration: as it is it would begin one after the other.
    value = NodeBuilder(in(), "Identity").Input(next).Finish().output(0);
    if (!value.valid()) return;
  }
  const PartialShape shape = inside_.shape(value);
  bool keeps =
      !variable.shape.has_rank() || (shape.has_rank() && shape.rank() == variable.shape.rank());
  for (int d = 0; keeps && variable.shape.has_rank() && d < shape.rank(); ++d) {
    keeps = variable.shape.dim(d) == -1 || variable.shape.dim(d) == shape.dim(d);
  }
  if (!keeps) {
    inside_.UpdateStatus(
        InvalidArgument("The shape for '", variable.merge.name(),
                        "' is not an invariant for the loop. It must keep its shape ",
                        variable.shape, ", got ", shape,
                        " after one iteration; shape_invariants, or SetShape on what the body "
                        "returns, say what holds in all of them"),
        where_);
    return;
  }
  const Output back = NodeBuilder(in(), "NextIteration").Input(value).Finish().output(0);
  if (!back.valid()) return;
  inside_.UpdateStatus(inside_.graph()->UpdateInput(variable.merge.node(), 1, back.node(), 0),
                       where_);
}

Output LoopBuilder::Exit(int i) {
  Variable& variable = at(i);
  if (!variable.exit.valid() && variable.ways.first.valid()) {
    variable.exit = ExitLoop(in(), variable.ways.first);
    if (variable.exit.valid()) context_->AddVariable(variable.enter, variable.exit);
  }
  return variable.exit;
}

}  // namespace millrace
