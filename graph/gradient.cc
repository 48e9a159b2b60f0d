// SPDX-License-Identifier: Apache-2.0
#include "graph/gradient.h"

#include <deque>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "core/dtype.h"
#include "core/small_tensors.h"
#include "core/tensor.h"
#include "graph/attr.h"
#include "graph/backprop.h"
#include "graph/gated_gradients.h"
#include "graph/gradient_nodes.h"
#include "graph/graph.h"
#include "graph/node_builder.h"
#include "graph/op_registry.h"
#include "graph/shape_inference.h"

namespace millrace {

using gradient_nodes::Const;
using gradient_nodes::FilledLike;
using gradient_nodes::Identity;
using gradient_nodes::MergeTwo;

namespace {

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
  result.unique_indices = slices.unique_indices;
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
                        ScopeAt(scope_).where);
    return;
  }
  for (size_t i = 0; i < gradients.size(); ++i) set_input_grad(static_cast<int>(i), gradients[i]);
}

Output DenseGradient(ScopeAt at, const Gradient& gradient) {
  if (const Output* dense = std::get_if<Output>(&gradient)) return *dense;
  const IndexedSlices* slices = std::get_if<IndexedSlices>(&gradient);
  if (slices == nullptr) return Output();
  const Scope scope = at.here();
  if (!slices->dense_shape.valid()) {
    if (slices->values.valid()) {
      scope.UpdateStatus(
          InvalidArgument("Gradients: slices '", slices->values.name(),
                          "' must have a dense_shape to become one dense tensor, got none"),
          at.where);
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
    // A list of tensors has a gradient where somebody says which.
    if (!IsTrainable(type) && (type != DT_VARIANT || options.grad_ys.empty())) {
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

StatusOr<std::vector<Gradient>> AddGradients(ScopeAt at, absl::Span<const Output> ys,
                                             absl::Span<const Output> xs,
                                             const GradientOptions& options) {
  return Add(at.here(), ys, xs, options, /*gated=*/false);
}

StatusOr<std::vector<Gradient>> AddGatedGradients(ScopeAt at, absl::Span<const Output> ys,
                                                  absl::Span<const Output> xs,
                                                  const GradientOptions& options) {
  return Add(at.here(), ys, xs, options, /*gated=*/true);
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
      if (edge.is_control() || !GradientFlows(*node, edge.src_output) || !before.contains(next) ||
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
      for (int i = 0; i < next->num_outputs(); ++i) flows |= GradientFlows(*next, i);
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
