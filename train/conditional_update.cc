// SPDX-License-Identifier: Apache-2.0
#include "train/conditional_update.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "graph/graph.h"
#include "ops/array/identity.h"
#include "ops/control/control_flow.h"

namespace millrace {
namespace {

// The nodes that run for `op` and may change a variable, of those made since `first`.
std::vector<Node*> WritersOf(const Graph& graph, const Operation& op, int first) {
  std::vector<bool> seen(static_cast<size_t>(graph.num_node_ids()));
  std::vector<Node*> todo = {op.node()}, writers;
  const auto visit = [&](Node* node) {
    if (node == nullptr || node->id() < first || seen[static_cast<size_t>(node->id())]) return;
    seen[static_cast<size_t>(node->id())] = true;
    todo.push_back(node);
  };
  while (!todo.empty()) {
    Node* const node = todo.back();
    todo.pop_back();
    bool writes = false;
    for (int i = 0; i < node->num_inputs(); ++i) {
      visit(node->input(i).node);
      const DType dtype = node->input_type(i);
      writes = writes || ((dtype == DT_RESOURCE || IsRef(dtype)) &&
                          node->traits().hands_on == HandsOn::kNothing &&
                          node->traits().VariableUseOf(i) == VariableUse::kMayWrite);
    }
    for (Node* control : node->control_inputs()) visit(control);
    if (writes) writers.push_back(node);
  }
  // In the order in which they were made, so that equal programs make equal graphs.
  std::sort(writers.begin(), writers.end(),
            [](const Node* a, const Node* b) { return a->id() < b->id(); });
  return writers;
}

}  // namespace

void RunUpdateOnlyIf(const Scope& scope, const Output& pred, const Operation& update, int first) {
  if (!scope.ok() || !update.valid()) return;
  std::map<std::string, Operation> runs_on;  // by device; dead where it is not to run
  for (Node* const writer : WritersOf(*scope.graph(), update, first)) {
    Operation& runs = runs_on[writer->requested_device()];
    if (!runs.valid()) {
      const Scope beside = scope.ColocatedWith(Operation(writer));
      const SwitchOutputs ways = Switch(beside.WithName("runs_if"), pred, pred);
      runs = Identity(beside.WithName("runs"), ways.output_true).op();
      if (!runs.valid()) return;
    }
    // A dead control input keeps a node from running.
    scope.graph()->AddControlEdge(runs.node(), writer);
  }
}

}  // namespace millrace
