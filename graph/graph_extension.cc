// SPDX-License-Identifier: Apache-2.0
#include "graph/graph_extension.h"

#include <algorithm>
#include <string>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/deterministic_bytes.h"
#include "graph/attr.h"
#include "graph/import_export.h"

namespace millrace {
namespace {

// Equal for two texts of one node.
std::string CanonicalNode(tensorflow::NodeDef node) {
  if (const OpEntry* op = LookUpOp(node.op())) AddDefaultAttrs(op->def, &node);
  node.clear_experimental_debug_info();
  auto* const inputs = node.mutable_input();
  for (std::string& input : *inputs) {
    if (absl::EndsWith(input, ":0")) input.resize(input.size() - 2);
  }
  // Control inputs come last, in no order.
  std::sort(std::find_if(inputs->begin(), inputs->end(),
                         [](const std::string& input) { return absl::StartsWith(input, "^"); }),
            inputs->end());
  return DeterministicBytes(node);  // attrs are maps, and hold maps
}

}  // namespace

Status ExtendGraph(const tensorflow::GraphDef& def, Graph* graph) {
  if (graph->num_nodes() == 0) return ImportGraphDef(def, ImportOptions(), graph);
  tensorflow::GraphDef fresh;
  *fresh.mutable_versions() = def.versions();
  *fresh.mutable_library() = def.library();
  absl::flat_hash_set<std::string> fresh_names;
  for (const tensorflow::NodeDef& node : def.node()) {
    const Node* const existing = graph->FindNode(node.name());
    if (existing == nullptr) {
      *fresh.add_node() = node;
      fresh_names.insert(node.name());
    } else if (CanonicalNode(graph->NodeToDef(*existing)) != CanonicalNode(node)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "GraphDef node '", node.name(),
          "': a name that the session has must keep its definition, got another one (op ",
          node.op(), ", was ", existing->op(), ")"));
    }
  }
  if (fresh.node_size() == 0 && fresh.library().function_size() == 0) return absl::OkStatus();
  ImportOptions options;
  for (const tensorflow::NodeDef& node : fresh.node()) {
    for (const std::string& input : node.input()) {
      const StatusOr<TensorName> name = ParseTensorName(input);
      if (!name.ok() || fresh_names.contains(name->node)) continue;
      Node* const source = graph->FindNode(name->node);
      if (source == nullptr) continue;  // the import names what is missing
      options.input_map[input] = {source, std::max(name->index, 0)};
    }
  }
  return ImportGraphDef(fresh, options, graph);
}

}  // namespace millrace
