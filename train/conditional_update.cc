// SPDX-License-Identifier: Apache-2.0
#include "train/conditional_update.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "graph/graph.h"
#include "ops/array/identity.h"
#include "ops/control/control_flow.h"

namespace millrace {
namespace {

// The nodes that run for `op`, of those made since `first`, in the order in which they were made,
// so that equal programs make equal graphs.
std::vector<Node*> NewNodesFor(const Graph& graph, const Operation& op, int first) {
  std::vector<bool> seen(static_cast<size_t>(graph.num_node_ids()));
  std::vector<Node*> todo = {op.node()}, nodes;
  const auto visit = [&](Node* node) {
    if (node == nullptr || node->id() < first || seen[static_cast<size_t>(node->id())]) return;
    seen[static_cast<size_t>(node->id())] = true;
    todo.push_back(node);
  };
  while (!todo.empty()) {
    Node* const node = todo.back();
    todo.pop_back();
    nodes.push_back(node);
    for (const OutputRef& input : node->inputs()) visit(input.node);
    for (Node* control : node->control_inputs()) visit(control);
  }
  std::sort(nodes.begin(), nodes.end(),
            [](const Node* a, const Node* b) { return a->id() < b->id(); });
  return nodes;
}

bool MayWrite(const Node& node) {
  for (int i = 0; i < node.num_inputs(); ++i) {
    const DType dtype = node.input_type(i);
    if ((dtype == DT_RESOURCE || IsRef(dtype)) && node.traits().hands_on == HandsOn::kNothing &&
        node.traits().VariableUseOf(i) == VariableUse::kMayWrite) {
      return true;
    }
  }
  return false;
}

}  // namespace

void RunUpdateOnlyIf(const Scope& scope, const Output& pred, const Operation& update, int first,
                     const std::vector<Variable>& variables) {
  if (!scope.ok() || !update.valid()) return;
  const std::vector<Node*> nodes = NewNodesFor(*scope.graph(), update, first);
  std::set<const Node*> everybodys;
  std::set<std::string> devices;  // of what changes variables
  for (const Variable& variable : variables) {
    everybodys.insert(variable.handle.node());
    everybodys.insert(variable.value.node());
  }
  for (const Node* node : nodes) {
    if (MayWrite(*node)) devices.insert(node->requested_device());
  }
  const auto is_of_step = [&](const Node* node) {
    return node != nullptr && node->id() >= first && everybodys.count(node) == 0 &&
           devices.count(node->requested_device()) > 0 &&
           (node->num_inputs() > 0 || !node->control_inputs().empty());
  };
  std::map<std::string, Operation> runs_on;  // by device; dead where it is not to run
  for (Node* const node : nodes) {
    if (!is_of_step(node)) continue;
    // What follows another one of its device is dead with it.
    bool follows = false;
    const auto look = [&](const Node* before) {
      follows =
          follows || (is_of_step(before) && before->requested_device() == node->requested_device());
    };
    for (const OutputRef& input : node->inputs()) look(input.node);
    for (const Node* control : node->control_inputs()) look(control);
    if (follows && !MayWrite(*node)) continue;
    Operation& runs = runs_on[node->requested_device()];
    if (!runs.valid()) {
      const Scope beside = scope.ColocatedWith(Operation(node));
      const SwitchOutputs ways = Switch(beside.WithName("runs_if"), pred, pred);
      runs = Identity(beside.WithName("runs"), ways.output_true).op();
      if (!runs.valid()) return;
    }
    // A dead control input keeps a node from running.
    scope.graph()->AddControlEdge(runs.node(), node);
  }
}

}  // namespace millrace
