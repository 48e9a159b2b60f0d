// SPDX-License-Identifier: Apache-2.0
#include "graph/rewrite/constant_folding.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "core/dtype.h"
#include "core/hash_table.h"
#include "core/tensor.h"
#include "graph/graph.h"
#include "graph/op_registry.h"
#include "graph/pure.h"

namespace millrace {
namespace {

// More control inputs than these and a node stays: they would be repeated from constant to
// constant.
constexpr size_t kMaxControls = 16;

// A Const, or a node that was computed.
struct Constant {
  std::vector<Tensor> values;  // empty when a Const has not been read yet, or needs not be any more
  std::vector<Node*> controls;  // what a computed node runs after
  int unvisited_readers = 0;    // data edges to nodes that the walk has not reached
  int64_t bytes = 0;            // of values
  bool computed = false;
  bool is_read = false;  // by a node that stays
};

class Folder {
 public:
  explicit Folder(RewriteContext* context)
      : context_(context), index_(static_cast<size_t>(context->graph()->num_node_ids()), -1) {}

  // Computes what can be computed; nothing of the graph changes.
  void Walk() {
    for (const int id : context_->Order()) {
      const Node* node = context_->node(id);
      if (node == nullptr) continue;
      const bool computed = Compute(*node);
      for (const OutputRef& input : node->inputs()) {
        if (Constant* constant = Find(input.node)) Release(constant, /*stays=*/!computed);
      }
      if (IsConst(*node)) Add(*node);
    }
  }

  // Puts constants where computed values are read by nodes that stay.
  StatusOr<int> Replace() {
    int folded = 0;
    // Of computed nodes that others run after. The controls name nodes by their old addresses only.
    HashMap<const Node*, Node*> replaced;
    for (const int id : context_->Order()) {
      Node* const node = context_->node(id);
      Constant* const constant = Find(node);
      if (constant == nullptr || !constant->computed) continue;
      ++folded;
      std::vector<Tensor> values = ReadValues(*node, *constant);
      if (values.empty()) {
        context_->MarkUnneeded(*node);  // only computed nodes read it
        continue;
      }
      for (Node*& control : constant->controls) {
        if (const auto it = replaced.find(control); it != replaced.end()) control = it->second;
      }
      const std::string name = node->name();
      MR_RETURN_IF_ERROR(context_->ReplaceByConstants(node, values, constant->controls));
      replaced[node] = context_->graph()->FindNode(name);
    }
    return folded;
  }

 private:
  Constant* Find(const Node* node) {
    const int i = node == nullptr || static_cast<size_t>(node->id()) >= index_.size()
                      ? -1
                      : index_[static_cast<size_t>(node->id())];
    return i < 0 ? nullptr : &constants_[static_cast<size_t>(i)];
  }

  Constant* Add(const Node& node) {
    index_[static_cast<size_t>(node.id())] = static_cast<int>(constants_.size());
    Constant& constant = constants_.emplace_back();
    for (const Edge& edge : node.out_edges()) constant.unvisited_readers += !edge.is_control();
    return &constant;
  }

  void Release(Constant* constant, bool stays) {
    constant->is_read |= stays;
    if (--constant->unvisited_readers > 0 || (constant->computed && constant->is_read)) return;
    held_bytes_ -= constant->bytes;
    constant->bytes = 0;
    constant->values = {};
  }

  void Hold(Constant* constant, std::vector<Tensor> values) {
    for (const Tensor& value : values) constant->bytes += value.TotalBytes();
    held_bytes_ += constant->bytes;
    constant->values = std::move(values);
  }

  // The value of a Const that is read for the first time; not of one that is too large.
  void ReadConst(const Node& node, Constant* constant) {
    const int64_t element =
        std::max<int64_t>(1, static_cast<int64_t>(DTypeSize(node.output_type(0))));
    const int64_t elements = ConstElements(node);
    if (elements < 0 || elements > context_->max_folded_bytes() / element) return;
    StatusOr<Tensor> value = ConstValue(node);
    if (value.ok() && value->TotalBytes() <= context_->max_folded_bytes()) {
      Hold(constant, {*std::move(value)});
    }
  }

  // What the constant in the place of `node` must run after. False when that is too much.
  bool ControlsOf(const Node& node, std::vector<Node*>* controls) {
    controls->assign(node.control_inputs().begin(), node.control_inputs().end());
    for (const OutputRef& input : node.inputs()) {
      const Constant* constant = Find(input.node);
      if (constant->computed) {
        controls->insert(controls->end(), constant->controls.begin(), constant->controls.end());
      } else if (!context_->AppendOrderAfter(input, controls)) {
        return false;
      }
    }
    RemoveDoubles(controls);
    return controls->size() <= kMaxControls;
  }

  bool Compute(const Node& node) {
    if (node.num_inputs() == 0 || held_bytes_ > kMaxHeldBytes) return false;
    for (const OutputRef& input : node.inputs()) {
      if (Find(input.node) == nullptr) return false;
    }
    if (context_->IsKept(node) || node.out_edges().empty() || !CheckIsPure(node).ok()) return false;
    std::vector<Node*> controls;
    if (!ControlsOf(node, &controls)) return false;
    std::vector<Tensor> inputs;
    for (const OutputRef& input : node.inputs()) {
      Constant* constant = Find(input.node);
      if (constant->values.empty()) ReadConst(*input.node, constant);
      if (constant->values.empty()) return false;
      inputs.push_back(constant->values[static_cast<size_t>(input.index)]);
    }
    StatusOr<std::vector<Tensor>> values = context_->evaluator()->Evaluate(node, inputs);
    // What is wrong, the node says in the step.
    if (!values.ok() || values->size() != static_cast<size_t>(node.num_outputs())) return false;
    for (const Tensor& value : *values) {
      if (!value.has_value() || value.TotalBytes() > context_->max_folded_bytes()) return false;
    }
    Constant* constant = Add(node);
    constant->computed = true;
    // What runs after it needs a node, and that a value.
    constant->is_read = std::any_of(node.out_edges().begin(), node.out_edges().end(),
                                    [](const Edge& edge) { return edge.is_control(); });
    constant->controls = std::move(controls);
    Hold(constant, *std::move(values));
    return true;
  }

  // The values that nodes read which stay; when others run after it, one at least.
  std::vector<Tensor> ReadValues(const Node& node, const Constant& constant) {
    std::vector<Tensor> read;
    for (const Edge& edge : node.out_edges()) {
      const Constant* reader = Find(edge.dst);
      if (!edge.is_control() && reader != nullptr && reader->computed) continue;
      read.resize(static_cast<size_t>(node.num_outputs()));
      const size_t i = edge.is_control() ? 0 : static_cast<size_t>(edge.src_output);
      read[i] = constant.values[i];
    }
    return read;
  }

  RewriteContext* const context_;
  std::vector<int> index_;  // by node id, into constants_; -1: no constant
  std::vector<Constant> constants_;
  int64_t held_bytes_ = 0;
};

}  // namespace

StatusOr<int> FoldConstants(RewriteContext* context) {
  if (context->evaluator() == nullptr || LookUpOp("Const") == nullptr) return 0;
  Folder folder(context);
  folder.Walk();
  return folder.Replace();
}

}  // namespace millrace
