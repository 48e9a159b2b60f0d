// SPDX-License-Identifier: Apache-2.0
#include "graph/rewrite/dead_branches.h"

#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/dtype.h"
#include "core/new_message.h"
#include "core/tensor.h"
#include "graph/attr.h"
#include "graph/graph.h"
#include "graph/op_registry.h"
#include "graph/pure.h"
#include "proto/node_def.pb.h"

namespace millrace {
namespace {

// What is dead in every step, found in one walk forward; what must stay nevertheless, in one back.
class Branches {
 public:
  explicit Branches(RewriteContext* context)
      : context_(context),
        dead_(static_cast<size_t>(context->graph()->num_node_ids()), false),
        pinned_(dead_.size(), false),
        live_(dead_.size(), -1) {}

  void FindDead();
  void FindPinned();
  StatusOr<int> Remove();

 private:
  // A node of which no output ever has a value.
  bool IsDead(const Node& node) const { return dead_[static_cast<size_t>(node.id())]; }
  bool IsPinned(const Node& node) const { return pinned_[static_cast<size_t>(node.id())]; }
  // Of a Switch with constant predicate, the output that has values; of a Merge, the input that is
  // left when one is; else -1.
  int Live(const Node& node) const { return live_[static_cast<size_t>(node.id())]; }

  // Whether no value ever comes along this edge.
  bool IsDeadTensor(const OutputRef& tensor) const {
    if (tensor.node == nullptr) return false;
    if (IsDead(*tensor.node)) return true;
    return tensor.node->op() == "Switch" && Live(*tensor.node) >= 0 &&
           Live(*tensor.node) != tensor.index;
  }
  bool HasLiveControl(const Node& node) const {
    for (const Node* control : node.control_inputs()) {
      if (!IsDead(*control)) return true;
    }
    return false;
  }

  RewriteContext* const context_;
  std::vector<bool> dead_, pinned_;
  std::vector<int> live_;
};

std::optional<bool> ConstantPredicate(const Node& node) {
  if (node.op() != "Switch" || node.num_inputs() != 2 || node.input(1).node == nullptr ||
      node.input(1).index != 0 || ConstElements(*node.input(1).node) != 1) {
    return std::nullopt;
  }
  const StatusOr<Tensor> value = ConstValue(*node.input(1).node);
  if (!value.ok() || value->dtype() != DT_BOOL || !value->shape().is_scalar()) return std::nullopt;
  return value->raw_scalar<bool>();
}

void Branches::FindDead() {
  for (const int id : context_->Order()) {
    const Node* node = context_->node(id);
    if (node == nullptr || IsTrigger(*node)) continue;
    const size_t i = static_cast<size_t>(id);
    int num_live = 0, last_live = -1;
    for (int k = 0; k < node->num_inputs(); ++k) {
      if (IsDeadTensor(node->input(k))) continue;
      ++num_live;
      last_live = k;
    }
    if (node->is_merge()) {
      dead_[i] = num_live == 0 && node->num_inputs() > 0;
      if (num_live == 1) live_[i] = last_live;
      continue;
    }
    dead_[i] = num_live < node->num_inputs();
    for (const Node* control : node->control_inputs()) dead_[i] = dead_[i] || IsDead(*control);
    if (dead_[i]) continue;
    const std::optional<bool> predicate = ConstantPredicate(*node);
    if (predicate) live_[i] = *predicate ? 1 : 0;
  }
}

// A dead node that is kept must stay dead, so what makes it dead stays. So does what is dead before
// a Merge that cannot be replaced by one of its inputs, or before a trigger.
void Branches::FindPinned() {
  for (auto it = context_->Order().rbegin(); it != context_->Order().rend(); ++it) {
    const Node* node = context_->node(*it);
    if (node == nullptr) continue;
    const size_t i = static_cast<size_t>(*it);
    bool pinned = context_->IsKept(*node);
    for (const Edge& edge : node->out_edges()) {
      const bool is_dead =
          edge.is_control() ? IsDead(*node) : IsDeadTensor({edge.src, edge.src_output});
      pinned = pinned || (is_dead && (IsPinned(*edge.dst) || IsTrigger(*edge.dst)));
    }
    if (node->op() == "Merge" && !IsDead(*node)) {
      // A Merge does not mind dead control inputs; an Identity in its place would.
      const bool replaceable =
          Live(*node) >= 0 && !HasLiveControl(*node) && !IsRef(node->output_type(0));
      pinned = pinned || !replaceable;
    } else if (node->is_merge()) {
      pinned = pinned || !IsDead(*node);
    }
    pinned_[i] = pinned;
  }
}

StatusOr<int> Branches::Remove() {
  Graph* const graph = context_->graph();
  int changed = 0;
  for (const int id : context_->Order()) {
    Node* node = context_->node(id);
    if (node == nullptr || IsPinned(*node)) continue;
    if (IsDead(*node)) {
      context_->MarkUnneeded(*node);
      ++changed;
      continue;
    }
    const int live = Live(*node);
    if (live < 0) continue;
    const auto identity = NewMessage<tensorflow::NodeDef>();
    identity->set_op("Identity");
    SetAttr(WithoutRef(node->output_type(0)), &(*identity->mutable_attr())["T"]);
    ++changed;
    if (node->op() == "Switch") {
      std::vector<Node*> controls(node->control_inputs().begin(), node->control_inputs().end());
      if (!context_->AppendOrderAfter(node->input(1), &controls)) {
        return absl::InternalError("Rewrite: a constant must have an order");
      }
      RemoveDoubles(&controls);
      MR_RETURN_IF_ERROR(
          context_->Replace(node, live, identity.get(), {node->input(0)}, controls).status());
      continue;
    }
    // Readers of value_index get a constant that is dead when the Merge is.
    std::vector<Edge> index_readers;
    for (const Edge& edge : node->out_edges()) {
      if (edge.src_output == 1) index_readers.push_back(edge);
    }
    MR_ASSIGN_OR_RETURN(Node * by,
                        context_->Replace(node, 0, identity.get(), {node->input(live)}, {}));
    if (index_readers.empty()) continue;
    const auto index = NewMessage<tensorflow::NodeDef>();
    index->set_op("Const");
    index->set_name(graph->UniqueName(absl::StrCat(by->name(), "/value_index")));
    index->set_device(by->requested_device());
    SetAttr(DT_INT32, &(*index->mutable_attr())["dtype"]);
    SetAttr(Tensor::Scalar<int32_t>(live), &(*index->mutable_attr())["value"]);
    MR_ASSIGN_OR_RETURN(Node * constant, graph->AddNode(*index));
    constant->set_assigned_device(by->assigned_device());
    constant->set_built_at(by->built_at());
    graph->AddControlEdge(by, constant);
    for (const Edge& edge : index_readers) {
      MR_RETURN_IF_ERROR(graph->AddEdge(constant, 0, edge.dst, edge.dst_input));
    }
  }
  return changed;
}

}  // namespace

StatusOr<int> RemoveDeadBranches(RewriteContext* context) {
  bool any_switch = false;
  for (const auto& node : context->graph()->nodes()) {
    if (node == nullptr) continue;
    if (node->is_enter()) return 0;
    any_switch = any_switch || node->is_switch();
  }
  if (!any_switch || LookUpOp("Identity") == nullptr || LookUpOp("Const") == nullptr) return 0;
  Branches branches(context);
  branches.FindDead();
  branches.FindPinned();
  return branches.Remove();
}

}  // namespace millrace
