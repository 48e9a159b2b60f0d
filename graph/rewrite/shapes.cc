// SPDX-License-Identifier: Apache-2.0
#include "graph/rewrite/shapes.h"

#include <optional>
#include <utility>
#include <vector>

#include "core/dtype.h"
#include "core/hash_table.h"
#include "core/shape.h"
#include "core/tensor.h"
#include "graph/graph.h"
#include "graph/op_registry.h"
#include "graph/partial_value.h"
#include "graph/pure.h"

namespace millrace {
namespace {

// The values of one walk over the graph; every value is computed once, from those of its inputs.
class ShapeValues : public PartialValueContext::Source {
 public:
  explicit ShapeValues(RewriteContext* context) : context_(context) {}

  // Whether the value of `node` can follow from shapes. Its inputs were looked at before.
  bool DependsOnShapes(const Node& node) const {
    const PartialValueRule* rule = PartialValueRule::Find(node.op());
    if (rule == nullptr || !CheckIsPure(node).ok()) return false;
    for (const DType type : node.output_types()) {
      if (!IsIndexType(type)) return false;
    }
    if (rule->of_shapes()) return true;
    for (const OutputRef& input : node.inputs()) {
      if (input.node != nullptr && values_.contains(input.node)) return true;
    }
    return false;
  }

  // Looks at `node` and remembers what is known.
  const std::vector<std::optional<PartialValue>>& Compute(const Node& node) {
    std::vector<std::optional<PartialValue>> values(static_cast<size_t>(node.num_outputs()));
    // A node whose inputs do not fit must fail in the step.
    if (context_->ShapesAreKnownOf(node)) {
      node_ = &node;
      const PartialValueRule& rule = *PartialValueRule::Find(node.op());
      for (int i = 0; i < node.num_outputs(); ++i) {
        PartialValueContext context(node.attrs(), node.num_inputs(), i, node.output_type(i), this);
        values[static_cast<size_t>(i)] = rule(&context);
      }
    }
    return values_[&node] = std::move(values);
  }

  std::optional<PartialValue> Value(int i) override {
    const OutputRef& input = node_->input(i);
    if (input.node == nullptr) return std::nullopt;
    if (auto known = values_.find(input.node); known != values_.end()) {
      const std::optional<PartialValue>& value = known->second[static_cast<size_t>(input.index)];
      if (value) return value;
    }
    if (IsConst(*input.node) && ConstElements(*input.node) <= kMaxConstantElements) {
      const StatusOr<Tensor> value = ConstValue(*input.node);
      if (value.ok()) return PartialValue::FromTensor(*value);
    }
    if (!IsIndexType(WithoutRef(input.node->output_type(input.index)))) return std::nullopt;
    return PartialValue::Unknown(context_->ShapeOf(input));
  }
  PartialShape InputShape(int i) override { return context_->ShapeOf(node_->input(i)); }
  PartialShape OutputShape(int i) override {
    return context_->ShapeOf({const_cast<Node*>(node_), i});
  }

 private:
  RewriteContext* const context_;
  const Node* node_ = nullptr;  // of which Compute is asking
  HashMap<const Node*, std::vector<std::optional<PartialValue>>> values_;
};

// The outputs that are read as tensors; none when one of them is not known.
std::vector<Tensor> KnownOutputs(const Node& node,
                                 const std::vector<std::optional<PartialValue>>& values) {
  std::vector<Tensor> tensors(values.size());
  for (const Edge& edge : node.out_edges()) {
    const size_t i = edge.is_control() ? 0 : static_cast<size_t>(edge.src_output);
    if (tensors[i].has_value()) continue;
    const std::optional<Tensor> tensor =
        values[i] ? values[i]->ToTensor(node.output_type(static_cast<int>(i))) : std::nullopt;
    if (!tensor) return {};
    tensors[i] = *tensor;
  }
  return node.out_edges().empty() ? std::vector<Tensor>() : tensors;
}

bool AllInputsAreConst(const Node& node) {
  for (const OutputRef& input : node.inputs()) {
    if (input.node == nullptr || !IsConst(*input.node)) return false;
  }
  return true;
}

}  // namespace

StatusOr<int> MaterializeShapes(RewriteContext* context) {
  if (LookUpOp("Const") == nullptr) return 0;
  ShapeValues values(context);
  std::vector<std::pair<int, std::vector<Tensor>>> known;  // node id, its outputs
  for (const int id : context->Order()) {
    const Node* node = context->node(id);
    if (node == nullptr || !values.DependsOnShapes(*node)) continue;
    std::vector<Tensor> tensors = KnownOutputs(*node, values.Compute(*node));
    // What hangs on constants alone is constant_folding's.
    if (tensors.empty() || context->IsKept(*node) || AllInputsAreConst(*node)) continue;
    known.emplace_back(id, std::move(tensors));
  }
  int changed = 0;
  for (const auto& [id, tensors] : known) {
    Node* node = context->node(id);
    std::vector<Node*> controls(node->control_inputs().begin(), node->control_inputs().end());
    bool ordered = true;
    for (const OutputRef& input : node->inputs()) {
      ordered = ordered && context->AppendOrderAfter(input, &controls);
    }
    if (!ordered) continue;
    RemoveDoubles(&controls);
    MR_RETURN_IF_ERROR(context->ReplaceByConstants(node, tensors, controls));
    ++changed;
  }
  return changed;
}

}  // namespace millrace
