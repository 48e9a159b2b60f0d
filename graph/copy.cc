// SPDX-License-Identifier: Apache-2.0
#include "graph/copy.h"

#include <vector>

namespace millrace {

StatusOr<Node*> CopyNode(const Node& node, Graph* to) {
  MR_ASSIGN_OR_RETURN(Node * copy, to->AddNode(node.name(), node.body()));
  copy->set_requested_device(node.requested_device());
  copy->set_assigned_device(node.assigned_device());
  copy->set_built_at(node.built_at());
  return copy;
}

StatusOr<std::unique_ptr<Graph>> CopyGraph(const Graph& graph) {
  auto result = std::make_unique<Graph>();
  result->TakeVersionsAndLibrary(graph);
  result->ReserveNodes(graph.num_nodes());
  std::vector<Node*> copies(static_cast<size_t>(graph.num_node_ids()));
  for (const auto& node : graph.nodes()) {
    if (node == nullptr) continue;
    MR_ASSIGN_OR_RETURN(copies[static_cast<size_t>(node->id())], CopyNode(*node, result.get()));
  }
  for (const auto& node : graph.nodes()) {
    if (node == nullptr) continue;
    Node* copy = copies[static_cast<size_t>(node->id())];
    for (int i = 0; i < node->num_inputs(); ++i) {
      const OutputRef& input = node->input(i);
      if (input.node == nullptr) continue;
      MR_RETURN_IF_ERROR(
          result->AddEdge(copies[static_cast<size_t>(input.node->id())], input.index, copy, i));
    }
    for (const Node* control : node->control_inputs()) {
      result->AddControlEdge(copies[static_cast<size_t>(control->id())], copy);
    }
  }
  return result;
}

}  // namespace millrace
