// SPDX-License-Identifier: Apache-2.0
//
// The gradient of a loop is a loop: docs/control_flow.md.
//
//   variables        the gradient of each variable: begins as that of its Exit, becomes in each
//                    iteration that of the variable before the forward iteration
//   accumulators     for what every iteration gets: the sum of the gradients of all iterations
//   a count          from the number of forward iterations down to 0

#include <memory>
#include <optional>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "core/shape.h"
#include "core/tensor.h"
#include "graph/backprop.h"
#include "graph/control_flow.h"
#include "graph/control_flow_context.h"
#include "graph/gradient.h"
#include "graph/gradient_loop.h"
#include "graph/gradient_nodes.h"
#include "graph/graph.h"
#include "graph/loops.h"
#include "graph/node_builder.h"
#include "graph/shape_inference.h"

namespace millrace {

using gradient_nodes::Const;
using gradient_nodes::FilledLike;

namespace {

// The tensor behind input 0 of an Enter.
Output SourceOf(const Node& enter) {
  const OutputRef& input = enter.input(0);
  return Output(input.node, input.index);
}

// The forward loop counts its iterations from now on.
struct ForwardCount {
  GradientLoopContext::Forward forward;
  Output iterations;  // in the end, around the loop
};
StatusOr<ForwardCount> CountIterations(const Scope& scope, const Loops::Loop& loop,
                                       WhileContext* context) {
  const Output loop_cond(loop.loop_cond, 0);
  const Scope around = scope.InContext(context->outer()).WithoutControlDependencies();
  const Scope inside =
      scope.InContext(context).WithoutControlDependencies().ColocatedWith(loop_cond.op());
  ForwardCount count;
  count.forward.context = context;
  count.forward.alive =
      gradient_nodes::Identity(around.WithName("f_alive"), SourceOf(*loop.variables[0].enter)).op();
  const Output zero = Const(around.WithControlDependencies({count.forward.alive}), "f_count",
                            Tensor::Scalar<int32_t>(0));
  const Output enter = EnterLoop(around.WithName("f_count"), context, zero, /*is_constant=*/false);
  MR_RETURN_IF_ERROR(scope.status());
  const Output merge = gradient_nodes::MergeTwo(inside, "f_merge", enter, enter);
  const std::pair<Output, Output> ways = SwitchOn(inside, merge, loop_cond);
  const Output next = NodeBuilder(inside.WithName("f_add"), "Add")
                          .Input(ways.second)
                          .Input(Const(inside, "f_one", Tensor::Scalar<int32_t>(1)))
                          .Finish()
                          .output(0);
  MR_RETURN_IF_ERROR(scope.status());
  count.forward.count = next.op();
  count.forward.sync =
      NodeBuilder(inside.WithName("f_sync").WithControlDependencies({next.op()}), "ControlTrigger")
          .Finish()
          .operation();
  const Output back =
      NodeBuilder(inside.WithControlDependencies({count.forward.sync}), "NextIteration")
          .Input(next)
          .Finish()
          .output(0);
  MR_RETURN_IF_ERROR(scope.status());
  MR_RETURN_IF_ERROR(scope.graph()->UpdateInput(merge.node(), 1, back.node(), 0));
  count.iterations = ExitLoop(inside.WithName("f_count"), ways.first);
  MR_RETURN_IF_ERROR(scope.status());
  return count;
}

// What a gradient is that nothing flowed back to. Where the static shape is not known only
// `like` itself tells it; the nodes are in `scope`.
Output Zeros(const Scope& scope, const Output& like) {
  if (WithoutRef(like.dtype()) != DT_RESOURCE) return FilledLike(scope, "zeros", like, 0.0f);
  // Of a variable: of what it holds.
  const std::optional<HandleData> handle =
      scope.refiner()->OutputHandle(*like.node(), like.index());
  if (!handle) {
    scope.UpdateStatus(InvalidArgument("Gradients: what '", like.name(),
                                       "' holds must be known, got a handle of unknown type"),
                       ScopeAt(scope).where);
    return Output();
  }
  const Output value = NodeBuilder(scope, "ReadVariableOp")
                           .Input(like)
                           .Attr("dtype", handle->dtype)
                           .Finish()
                           .output(0);
  return FilledLike(scope, "zeros", value, 0.0f);
}

// Slices that come in iteration by iteration, as two lists.
class SliceAccumulator {
 public:
  // Of the gradient of `outside`; `first` is what one iteration gives.
  SliceAccumulator(const Scope& around, LoopBuilder* loop, const Output& outside,
                   const IndexedSlices& first)
      : around_(around), loop_(loop) {
    const DType shape_type = first.dense_shape.valid() ? first.dense_shape.dtype() : DT_INT32;
    const bool is_variable = WithoutRef(outside.dtype()) == DT_RESOURCE;
    dense_shape_ = NodeBuilder(around, is_variable ? "VariableShape" : "Shape")
                       .Input(outside)
                       .Attr("out_type", shape_type)
                       .Finish()
                       .output(0);
    // Both begin with an element without rows: so an empty sum knows its shape.
    const Output row = NodeBuilder(around, "Slice")
                           .Input(dense_shape_)
                           .Input(Const(around, "begin", Tensor::Vector<int32_t>({1})))
                           .Input(Const(around, "size", Tensor::Vector<int32_t>({-1})))
                           .Finish()
                           .output(0);
    const Tensor no_rows =
        shape_type == DT_INT64 ? Tensor::Vector<int64_t>({0}) : Tensor::Vector<int32_t>({0});
    const Output parts[] = {Const(around, "no_rows", no_rows), row};
    const StatusOr<Tensor> zero = Tensor::Zeros(WithoutRef(first.values.dtype()), Shape());
    const StatusOr<Tensor> none = Tensor::Zeros(first.indices.dtype(), Shape::Vector(0));
    if (!zero.ok() || !none.ok()) return;
    const Output empty = NodeBuilder(around, "Fill")
                             .Input(gradient_nodes::Concat(around, parts))
                             .Input(Const(around, "zero", *zero))
                             .Finish()
                             .output(0);
    values_ = Begin(empty);
    indices_ = Begin(Const(around, "no_indices", *none));
  }

