// SPDX-License-Identifier: Apache-2.0
#include "graph/gradient.h"

#include <deque>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/dtype.h"
#include "core/small_tensors.h"
#include "core/tensor.h"
#include "graph/attr.h"
#include "graph/function_gradient.h"
#include "graph/function_library.h"
#include "graph/gated_gradients.h"
#include "graph/graph.h"
#include "graph/node_builder.h"
#include "graph/op_registry.h"
#include "graph/shape_inference.h"

namespace millrace {
namespace {

Output Const(const Scope& scope, absl::string_view name, const Tensor& value) {
  return NodeBuilder(scope.WithName(name), "Const")
      .Attr("dtype", value.dtype())
      .Attr("value", value)
      .Finish()
      .output(0);
}

// A tensor like `like` with every element `value` (0 or 1). Only the shape of `like` is used, and
// only when it is not known while the graph is built.
Output FilledLike(const Scope& scope, absl::string_view name, Output like, float value) {
  const DType dtype = WithoutRef(like.dtype());
  const PartialShape known = scope.shape(like);
  if (!known.IsFullyDefined() || dtype == DT_VARIANT) {
    return NodeBuilder(scope.WithName(name), value == 0 ? "ZerosLike" : "OnesLike")
        .Input(like)
        .Finish()
        .output(0);
  }
  StatusOr<Tensor> scalar = ScalarTensor(dtype, static_cast<double>(value));
  StatusOr<Shape> shape = known.ToShape();
  if (!scalar.ok() || !shape.ok()) {
    scope.UpdateStatus(scalar.ok() ? shape.status() : scalar.status(),
                       std::source_location::current());
    return Output();
  }
  if (shape->is_scalar()) return Const(scope, name, *scalar);
  const Output dims = Const(scope, "Shape", DimsTensor(*shape));
  const Output element = Const(scope, name, *scalar);
  return NodeBuilder(scope, "Fill").Input(dims).Input(element).Finish().output(0);
}

Output Identity(const Scope& scope, Output x) {
  return NodeBuilder(scope, "Identity").Input(x).Finish().output(0);
}

Output CastTo(const Scope& scope, Output x, DType dtype) {
  if (x.dtype() == dtype) return x;
  return NodeBuilder(scope, "Cast").Input(x).Attr("DstT", dtype).Finish().output(0);
}

Output Concat(const Scope& scope, absl::Span<const Output> parts) {
  if (parts.size() == 1) return parts[0];
  const Output axis = Const(scope, "axis", Tensor::Scalar<int32_t>(0));
  return NodeBuilder(scope, "ConcatV2").Input(parts).Input(axis).Finish().output(0);
}

Output AddN(const Scope& scope, absl::Span<const Output> parts) {
  if (parts.size() == 1) return parts[0];
  return NodeBuilder(scope, "AddN").Input(parts).Finish().output(0);
}

Output MergeTwo(const Scope& scope, absl::string_view name, Output on_false, Output on_true) {
  const Output both[] = {on_false, on_true};
  return NodeBuilder(scope.WithName(name), "Merge")
      .Input(absl::MakeConstSpan(both))
      .Finish()
      .output(0);
}

// Contributions of several paths as one gradient.
Gradient Aggregate(const Scope& scope, const std::vector<Gradient>& parts) {
  if (parts.empty()) return std::monostate();
  if (parts.size() == 1) return parts[0];
  bool all_slices = true;
  for (const Gradient& g : parts)
    all_slices = all_slices && std::holds_alternative<IndexedSlices>(g);
  if (!all_slices) {
    std::vector<Output> dense;
    for (const Gradient& g : parts) dense.push_back(DenseGradient(scope, g));
    return AddN(scope, dense);
  }
  DType index_type = DT_INT32;
  for (const Gradient& g : parts) {
    if (std::get<IndexedSlices>(g).indices.dtype() != DT_INT32) index_type = DT_INT64;
  }
  std::vector<Output> values, indices;
  IndexedSlices sum;
  for (const Gradient& g : parts) {
    const IndexedSlices& slices = std::get<IndexedSlices>(g);
    values.push_back(slices.values);
    indices.push_back(CastTo(scope, slices.indices, index_type));
    if (!sum.dense_shape.valid()) sum.dense_shape = slices.dense_shape;
  }
  sum.values = Concat(scope, values);
  sum.indices = Concat(scope, indices);
  return sum;
}

// Gradients pass through outputs of this type. An op kind that is not known has outputs without
// type: passing them leads to the error that names it.
bool Flows(const Node& node, int output) {
  const DType type = WithoutRef(node.output_type(output));
  return IsTrainable(type) || type == DT_RESOURCE || type == DT_VARIANT ||
         (type == DT_INVALID && node.op_entry() == nullptr);
}

// The name of the loop that an Enter, Exit or NextIteration belongs to: of the nearest Enter.
std::string LoopName(const Node& node) {
  std::deque<const Node*> queue = {&node};
  absl::flat_hash_set<const Node*> seen = {&node};
  while (!queue.empty()) {
    const Node* n = queue.front();
    queue.pop_front();
    if (n->is_enter()) {
      StatusOr<std::string> frame = GetAttr<std::string>(*n, "frame_name");
      if (frame.ok()) return *frame;
    }
    for (const OutputRef& input : n->inputs()) {
      if (input.node != nullptr && seen.insert(input.node).second) queue.push_back(input.node);
    }
  }
  return node.name();
}

using Tensors = absl::flat_hash_set<Output>;

// One call of AddGradients.
class Backprop {
 public:
  Backprop(const Scope& scope, const GradientOptions& options, bool gated)
      : caller_(scope),
        scope_(scope.WithName("").CompositeScope("gradients")),
        source_(absl::StripSuffix(scope_.prefix(), "/")),
        options_(options),
        gated_(gated) {}

