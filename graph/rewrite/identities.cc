// SPDX-License-Identifier: Apache-2.0
#include "graph/rewrite/identities.h"

#include <algorithm>
#include <vector>

#include "graph/graph.h"

namespace millrace {
namespace {

// A NoOp between control edges; true when it is gone.
StatusOr<bool> RemoveNoOp(RewriteContext* context, Node* node) {
  if (context->IsKept(*node)) return false;
  const std::vector<Node*> befores(node->control_inputs().begin(), node->control_inputs().end());
  const std::vector<Edge> edges(node->out_edges().begin(), node->out_edges().end());
  if (befores.size() > 1 && edges.size() > 1) return false;
  const auto is_elsewhere = [node](const Node* other) {
    return other->assigned_device() != node->assigned_device();
  };
  if (std::any_of(befores.begin(), befores.end(), is_elsewhere) ||
      std::any_of(edges.begin(), edges.end(),
                  [&](const Edge& edge) { return is_elsewhere(edge.dst); })) {
    return false;
  }
  context->graph()->RemoveNode(node);
  for (const Edge& edge : edges) {
    for (Node* before : befores) context->graph()->AddControlEdge(before, edge.dst);
  }
  return true;
}

}  // namespace

StatusOr<int> RemoveIdentities(RewriteContext* context) {
  int changed = 0;
  for (const int id : context->Order()) {
    Node* node = context->node(id);
    if (node == nullptr) continue;
    bool gone = false;
    if (IsIdentity(*node)) {
      const std::vector<Node*> controls(node->control_inputs().begin(),
                                        node->control_inputs().end());
      MR_ASSIGN_OR_RETURN(gone, context->Bypass(node, node->input(0), controls));
    } else if (node->op() == "NoOp") {
      MR_ASSIGN_OR_RETURN(gone, RemoveNoOp(context, node));
    }
    changed += gone;
  }
  return changed;
}

}  // namespace millrace