  void Add(const IndexedSlices& slices) {
    Push(values_, slices.values);
    Push(indices_, slices.indices);
  }
  IndexedSlices Sum(DType values, DType indices) {
    return {Joined(values_, values), Joined(indices_, indices), dense_shape_};
  }

 private:
  int Begin(const Output& element) {
    const Output any = Const(around_, "any", Tensor::Scalar<int32_t>(-1));
    const Output list = NodeBuilder(around_, "EmptyTensorList")
                            .Input(any)
                            .Input(any)
                            .Attr("element_dtype", WithoutRef(element.dtype()))
                            .Finish()
                            .output(0);
    return loop_->AddVariable(
        NodeBuilder(around_, "TensorListPushBack").Input(list).Input(element).Finish().output(0),
        PartialShape::Scalar());
  }
  void Push(int variable, const Output& element) {
    loop_->SetNext(variable, NodeBuilder(loop_->inside(), "TensorListPushBack")
                                 .Input(loop_->in_body(variable))
                                 .Input(element)
                                 .Finish()
                                 .output(0));
  }
  Output Joined(int variable, DType dtype) {
    return NodeBuilder(around_, "TensorListConcat")
        .Input(loop_->Exit(variable))
        .Attr("element_dtype", dtype)
        .Finish()
        .output(0);
  }

