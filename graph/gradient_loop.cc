// SPDX-License-Identifier: Apache-2.0
#include "graph/gradient_loop.h"

#include <vector>

#include "absl/strings/string_view.h"
#include "core/tensor.h"
#include "graph/attr.h"
#include "graph/control_flow_context.h"
#include "graph/gradient_nodes.h"
#include "graph/graph.h"
#include "graph/node_builder.h"
#include "graph/op_registry.h"
#include "graph/shape_inference.h"

namespace millrace {
namespace {

WhileContextOptions OptionsOf(const GradientLoopContext::Forward& forward) {
  WhileContextOptions options = forward.context->options();
  options.maximum_iterations = Output();
  return options;
}

// An Identity without conditions of its own has the value and the life of its input.
bool IsPlainIdentity(const Node& node) {
  return node.traits().hands_on == HandsOn::kValueAndGradient && node.num_inputs() == 1 &&
         node.control_inputs().empty() && node.input(0).node != nullptr &&
         !IsRef(node.input(0).node->output_type(node.input(0).index));
}

}  // namespace

GradientLoopContext::GradientLoopContext(std::string name, ControlFlowContext* outer,
                                         Forward forward, std::shared_ptr<const Loops> loops)
    : WhileContext(std::move(name), outer, OptionsOf(forward)),
      forward_(std::move(forward)),
      loops_(std::move(loops)) {}

bool GradientLoopContext::Reaches(const ControlFlowContext* other) const {
  for (const ControlFlowContext* c = other; c != nullptr; c = c->outer()) {
    if (c == forward_.context) return true;
  }
  return WhileContext::Reaches(other) || millrace::Reaches(outer(), other);
}

ControlFlowContext* GradientLoopContext::HomeOfOp(absl::string_view op, const Scope& scope,
                                                  absl::Span<const Output> inputs) {
  if (!TraitsOf(op).describes_shape || inputs.empty() || !inputs[0].valid()) {
    return this;
  }
  // A shape is less to keep than what has it.
  ControlFlowContext* const home = scope.ContextOf(*inputs[0].node());
  for (const Output& input : inputs) {
    if (!input.valid() || scope.ContextOf(*input.node()) != home || IsInvariant(input)) return this;
  }
  if (LoopOf(home) == forward_.context) return home;
  if (outer() == nullptr || home == this) return this;
  ControlFlowContext* const around = outer()->HomeOfOp(op, scope.InContext(outer()), inputs);
  return around == outer() ? this : around;
}

StatusOr<Output> GradientLoopContext::Adopt(const Scope& scope, const Output& tensor) {
  if (LoopOf(scope.ContextOf(*tensor.node())) != forward_.context) {
    return WhileContext::Adopt(scope, tensor);
  }
  Output from = tensor;
  while (IsPlainIdentity(*from.node())) {
    const OutputRef& input = from.node()->input(0);
    if (LoopOf(scope.ContextOf(*input.node)) != forward_.context) break;
    from = Output(input.node, input.index);
  }
  Output& known = values_[from];
  if (known.valid()) return known;
  Output value;
  if (IsInvariant(from)) {
    const OutputRef& source = from.node()->input(0);
    MR_ASSIGN_OR_RETURN(value, WhileContext::Adopt(scope, Output(source.node, source.index)));
  } else if (from.node()->is_const()) {
    MR_ASSIGN_OR_RETURN(const Tensor constant, GetAttr<Tensor>(*from.node(), "value"));
    value = gradient_nodes::Const(scope, "Const", constant);
  } else {
    MR_ASSIGN_OR_RETURN(value, Accumulate(scope, from));
  }
  MR_RETURN_IF_ERROR(scope.status());
  values_[from] = value;
  return value;
}

StatusOr<Operation> GradientLoopContext::Gate(const Scope& scope,
                                              const Loops::Condition& condition) {
  Operation& gate = gates_[condition.branch ? 1 : 0][condition.pred];
  if (gate.valid()) return gate;
  MR_ASSIGN_OR_RETURN(const Output pred, Adopt(scope, condition.pred));
  const std::pair<Output, Output> ways = SwitchOn(scope, pred, pred);
  const Output held = gradient_nodes::Identity(scope, condition.branch ? ways.second : ways.first);
  MR_RETURN_IF_ERROR(scope.status());
  gates_[condition.branch ? 1 : 0][condition.pred] = held.op();
  return held.op();
}

StatusOr<Output> GradientLoopContext::Accumulate(const Scope& scope, const Output& tensor) {
  const DType type = WithoutRef(tensor.dtype());
  Graph* const graph = scope.graph();
  // Made around the forward loop, whenever that is entered.
  const Scope around = scope.InContext(forward_.context->outer())
                           .ColocatedWith(tensor.op())
                           .WithControlDependencies({forward_.alive});
  const Output any_size = gradient_nodes::Const(around, "max_size", Tensor::Scalar<int32_t>(-1));
  const Output stack = NodeBuilder(around.WithName("acc"), "StackV2")
                           .Input(any_size)
                           .Attr("elem_type", type)
                           .Finish()
                           .output(0);
  MR_RETURN_IF_ERROR(scope.status());

  const Scope forward = scope.InContext(forward_.context);
  MR_ASSIGN_OR_RETURN(const Output to, forward_.context->Adopt(forward, stack));
  const BuiltNode push =
      NodeBuilder(forward.ColocatedWith(tensor.op()).WithControlDependencies({forward_.count}),
                  "StackPushV2")
          .AcrossContexts()  // the tensor may be of a branch in the loop
          .Input(to)
          .Input(tensor)
          .Attr("swap_memory", options().swap_memory)
          .Finish();
  MR_RETURN_IF_ERROR(scope.status());
  graph->AddControlEdge(push.operation().node(), forward_.sync.node());

  MR_ASSIGN_OR_RETURN(const Output handle, WhileContext::Adopt(scope, stack));
  std::vector<Operation> gates;
  for (const Loops::Condition& condition : loops_->ConditionsOf(tensor)) {
    MR_ASSIGN_OR_RETURN(Operation gate, Gate(scope, condition));
    gates.push_back(std::move(gate));
  }
  const BuiltNode pop = NodeBuilder(scope.WithControlDependencies(gates), "StackPopV2")
                            .Input(handle)
                            .Attr("elem_type", type)
                            .Finish();
  MR_RETURN_IF_ERROR(scope.status());
  graph->AddControlEdge(pop.operation().node(), sync_.node());
  MR_RETURN_IF_ERROR(
      scope.refiner()->MergeOutputShape(*pop.operation().node(), 0, scope.shape(tensor)));
  return pop.output(0);
}

}  // namespace millrace
