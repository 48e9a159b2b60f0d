// SPDX-License-Identifier: Apache-2.0
#include "graph/graph_extension.h"

#include <algorithm>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/deterministic_bytes.h"
#include "core/new_message.h"
#include "graph/attr.h"
#include "graph/check/verify.h"
#include "graph/import_export.h"
#include "graph/op_registry.h"
#include "proto/graph.pb.h"
#include "proto/node_def.pb.h"

namespace millrace {
namespace {

// Equal for two texts of one node, which is changed.
std::string CanonicalText(tensorflow::NodeDef* node) {
  if (const OpEntry* op = LookUpOp(node->op())) AddDefaultAttrs(op->def, node);
  node->clear_experimental_debug_info();
  auto* const inputs = node->mutable_input();
  for (std::string& input : *inputs) {
    if (absl::EndsWith(input, ":0")) input.resize(input.size() - 2);
  }
  // Control inputs come last, in no order.
  std::sort(std::find_if(inputs->begin(), inputs->end(),
                         [](const std::string& input) { return absl::StartsWith(input, "^"); }),
            inputs->end());
  return DeterministicBytes(*node);  // attrs are maps, and hold maps
}

bool HasDefinition(const Graph& graph, const Node& node, const tensorflow::NodeDef& def) {
  const auto here = NewMessage<tensorflow::NodeDef>(), there = NewMessage<tensorflow::NodeDef>();
  graph.WriteNode(node, here.get());
  *there = def;
  return CanonicalText(here.get()) == CanonicalText(there.get());
}

Status Extend(const tensorflow::GraphDef& def, tensorflow::GraphDef* taken, Graph* graph) {
  IncomingNodes nodes;
  nodes.def = &def;
  nodes.taken = taken;
  ImportOptions options;
  for (int i = 0; i < def.node_size(); ++i) {
    const tensorflow::NodeDef& node = def.node(i);
    const Node* const existing = graph->num_nodes() == 0 ? nullptr : graph->FindNode(node.name());
    if (existing == nullptr) {
      nodes.indices.push_back(i);
    } else if (!HasDefinition(*graph, *existing, node)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "GraphDef node '", node.name(),
          "': a name that the session has must keep its definition, got another one (op ",
          node.op(), ", was ", existing->op(), ")"));
    }
  }
  if (nodes.indices.empty() && def.library().function_size() == 0 && graph->num_nodes() > 0) {
    return absl::OkStatus();
  }
  if (graph->num_nodes() > 0) {
    for (const int i : nodes.indices) {
      for (const std::string& input : def.node(i).input()) {
        absl::string_view name;
        int index = 0;
        if (!SplitTensorName(input, &name, &index)) continue;
        // A node of the session; what is neither there nor new is named by the import.
        Node* const source = graph->FindNode(name);
        if (source != nullptr) options.input_map[input] = {source, std::max(index, 0)};
      }
    }
  }
  return ImportNodes(&nodes, options, graph);
}

}  // namespace

Status ExtendGraph(const tensorflow::GraphDef& def, Graph* graph) {
  return Extend(def, nullptr, graph);
}

Status ExtendGraph(tensorflow::GraphDef&& def, Graph* graph) { return Extend(def, &def, graph); }

}  // namespace millrace