  const Scope& around_;
  LoopBuilder* const loop_;
  Output dense_shape_;
  int values_ = 0, indices_ = 0;
};

}  // namespace

std::vector<bool> Backprop::NeededVariables(
    const Loops::Loop& loop, const absl::flat_hash_map<Node*, Gradient>& exits) const {
  absl::flat_hash_map<const Node*, size_t> number;  // by Merge
  for (size_t v = 0; v < loop.variables.size(); ++v) number[loop.variables[v].merge] = v;
  std::vector<bool> needed(loop.variables.size());
  std::vector<Node*> queue;
  absl::flat_hash_set<Node*> seen;
  const auto visit = [&](const OutputRef& ref) {
    if (Depends(ref) && seen.insert(ref.node).second) queue.push_back(ref.node);
  };
  const auto need = [&](size_t v) {
    if (needed[v] || !dependents_.contains(Output(loop.variables[v].merge, 0))) return;
    needed[v] = true;
    if (loop.variables[v].next != nullptr) visit(loop.variables[v].next->input(0));
  };
  for (size_t v = 0; v < loop.variables.size(); ++v) {
    for (Node* exit : loop.variables[v].exits) {
      if (exits.contains(exit)) need(v);
    }
  }
  while (!queue.empty()) {
    Node* const node = queue.back();
    queue.pop_back();
    if (const auto it = number.find(node); it != number.end()) {
      need(it->second);
    } else if (node->is_exit()) {
      for (const Node* enter : loops_->LoopOfExit(*node).enters) visit(enter->input(0));
    } else if (!node->is_enter()) {
      for (const OutputRef& input : node->inputs()) visit(input);
    }
  }
  // The gradient of a handle that goes from iteration to iteration has no place.
  for (size_t v = 0; v < loop.variables.size(); ++v) {
    if (WithoutRef(loop.variables[v].merge->output_type(0)) == DT_RESOURCE) needed[v] = false;
  }
  return needed;
}

namespace {

// Unimplemented when the loop has what no gradient loop can follow.
Status CheckDifferentiable(absl::string_view where, const Loops::Loop& loop,
                           const absl::flat_hash_map<Node*, Gradient>& exit_gradients) {
  if (loop.has_pops) {
    return Unimplemented(where,
                         " is the gradient of a loop; second-order gradients of loops are "
                         "not available");
  }
  if (loop.loop_cond == nullptr) {
    return Unimplemented(where, " must have a LoopCond to be differentiated, got none");
  }
  size_t found = 0;
  for (const Loops::Variable& variable : loop.variables) {
    if (variable.enter == nullptr || variable.next == nullptr || variable.branch == nullptr) {
      return Unimplemented(where, " must have Enter, NextIteration and Switch for '",
                           variable.merge->name(), "' to be differentiated");
    }
    for (Node* exit : variable.exits) found += exit_gradients.contains(exit);
  }
  if (found != exit_gradients.size()) {
    return Unimplemented(where,
                         " must be left by Exits of its variables' Switches to be "
                         "differentiated, got others");
  }
  return absl::OkStatus();
}

}  // namespace

StatusOr<Output> Backprop::InitialGradient(
    const Scope& here, const Scope& in_forward, const Loops::Variable& variable,
    const absl::flat_hash_map<Node*, Gradient>& exit_gradients) {
  const Output merge(variable.merge, 0);
  std::vector<Gradient> given;
  for (Node* exit : variable.exits) {
    const auto it = exit_gradients.find(exit);
    if (it != exit_gradients.end()) given.push_back(it->second);
  }
  Output initial;
  if (!given.empty()) {
    initial = DenseGradient(here, gradient_nodes::Aggregate(here, given));
  } else if (scope_.shape(merge).IsFullyDefined() && merge.dtype() != DT_VARIANT) {
    initial = FilledLike(here, "zeros", merge, 0.0f);
  } else {
    const Output end = variable.exits.empty() ? ExitLoop(in_forward.WithoutControlDependencies(),
                                                         Output(variable.branch, 0))
                                              : Output(variable.exits[0], 0);
    MR_RETURN_IF_ERROR(here.status());
    initial = FilledLike(here, "zeros", end, 0.0f);
  }
  MR_RETURN_IF_ERROR(here.status());
  return initial;
}

Status Backprop::AddInvariantGradients(const Scope& here, const Loops::Loop& loop,
                                       const Region& body, LoopBuilder* backward,
                                       EnterGradients* result) {
  const Scope& inside = backward->inside();
  for (Node* enter : loop.enters) {
    const Output invariant(enter, 0);
    const auto sum = body.sums.find(invariant);
    if (sum == body.sums.end() || !HasGradient(sum->second) ||
        !WhileContext::IsInvariant(invariant)) {
      continue;
    }
    const Output outside = SourceOf(*enter);
    if (const auto* slices = std::get_if<IndexedSlices>(&sum->second)) {
      SliceAccumulator accumulator(here, backward, outside, *slices);
      MR_RETURN_IF_ERROR(here.status());
      accumulator.Add(*slices);
      result->emplace_back(
          enter, accumulator.Sum(WithoutRef(slices->values.dtype()), slices->indices.dtype()));
      continue;
    }
    const Output zeros = Zeros(here, outside);
    MR_RETURN_IF_ERROR(here.status());
    const int accumulator = backward->AddVariable(zeros, scope_.shape(zeros));
    const Output parts[] = {backward->in_body(accumulator), std::get<Output>(sum->second)};
    MR_RETURN_IF_ERROR(here.status());
    const Output total = gradient_nodes::AddN(inside, parts);
    MR_RETURN_IF_ERROR(here.status());
    MR_RETURN_IF_ERROR(scope_.refiner()->MergeOutputShape(*total.node(), 0, scope_.shape(zeros)));
    backward->SetNext(accumulator, total);
    result->emplace_back(enter, backward->Exit(accumulator));
  }
  return absl::OkStatus();
}

StatusOr<Backprop::EnterGradients> Backprop::DifferentiateLoop(
    const Region& around, const Loops::Loop& loop,
    const absl::flat_hash_map<Node*, Gradient>& exit_gradients) {
  const std::string where = absl::StrCat("Gradients: loop '", loop.name, "'");
  WhileContext* const forward = LoopOf(scope_.ContextOf(*loop.enters[0]));
  if (forward == nullptr) return Internal(where, " has no context");
  if (!forward->options().back_prop) return EnterGradients();
  MR_RETURN_IF_ERROR(CheckDifferentiable(where, loop, exit_gradients));

  const Scope scope = around.scope.WithSubScope(absl::StrCat(loop.name, "_grad"));
  MR_ASSIGN_OR_RETURN(const ForwardCount count, CountIterations(scope, loop, forward));
  // Everything that is made for the gradient is there when the loop was entered.
  const Output iterations = gradient_nodes::Identity(scope.WithName("b_count"), count.iterations);
  MR_RETURN_IF_ERROR(scope.status());
  const Scope here = scope.WithControlDependencies({iterations.op()});

  auto made = std::make_unique<GradientLoopContext>(scope.UniqueName("while_context"),
                                                    scope.context(), count.forward, loops_);
  GradientLoopContext* const context = made.get();
  LoopBuilder backward(scope, std::move(made));
  const Scope& inside = backward.inside();
  const int counter = backward.AddVariable(iterations, PartialShape::Scalar());

  const std::vector<bool> needed = NeededVariables(loop, exit_gradients);
  std::vector<int> gradient_of(loop.variables.size(), -1);  // variables of the gradient loop
  for (size_t v = 0; v < loop.variables.size(); ++v) {
    if (!needed[v]) continue;
    const Loops::Variable& variable = loop.variables[v];
    const Output merge(variable.merge, 0);
    MR_ASSIGN_OR_RETURN(const Output initial,
                        InitialGradient(here, scope.InContext(forward), variable, exit_gradients));
    gradient_of[v] = backward.AddVariable(initial, scope_.shape(merge));
  }
  backward.SetCondition(NodeBuilder(inside, "GreaterEqual")
                            .Input(backward.at_condition(counter))
                            .Input(Const(inside, "one", Tensor::Scalar<int32_t>(1)))
                            .Finish()
                            .output(0));
  const Output left = backward.in_body(counter);
  MR_RETURN_IF_ERROR(scope.status());
  const Operation sync =
      NodeBuilder(inside.WithName("b_sync").WithControlDependencies({left.op()}), "ControlTrigger")
          .Finish()
          .operation();
  context->set_sync(sync);
  MR_RETURN_IF_ERROR(scope.status());

  Region body(inside, loop.frame, /*base=*/false);
  std::vector<Output> ys;
  for (size_t v = 0; v < loop.variables.size(); ++v) {
    if (gradient_of[v] < 0) continue;
    const OutputRef& next = loop.variables[v].next->input(0);
    const Output y(next.node, next.index);
    if (body.contributions[y].empty()) ys.push_back(y);
    body.contributions[y].emplace_back(backward.in_body(gradient_of[v]));
  }
  MR_RETURN_IF_ERROR(scope.status());
  MR_RETURN_IF_ERROR(Propagate(&body, ys));

  EnterGradients result;
  for (size_t v = 0; v < loop.variables.size(); ++v) {
    const Output merge(loop.variables[v].merge, 0);
    const auto sum = body.sums.find(merge);
    if (gradient_of[v] < 0) {
      if (sum != body.sums.end() && HasGradient(sum->second)) {
        return Unimplemented(where,
                             ": a variable's handle must not go from iteration to iteration "
                             "to be differentiated, got '",
                             merge.name(), "'");
      }
      continue;
    }
    Output next;
    if (sum != body.sums.end() && HasGradient(sum->second)) {
      next = DenseGradient(inside, sum->second);
    } else {
      next = FilledLike(inside, "zeros", merge, 0.0f);
    }
    MR_RETURN_IF_ERROR(scope.status());
    MR_RETURN_IF_ERROR(
        scope_.refiner()->MergeOutputShape(*next.node(), next.index(), scope_.shape(merge)));
    backward.SetNext(gradient_of[v], next);
    result.emplace_back(loop.variables[v].enter, backward.Exit(gradient_of[v]));
  }
  MR_RETURN_IF_ERROR(AddInvariantGradients(here, loop, body, &backward, &result));

  const Output fewer = NodeBuilder(inside, "Sub")
                           .Input(left)
                           .Input(Const(inside, "one", Tensor::Scalar<int32_t>(1)))
                           .Finish()
                           .output(0);
  backward.SetNext(counter, fewer);
  MR_RETURN_IF_ERROR(scope.status());
  scope_.graph()->AddControlEdge(sync.node(), backward.at_condition(counter).node()->input(1).node);
  backward.Exit(counter);
  MR_RETURN_IF_ERROR(scope.status());
  return result;
}

}  // namespace millrace