  StatusOr<std::vector<Gradient>> Run(absl::Span<const Output> ys, absl::Span<const Output> xs);

 private:
  void MarkDependents(absl::Span<const Output> xs);
  Status CountPending(absl::Span<const Output> ys);
  Status SeedOutputs(absl::Span<const Output> ys);
  Status PropagateThrough(Node* node);
  Status CheckInputGradient(const Scope& scope, const Node& node, int i, const Gradient& gradient);
  // The gradient function of `node`; empty when no gradient flows.
  StatusOr<GradientFn> FunctionOf(const Node& node);
  // A node that passes gradients on: one of its inputs depends on an x.
  bool Propagates(const Node& node) const {
    for (const OutputRef& input : node.inputs()) {
      if (Depends(input)) return true;
    }
    return false;
  }
  bool Depends(const OutputRef& ref) const {
    return ref.node != nullptr && dependents_.contains(Output(ref.node, ref.index));
  }
  Scope ScopeFor(Node* node) const {
    return options_.colocate_with_ops ? scope_.ColocatedWith(Operation(node)) : scope_;
  }

  const Scope& caller_;
  const Scope scope_;
  const std::string source_;
  const GradientOptions& options_;
  const bool gated_;
  Tensors stopped_;
  // The xs and every output that a change of an x reaches.
  Tensors dependents_;
  // Edges from a dependent output to a node between xs and ys whose gradient is still to come.
  absl::flat_hash_map<Node*, int> pending_;
  absl::flat_hash_map<Output, std::vector<Gradient>> contributions_;
  absl::flat_hash_map<Output, Gradient> sums_;
};

void Backprop::MarkDependents(absl::Span<const Output> xs) {
  std::deque<Output> queue;
  for (const Output& x : xs) {
    if (Flows(*x.node(), x.index()) && dependents_.insert(x).second) queue.push_back(x);
  }
  while (!queue.empty()) {
    const Output from = queue.front();
    queue.pop_front();
    for (const Edge& edge : from.node()->out_edges()) {
      if (edge.is_control() || edge.src_output != from.index()) continue;
      for (int k = 0; k < edge.dst->num_outputs(); ++k) {
        const Output next(edge.dst, k);
        if (Flows(*edge.dst, k) && !stopped_.contains(next) && dependents_.insert(next).second) {
          queue.push_back(next);
        }
      }
    }
  }
}

Status Backprop::CountPending(absl::Span<const Output> ys) {
  std::deque<Node*> queue;
  for (const Output& y : ys) {
    if (dependents_.contains(y) && pending_.emplace(y.node(), 0).second) queue.push_back(y.node());
  }
  while (!queue.empty()) {
    Node* node = queue.front();
    queue.pop_front();
    if (!Propagates(*node)) continue;
    if (node->is_enter() || node->is_exit() || node->is_next_iteration()) {
      return Unimplemented(
          "Gradients: the way from ys to xs must not pass through a while loop, got ", node->op(),
          " '", node->name(), "' of loop '", LoopName(*node), "'");
    }
    for (const OutputRef& input : node->inputs()) {
      if (!Depends(input)) continue;
      auto [it, first] = pending_.emplace(input.node, 0);
      ++it->second;
      if (first) queue.push_back(input.node);
    }
  }
  return absl::OkStatus();
}

Status Backprop::SeedOutputs(absl::Span<const Output> ys) {
  for (size_t i = 0; i < ys.size(); ++i) {
    const Output y = ys[i];
    if (!dependents_.contains(y)) continue;
    if (options_.grad_ys.empty()) {
      const Output ones = FilledLike(ScopeFor(y.node()), absl::StrCat("grad_ys_", i), y, 1.0f);
      MR_RETURN_IF_ERROR(scope_.status());
      contributions_[y].push_back(ones);
    } else {
      contributions_[y].push_back(options_.grad_ys[i]);
    }
  }
  return absl::OkStatus();
}

// TensorFlow 2 writes into calls which gradient its process had for them ("PartitionedCall-28"): a
// number that says nothing in another process.
bool IsOfAnotherProcess(const Node& node, absl::string_view gradient) {
  return OnlyCallsFunctions(node.op()) && absl::StartsWith(gradient, "PartitionedCall-");
}

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

Status Backprop::PropagateThrough(Node* node) {
  std::vector<Gradient> output_gradients(static_cast<size_t>(node->num_outputs()));
  bool any = false;
  for (int k = 0; k < node->num_outputs(); ++k) {
    const Output output(node, k);
    auto it = contributions_.find(output);
    if (it == contributions_.end()) continue;
    Node* first = nullptr;
    if (const Output* dense = std::get_if<Output>(&it->second[0])) first = dense->node();
    Gradient sum = Aggregate(
        it->second.size() > 1 && first != nullptr ? ScopeFor(first) : ScopeFor(node), it->second);
    MR_RETURN_IF_ERROR(scope_.status());
    sums_[output] = sum;
    contributions_.erase(it);
    if (stopped_.contains(output)) continue;
    output_gradients[static_cast<size_t>(k)] = std::move(sum);
    any = true;
  }
  if (!Propagates(*node)) return absl::OkStatus();
  std::vector<Gradient> input_gradients(static_cast<size_t>(node->num_inputs()));
  if (any) {
    MR_ASSIGN_OR_RETURN(const GradientFn function, FunctionOf(*node));
    if (function) {
      const Scope scope = ScopeFor(node).WithSubScope(absl::StrCat(node->name(), "_grad"));
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
    if (!Depends(input)) continue;
    --pending_[input.node];
    Gradient& gradient = input_gradients[static_cast<size_t>(i)];
    if (HasGradient(gradient)) {
      contributions_[Output(input.node, input.index)].push_back(std::move(gradient));
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
  MarkDependents(xs);
  MR_RETURN_IF_ERROR(CountPending(ys));
  MR_RETURN_IF_ERROR(SeedOutputs(ys));

  std::deque<Node*> ready;
  absl::flat_hash_set<Node*> queued;
  for (const Output& y : ys) {
    auto it = pending_.find(y.node());
    if (it != pending_.end() && it->second == 0 && queued.insert(y.node()).second) {
      ready.push_back(y.node());
    }
  }
  size_t done = 0;
  while (!ready.empty()) {
    Node* node = ready.front();
    ready.pop_front();
    ++done;
    MR_RETURN_IF_ERROR(PropagateThrough(node));
    if (!Propagates(*node)) continue;
    for (const OutputRef& input : node->inputs()) {
      if (Depends(input) && pending_[input.node] == 0 && queued.insert(input.node).second) {
        ready.push_back(input.node);
      }
    }
  }
  if (done != pending_.size()) {
    for (const auto& [node, pending] : pending_) {
      if (!queued.contains(node)) {
        return InvalidArgument(
            "Gradients: the graph between ys and xs must have no cycle, got one through '",
            node->name(), "'");
      }
    }
  }

  std::vector<Gradient> result;
  for (const Output& x : xs) {
    auto it = sums_.find(x);
    result.push_back(it == sums_.end() ? Gradient() : it->second);
  }
  return result;
}

Status CheckTensor(const Scope& scope, absl::string_view list, size_t i, Output tensor) {
  if (!tensor.valid() || scope.graph()->FindNode(tensor.node()->name()) != tensor.node() ||
      tensor.index() < 0 || tensor.index() >= tensor.node()->num_outputs()) {
    return InvalidArgument("Gradients: ", list, "[", i, "] must be a tensor of this graph, got ",
                           tensor.valid() ? "another graph's" : "none");
  }
  return absl::OkStatus();
}

// Slices without rows, alive when `live` is: `shaped_like` gives the other dimensions. Empty when
// these are not known.
std::optional<IndexedSlices> EmptySlices(const Scope& scope, Output live,
                                         const IndexedSlices& shaped_like) {
  const PartialShape values = scope.shape(shaped_like.values);
  if (!values.has_rank() || values.rank() == 0) return std::nullopt;
  std::vector<int64_t> dims(values.dims().begin(), values.dims().end());
  dims[0] = 0;
  for (int64_t d : dims) {
    if (d < 0) return std::nullopt;
  }
  StatusOr<Shape> shape = Shape::Make(dims);
  if (!shape.ok()) return std::nullopt;
  StatusOr<Tensor> no_values = Tensor::Zeros(WithoutRef(shaped_like.values.dtype()), *shape);
  StatusOr<Tensor> no_indices = Tensor::Zeros(shaped_like.indices.dtype(), Shape::Vector(0));
  if (!no_values.ok() || !no_indices.ok()) return std::nullopt;
  const Operation pivot = Identity(scope, live).op();
  const Scope on_branch = scope.WithControlDependencies({pivot});
  IndexedSlices result;
  result.values = Const(on_branch, "no_values", *no_values);
  result.indices = Const(on_branch, "no_indices", *no_indices);
  if (shaped_like.dense_shape.valid()) {
    const DType type = shaped_like.dense_shape.dtype();
    result.dense_shape =
        NodeBuilder(scope, WithoutRef(live.dtype()) == DT_RESOURCE ? "VariableShape" : "Shape")
            .Input(live)
            .Attr("out_type", type)
            .Finish()
            .output(0);
  }
  return result;
}

// Indices and shape of a gradient may be made outside of the branch that its values are made in (a
// constant list of ids); these are dead when the values are.
IndexedSlices WithLifeOfValues(const Scope& scope, const IndexedSlices& slices) {
  const Scope with_values = scope.WithControlDependencies({Identity(scope, slices.values).op()});
  IndexedSlices result;
  result.values = slices.values;
  result.indices = Identity(with_values, slices.indices);
  if (slices.dense_shape.valid()) result.dense_shape = Identity(with_values, slices.dense_shape);
  return result;
}

}  // namespace

GradientContext::GradientContext(const Scope& scope, Node* node,
                                 std::vector<Gradient> output_gradients, std::string source)
    : scope_(scope),
      node_(node),
      source_(std::move(source)),
      output_gradients_(std::move(output_gradients)),
      input_gradients_(static_cast<size_t>(node->num_inputs())) {
  output_gradients_.resize(static_cast<size_t>(node->num_outputs()));
}

Output GradientContext::dense_grad(int i) {
  Gradient& gradient = output_gradients_[static_cast<size_t>(i)];
  if (const Output* dense = std::get_if<Output>(&gradient)) return *dense;
  if (HasGradient(gradient)) {
    const Output dense = DenseGradient(scope_, gradient);
    gradient = dense;
    return dense;
  }
  Output like = output(i);
  if (WithoutRef(like.dtype()) == DT_RESOURCE) {
    DType held = DT_INVALID;
    if (std::optional<HandleData> handle = scope_.refiner()->OutputHandle(*node_, i)) {
      held = handle->dtype;
    }
    for (const Gradient& other : output_gradients_) {
      if (const Output* dense = std::get_if<Output>(&other)) held = dense->dtype();
      if (const IndexedSlices* slices = std::get_if<IndexedSlices>(&other)) {
        held = slices->values.dtype();
      }
    }
    like = NodeBuilder(scope_, "ReadVariableOp").Input(like).Attr("dtype", held).Finish().output(0);
  }
  // A constant would be alive on both branches of a conditional.
  const Output zeros = node_->is_switch() || WithoutRef(output(i).dtype()) == DT_RESOURCE
                           ? NodeBuilder(scope_, "ZerosLike").Input(like).Finish().output(0)
                           : FilledLike(scope_, "zeros", like, 0.0f);
  gradient = zeros;
  return zeros;
}

void GradientContext::set_input_grad(int i, Output gradient) {
  if (gradient.valid()) input_gradients_[static_cast<size_t>(i)] = gradient;
}

void GradientContext::set_input_grad(int i, IndexedSlices gradient) {
  if (gradient.values.valid()) input_gradients_[static_cast<size_t>(i)] = std::move(gradient);
}

void GradientContext::set_input_grads(absl::Span<const Output> gradients) {
  if (gradients.size() > input_gradients_.size()) {
    scope_.UpdateStatus(Internal("Gradient of ", node_->op(), " '", node_->name(), "': must have ",
                                 input_gradients_.size(), " gradients or fewer, one an input, got ",
                                 gradients.size()),
                        std::source_location::current());
    return;
  }
  for (size_t i = 0; i < gradients.size(); ++i) set_input_grad(static_cast<int>(i), gradients[i]);
}

Output DenseGradient(const Scope& scope, const Gradient& gradient) {
  if (const Output* dense = std::get_if<Output>(&gradient)) return *dense;
  const IndexedSlices* slices = std::get_if<IndexedSlices>(&gradient);
  if (slices == nullptr) return Output();
  if (!slices->dense_shape.valid()) {
    if (slices->values.valid()) {
      scope.UpdateStatus(
          InvalidArgument("Gradients: slices '", slices->values.name(),
                          "' must have a dense_shape to become one dense tensor, got none"),
          std::source_location::current());
    }
    return Output();
  }
  const Output begin = Const(scope, "begin", Tensor::Vector<int32_t>({0}));
  const Output end = Const(scope, "end", Tensor::Vector<int32_t>({1}));
  const Output strides = Const(scope, "strides", Tensor::Vector<int32_t>({1}));
  const Output rows = NodeBuilder(scope.WithName("num_rows"), "StridedSlice")
                          .Input(slices->dense_shape)
                          .Input(begin)
                          .Input(end)
                          .Input(strides)
                          .Attr("shrink_axis_mask", int64_t{1})
                          .Finish()
                          .output(0);
  return NodeBuilder(scope, "UnsortedSegmentSum")
      .Input(slices->values)
      .Input(slices->indices)
      .Input(rows)
      .Finish()
      .output(0);
}

std::vector<Gradient> GateTogether(const Scope& scope, std::vector<Gradient> gradients) {
  std::vector<Output*> values;
  for (Gradient& gradient : gradients) {
    if (Output* dense = std::get_if<Output>(&gradient)) values.push_back(dense);
    if (IndexedSlices* slices = std::get_if<IndexedSlices>(&gradient)) {
      values.push_back(&slices->values);
    }
  }
  if (values.size() < 2) return gradients;
  const Scope tuple = scope.CompositeScope("tuple");
  const Scope group = tuple.WithName("group_deps");
  NodeBuilder gate(group, "NoOp");
  for (const Output* value : values) gate.ControlInput(value->op());
  const Operation all = gate.Finish().operation();
  for (Output* value : values) {
    const Scope beside = tuple.WithName("control_dependency").ColocatedWith(value->op());
    *value = NodeBuilder(beside, "Identity").Input(*value).ControlInput(all).Finish().output(0);
  }
  return gradients;
}

namespace {

StatusOr<std::vector<Gradient>> Add(const Scope& scope, absl::Span<const Output> ys,
                                    absl::Span<const Output> xs, const GradientOptions& options,
                                    bool gated) {
  MR_RETURN_IF_ERROR(scope.status());
  if (!options.grad_ys.empty() && options.grad_ys.size() != ys.size()) {
    return InvalidArgument("Gradients: grad_ys must be as many as ys (", ys.size(), "), got ",
                           options.grad_ys.size());
  }
  for (size_t i = 0; i < xs.size(); ++i) MR_RETURN_IF_ERROR(CheckTensor(scope, "xs", i, xs[i]));
  for (size_t i = 0; i < ys.size(); ++i) {
    MR_RETURN_IF_ERROR(CheckTensor(scope, "ys", i, ys[i]));
    const DType type = WithoutRef(ys[i].dtype());
    const std::string where = absl::StrCat("Gradients: ys[", i, "] '", ys[i].name(), "'");
    if (!IsTrainable(type)) {
      return InvalidArgument(where, " must be floating or complex, got ", DTypeName(type));
    }
    if (options.grad_ys.empty()) {
      if (IsComplex(type)) {
        return InvalidArgument(where, " must have a grad_y because it is complex, got none");
      }
      continue;
    }
    MR_RETURN_IF_ERROR(CheckTensor(scope, "grad_ys", i, options.grad_ys[i]));
    if (WithoutRef(options.grad_ys[i].dtype()) != type) {
      return InvalidArgument("Gradients: grad_ys[", i, "] '", options.grad_ys[i].name(),
                             "' must be ", DTypeName(type), " as its y, got ",
                             DTypeName(options.grad_ys[i].dtype()));
    }
    const PartialShape shape = scope.shape(ys[i]);
    const PartialShape grad_shape = scope.shape(options.grad_ys[i]);
    if (!shape.IsCompatibleWith(grad_shape)) {
      return InvalidArgument("Gradients: grad_ys[", i, "] '", options.grad_ys[i].name(),
                             "' must have the shape of its y ", shape.ToString(), ", got ",
                             grad_shape.ToString());
    }
  }
  return Backprop(scope, options, gated).Run(ys, xs);
}

}  // namespace

StatusOr<std::vector<Gradient>> AddGradients(const Scope& scope, absl::Span<const Output> ys,
                                             absl::Span<const Output> xs,
                                             const GradientOptions& options) {
  return Add(scope, ys, xs, options, /*gated=*/false);
}

StatusOr<std::vector<Gradient>> AddGatedGradients(const Scope& scope, absl::Span<const Output> ys,
                                                  absl::Span<const Output> xs,
                                                  const GradientOptions& options) {
  return Add(scope, ys, xs, options, /*gated=*/true);
}

std::string WhyNoGradient(const Output& y, const Output& x) {
  // What y depends on, whether gradients pass or not.
  absl::flat_hash_set<const Node*> before = {y.node()};
  std::deque<const Node*> queue = {y.node()};
  while (!queue.empty()) {
    const Node* const node = queue.front();
    queue.pop_front();
    for (const OutputRef& input : node->inputs()) {
      if (input.node != nullptr && before.insert(input.node).second) queue.push_back(input.node);
    }
  }
  if (!before.contains(x.node())) return absl::StrCat("'", y.name(), "' does not depend on it");
  // From x on, where gradients still flow: the first node that lets none out.
  absl::flat_hash_set<const Node*> seen = {x.node()};
  queue = {x.node()};
  while (!queue.empty()) {
    const Node* const node = queue.front();
    queue.pop_front();
    for (const Edge& edge : node->out_edges()) {
      const Node* const next = edge.dst;
      if (edge.is_control() || !Flows(*node, edge.src_output) || !before.contains(next) ||
          !seen.insert(next).second) {
        continue;
      }
      const std::string name = absl::StrCat(next->op(), " '", next->name(), "' on the way ");
      const OpEntry* const entry = next->op_entry();
      if (entry != nullptr &&
          entry->differentiability == OpEntry::Differentiability::kNotDifferentiable) {
        return absl::StrCat(name, "passes no gradient on");
      }
      bool flows = next == y.node();
      for (int i = 0; i < next->num_outputs(); ++i) flows |= Flows(*next, i);
      if (!flows) return absl::StrCat(name, "gives ", DTypeName(next->output_type(0)));
      queue.push_back(next);
    }
  }
  return "no node on the way passes its gradient on";
}

Status GradientOfSwitch(GradientContext* context) {
  if (!context->has_grad(0) && !context->has_grad(1)) return absl::OkStatus();
  const Scope& scope = context->scope();
  // Slices of both branches (rows of none for a branch without gradient), or dense tensors.
  std::optional<IndexedSlices> branch[2];
  for (int i = 0; i < 2; ++i) {
    if (const auto* slices = std::get_if<IndexedSlices>(&context->grad(i))) {
      branch[i] = WithLifeOfValues(scope, *slices);
    }
  }
  for (int i = 0; i < 2; ++i) {
    if (!branch[i] && !context->has_grad(i) && branch[1 - i]) {
      branch[i] = EmptySlices(scope, context->output(i), *branch[1 - i]);
    }
  }
  if (branch[0] && branch[1] && branch[0]->indices.dtype() == branch[1]->indices.dtype()) {
    IndexedSlices merged;
    merged.values = MergeTwo(scope, "cond_grad", branch[0]->values, branch[1]->values);
    merged.indices = MergeTwo(scope, "cond_grad_indices", branch[0]->indices, branch[1]->indices);
    const Output shapes[2] = {branch[0]->dense_shape, branch[1]->dense_shape};
    if (shapes[0].valid() && shapes[1].valid() && shapes[0].dtype() == shapes[1].dtype()) {
      merged.dense_shape = MergeTwo(scope, "cond_grad_shape", shapes[0], shapes[1]);
    }
    context->set_input_grad(0, merged);
    return absl::OkStatus();
  }
  const Output on_false = context->dense_grad(0);
  const Output on_true = context->dense_grad(1);
  context->set_input_grad(0, MergeTwo(scope, "cond_grad", on_false, on_true));
  return absl::OkStatus();
}

Status GradientOfMerge(GradientContext* context) {
  if (!context->has_grad(0)) return absl::OkStatus();
  const Scope& scope = context->scope();
  // Alive at output 1 when input i was the live one, else at output 0.
  const auto switch_on = [&](int i) {
    const Output index = Const(scope, "index", Tensor::Scalar<int32_t>(i));
    const Output chosen =
        NodeBuilder(scope, "Equal").Input(context->output(1)).Input(index).Finish().output(0);
    return [&scope, chosen](Output value) {
      return NodeBuilder(scope.WithName("cond_grad"), "Switch").Input(value).Input(chosen).Finish();
    };
  };
  const auto set = [&](int i, const std::vector<BuiltNode>& parts, int side) {
    if (parts.size() == 1) {
      context->set_input_grad(i, parts[0].output(side));
    } else {
      context->set_input_grad(
          i, IndexedSlices{parts[0].output(side), parts[1].output(side), parts[2].output(side)});
    }
  };
  std::vector<Output> components;
  if (const auto* slices = std::get_if<IndexedSlices>(&context->grad(0))) {
    components = {slices->values, slices->indices, slices->dense_shape};
  } else {
    components = {context->dense_grad()};
  }
  // One Switch serves both inputs of a conditional's Merge.
  const bool two = context->num_inputs() == 2;
  for (int i = two ? 1 : 0; i < context->num_inputs(); ++i) {
    const auto switched = switch_on(i);
    std::vector<BuiltNode> parts;
    for (const Output& component : components) {
      parts.push_back(component.valid() ? switched(component) : BuiltNode());
    }
    set(i, parts, 1);
    if (two) set(0, parts, 0);
  }
  return absl::OkStatus();
}

}  // namespace millrace
