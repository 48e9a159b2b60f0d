// SPDX-License-Identifier: Apache-2.0
#include "graph/backprop.h"

#include <deque>
#include <utility>
#include <variant>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/dtype.h"
#include "core/shape.h"
#include "graph/attr.h"
#include "graph/control_flow.h"
#include "graph/function_gradient.h"
#include "graph/function_library.h"
#include "graph/gated_gradients.h"
#include "graph/gradient_nodes.h"
#include "graph/shape_inference.h"

namespace millrace {

bool GradientFlows(const Node& node, int output) {
  const DType type = WithoutRef(node.output_type(output));
  return IsTrainable(type) || type == DT_RESOURCE || type == DT_VARIANT ||
         (type == DT_INVALID && node.op_entry() == nullptr);
}

Backprop::Backprop(const Scope& scope, const GradientOptions& options, bool gated,
                   const std::string& source)
    : caller_(scope),
      scope_(scope.WithName("").CompositeScope("gradients").AcrossBranches()),
      source_(source.empty() ? std::string(absl::StripSuffix(scope_.prefix(), "/")) : source),
      options_(options),
      gated_(gated) {}

Scope Backprop::ScopeFor(const Region& region, Node* node) const {
  return options_.colocate_with_ops ? region.scope.ColocatedWith(Operation(node)) : region.scope;
}

// --- Which nodes ---------------------------------------------------------------------------------

namespace {

// The stack that a value comes onto by this edge; invalid for any other edge.
Output StackBehind(const Edge& edge) {
  const std::string& op = edge.dst->op();
  if (edge.dst_input != 1 || (op != "StackPushV2" && op != "StackPush")) return Output();
  OutputRef handle = edge.dst->input(0);
  while (handle.node != nullptr && (handle.node->is_enter() || handle.node->is_switch() ||
                                    (handle.node->traits().hands_on == HandsOn::kValueAndGradient &&
                                     handle.node->num_inputs() == 1))) {
    handle = handle.node->input(0);
  }
  return handle.node == nullptr ? Output() : Output(handle.node, handle.index);
}

}  // namespace

void Backprop::MarkDependents(absl::Span<const Output> xs) {
  std::deque<Output> queue;
  for (const Output& x : xs) {
    if (GradientFlows(*x.node(), x.index()) && dependents_.insert(x).second) queue.push_back(x);
  }
  while (!queue.empty()) {
    const Output from = queue.front();
    queue.pop_front();
    for (const Edge& edge : from.node()->out_edges()) {
      if (edge.is_control() || edge.src_output != from.index()) continue;
      // What is popped from a stack depends on what was pushed: no edge says so.
      const Output stack = StackBehind(edge);
      if (stack.valid() && dependents_.insert(stack).second) queue.push_back(stack);
      for (int k = 0; k < edge.dst->num_outputs(); ++k) {
        const Output next(edge.dst, k);
        if (GradientFlows(*edge.dst, k) && !stopped_.contains(next) &&
            dependents_.insert(next).second) {
          queue.push_back(next);
        }
      }
    }
  }
}

Node* Backprop::UnitOf(Node* node) const {
  return loops_ != nullptr && node->is_exit() ? loops_->LoopOfExit(*node).exits[0] : node;
}

void Backprop::ForEachDependence(const Region& region, Node* unit,
                                 absl::FunctionRef<void(Node* node, int i)> from) const {
  if (loops_ != nullptr && unit->is_exit()) {
    for (Node* enter : loops_->LoopOfExit(*unit).enters) {
      if (dependents_.contains(Output(enter, 0)) && Depends(enter->input(0))) from(enter, 0);
    }
    return;
  }
  if (loops_ != nullptr) {
    // Where an iteration begins. Seen from within one iteration, what every iteration gets comes
    // from around; what the one before has left does not.
    if (Loops::IsLoopMerge(*unit)) return;
    if (unit->is_enter() && !(region.is_base && WhileContext::IsInvariant(Output(unit, 0)))) return;
  }
  for (int i = 0; i < unit->num_inputs(); ++i) {
    if (Depends(unit->input(i))) from(unit, i);
  }
}

bool Backprop::Propagates(const Region& region, Node* unit) const {
  bool any = false;
  ForEachDependence(region, unit, [&](Node*, int) { any = true; });
  return any;
}

void Backprop::CountPending(Region* region, absl::Span<const Output> ys) const {
  std::deque<Node*> queue;
  for (const Output& y : ys) {
    Node* const unit = UnitOf(y.node());
    if (dependents_.contains(y) && region->pending.emplace(unit, 0).second) queue.push_back(unit);
  }
  while (!queue.empty()) {
    Node* const unit = queue.front();
    queue.pop_front();
    ForEachDependence(*region, unit, [&](Node* node, int i) {
      Node* const source = UnitOf(node->input(i).node);
      auto [it, first] = region->pending.emplace(source, 0);
      ++it->second;
      if (first) queue.push_back(source);
    });
  }
}

// --- One node ------------------------------------------------------------------------------------

namespace {

// TensorFlow 2 writes into calls which gradient its process had for them ("PartitionedCall-28"): a
// number that says nothing in another process.
bool IsOfAnotherProcess(const Node& node, absl::string_view gradient) {
  return OnlyCallsFunctions(node.op()) && absl::StartsWith(gradient, "PartitionedCall-");
}

}  // namespace

StatusOr<GradientFn> Backprop::FunctionOf(const Node& node) {
  if (node.body()->function() != nullptr) return GradientFn(&GradientOfCall);
  const OpEntry* entry = node.op_entry();
  std::string type = node.op();
  // A graph may ask for the gradient of another kind (override maps of TensorFlow's Python).
  if (HasAttr(node, "_gradient_op_type")) {
    MR_ASSIGN_OR_RETURN(type, GetAttr<std::string>(node, "_gradient_op_type"));
    if (IsOfAnotherProcess(node, type)) type = node.op();
    if (type != node.op()) entry = LookUpOp(type);
  }
  if (entry == nullptr || entry->differentiability == OpEntry::Differentiability::kUnknown) {
    return absl::NotFoundError(absl::StrCat("No gradient defined for operation '", node.name(),
                                            "' (op type: ", type, ")"));
  }
  if (entry->differentiability == OpEntry::Differentiability::kNotDifferentiable) {
    return GradientFn();
  }
  return entry->gradient_fn;
}

Status Backprop::CheckInputGradient(const Scope& scope, const Node& node, int i,
                                    const Gradient& gradient) {
  const std::string where = absl::StrCat("Gradient of ", node.op(), " '", node.name(), "'");
  const DType forward = WithoutRef(node.input_type(i));
  const bool dense = std::holds_alternative<Output>(gradient);
  const Output values =
      dense ? std::get<Output>(gradient) : std::get<IndexedSlices>(gradient).values;
  const DType type = WithoutRef(values.dtype());
  if (!dense && !std::get<IndexedSlices>(gradient).indices.valid()) {
    return Internal(where, ": input ", i, " got slices without indices");
  }
  // A resource's gradient is that of what it holds, a list's a list.
  const bool is_same_type = IsTrainable(forward) || forward == DT_VARIANT;
  if (is_same_type ? type != forward : !IsTrainable(type)) {
    return Internal(where, ": the gradient of input ", i, " must be ",
                    is_same_type ? DTypeName(forward) : "floating", ", got ", DTypeName(type));
  }
  if (!dense || !IsTrainable(forward)) return absl::OkStatus();
  const PartialShape have = scope.shape(values);
  const PartialShape want = scope.shape(Output(node.input(i).node, node.input(i).index));
  if (!have.IsCompatibleWith(want)) {
    return InvalidArgument(
        "Incompatible shapes between op input and calculated input gradient. Forward operation: ",
        node.name(), ". Input index: ", i, ". Original input shape: ", want.ToString(),
        ". Calculated input gradient shape: ", have.ToString());
  }
  // Sharpens what is known of the gradient; compatible shapes always merge.
  return scope.refiner()->MergeOutputShape(*values.node(), values.index(), want);
}

Gradient Backprop::TakeSum(Region* region, const Output& output, const Scope& scope) {
  auto it = region->contributions.find(output);
  if (it == region->contributions.end()) return Gradient();
  Node* first = nullptr;
  if (const Output* dense = std::get_if<Output>(&it->second[0])) first = dense->node();
  Gradient sum = gradient_nodes::Aggregate(
      it->second.size() > 1 && first != nullptr ? ScopeFor(*region, first) : scope, it->second);
  region->contributions.erase(it);
  region->sums[output] = sum;
  return stopped_.contains(output) ? Gradient() : sum;
}

Status Backprop::PropagateThroughNode(Region* region, Node* node) {
  std::vector<Gradient> output_gradients(static_cast<size_t>(node->num_outputs()));
  bool any = false;
  for (int k = 0; k < node->num_outputs(); ++k) {
    output_gradients[static_cast<size_t>(k)] =
        TakeSum(region, Output(node, k), ScopeFor(*region, node));
    MR_RETURN_IF_ERROR(scope_.status());
    any = any || HasGradient(output_gradients[static_cast<size_t>(k)]);
  }
  if (!Propagates(*region, node)) return absl::OkStatus();
  std::vector<Gradient> input_gradients(static_cast<size_t>(node->num_inputs()));
  if (any && loops_ != nullptr && (Loops::IsLoopSwitch(*node) || node->is_enter())) {
    // The way into the body is the one that an iteration takes.
    input_gradients[0] = std::move(output_gradients[node->is_enter() ? 0 : 1]);
  } else if (any) {
    MR_ASSIGN_OR_RETURN(const GradientFn function, FunctionOf(*node));
    if (function) {
      const Scope scope = ScopeFor(*region, node).WithSubScope(absl::StrCat(node->name(), "_grad"));
      GradientContext context(scope, node, std::move(output_gradients), source_);
      const Status status = function(&context);
      MR_RETURN_IF_ERROR(scope_.status());
      MR_RETURN_IF_ERROR(
          Prefixed(absl::StrCat("Gradient of ", node->op(), " '", node->name(), "'"), status));
      input_gradients = std::move(context.input_gradients());
      for (int i = 0; i < node->num_inputs(); ++i) {
        const Gradient& gradient = input_gradients[static_cast<size_t>(i)];
        if (!Depends(node->input(i)) || !HasGradient(gradient)) continue;
        MR_RETURN_IF_ERROR(CheckInputGradient(scope, *node, i, gradient));
      }
      if (gated_ && !node->is_switch() && !node->is_merge()) {
        input_gradients = GateTogether(scope, std::move(input_gradients));
        MR_RETURN_IF_ERROR(scope_.status());
      }
    }
  }
  for (int i = 0; i < node->num_inputs(); ++i) {
    const OutputRef& input = node->input(i);
    Gradient& gradient = input_gradients[static_cast<size_t>(i)];
    if (Depends(input) && HasGradient(gradient)) {
      region->contributions[Output(input.node, input.index)].push_back(std::move(gradient));
    }
  }
  return absl::OkStatus();
}

// --- One region ----------------------------------------------------------------------------------

Status Backprop::PropagateThrough(Region* region, Node* unit) {
  if (loops_ == nullptr || !unit->is_exit()) return PropagateThroughNode(region, unit);
  const Loops::Loop& loop = loops_->LoopOfExit(*unit);
  absl::flat_hash_map<Node*, Gradient> exit_gradients;
  for (Node* exit : loop.exits) {
    Gradient sum = TakeSum(region, Output(exit, 0), ScopeFor(*region, exit));
    MR_RETURN_IF_ERROR(scope_.status());
    if (HasGradient(sum)) exit_gradients[exit] = std::move(sum);
  }
  if (exit_gradients.empty() || !Propagates(*region, unit)) return absl::OkStatus();
  MR_ASSIGN_OR_RETURN(EnterGradients gradients, DifferentiateLoop(*region, loop, exit_gradients));
  MR_RETURN_IF_ERROR(scope_.status());
  for (auto& [enter, gradient] : gradients) {
    const OutputRef& input = enter->input(0);
    if (!Depends(input) || !HasGradient(gradient)) continue;
    region->contributions[Output(input.node, input.index)].push_back(std::move(gradient));
  }
  return absl::OkStatus();
}

Status Backprop::Propagate(Region* region, absl::Span<const Output> ys) {
  CountPending(region, ys);
  std::deque<Node*> ready;
  absl::flat_hash_set<Node*> queued;
  for (const Output& y : ys) {
    Node* const unit = UnitOf(y.node());
    auto it = region->pending.find(unit);
    if (it != region->pending.end() && it->second == 0 && queued.insert(unit).second) {
      ready.push_back(unit);
    }
  }
  size_t done = 0;
  while (!ready.empty()) {
    Node* const unit = ready.front();
    ready.pop_front();
    ++done;
    MR_RETURN_IF_ERROR(PropagateThrough(region, unit));
    ForEachDependence(*region, unit, [&](Node* node, int i) {
      Node* const source = UnitOf(node->input(i).node);
      if (--region->pending[source] == 0 && queued.insert(source).second) ready.push_back(source);
    });
  }
  if (done == region->pending.size()) return absl::OkStatus();
  for (const auto& [node, pending] : region->pending) {
    if (!queued.contains(node)) {
      return InvalidArgument(
          "Gradients: the graph between ys and xs must have no cycle, got one through '",
          node->name(), "'");
    }
  }
  return absl::OkStatus();
}

StatusOr<std::vector<Gradient>> Backprop::Run(absl::Span<const Output> ys,
                                              absl::Span<const Output> xs) {
  MR_RETURN_IF_ERROR(caller_.status());
  for (const Output& stop : options_.stop_gradients) {
    if (stop.valid()) stopped_.insert(stop);
  }
  int frame = 0;
  if (caller_.graph()->has_loops()) {
    MR_ASSIGN_OR_RETURN(loops_, Loops::Of(*caller_.graph()));
    MR_RETURN_IF_ERROR(loops_->EnsureContexts(scope_));
    for (size_t i = 0; i < ys.size(); ++i) {
      if (i == 0) frame = loops_->FrameOf(ys[i]);
      if (loops_->FrameOf(ys[i]) == frame) continue;
      return InvalidArgument("Gradients: ys must be in one loop, or outside of all, got ys[0] '",
                             ys[0].name(), "' and ys[", i, "] '", ys[i].name(), "'");
    }
    for (size_t i = 0; i < xs.size(); ++i) {
      if (loops_->IsAround(loops_->FrameOf(xs[i]), frame)) continue;
      return Unimplemented("Gradients: xs[", i, "] '", xs[i].name(), "' is in loop '",
                           loops_->loop(loops_->FrameOf(xs[i])).name,
                           "', which the ys are outside of; differentiate in its body, or return "
                           "what is to be differentiated from it");
    }
  }
  MarkDependents(xs);
  Region region(scope_, frame, /*base=*/true);
  for (size_t i = 0; i < ys.size(); ++i) {
    const Output& y = ys[i];
    if (!dependents_.contains(y)) continue;
    if (options_.grad_ys.empty()) {
      const Output ones = gradient_nodes::FilledLike(ScopeFor(region, y.node()),
                                                     absl::StrCat("grad_ys_", i), y, 1.0f);
      MR_RETURN_IF_ERROR(scope_.status());
      region.contributions[y].push_back(ones);
    } else {
      region.contributions[y].push_back(options_.grad_ys[i]);
    }
  }
  MR_RETURN_IF_ERROR(Propagate(&region, ys));
  std::vector<Gradient> result;
  for (const Output& x : xs) {
    auto it = region.sums.find(x);
    result.push_back(it == region.sums.end() ? Gradient() : it->second);
  }
  return result;
}

}  // namespace millrace
