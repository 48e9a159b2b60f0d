// SPDX-License-Identifier: Apache-2.0
#include "graph/graph_extension.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/deterministic_bytes.h"
#include "core/hash_table.h"
#include "core/new_message.h"
#include "graph/attr.h"
#include "graph/function_library.h"
#include "graph/graph_growth.h"
#include "graph/import_export.h"
#include "graph/node_body.h"
#include "graph/op_registry.h"
#include "graph/verify.h"
#include "proto/function.pb.h"
#include "proto/graph.pb.h"
#include "proto/node_def.pb.h"
#include "proto/versions.pb.h"

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

Status AnotherDefinition(const Node& existing, absl::string_view name, absl::string_view op) {
  return absl::InvalidArgumentError(
      absl::StrCat("GraphDef node '", name,
                   "': a name that the session has must keep its definition, got another one (op ",
                   op, ", was ", existing.op(), ")"));
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
      return AnotherDefinition(*existing, node.name(), node.op());
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

// --- A graph in memory ---------------------------------------------------------------------------

bool HasInputs(const Node& here, const Node& there) {
  if (here.num_inputs() != there.num_inputs() ||
      here.control_inputs().size() != there.control_inputs().size()) {
    return false;
  }
  for (int i = 0; i < here.num_inputs(); ++i) {
    const OutputRef &a = here.input(i), &b = there.input(i);
    if (a.node == nullptr || b.node == nullptr || a.index != b.index ||
        a.node->name() != b.node->name()) {
      return false;
    }
  }
  HashSet<absl::string_view> controls;
  for (const Node* control : here.control_inputs()) controls.insert(control->name());
  for (const Node* control : there.control_inputs()) {
    if (!controls.contains(control->name())) return false;
  }
  return true;
}

bool HasDefinition(const Graph& graph, const Node& node, const Node& other) {
  if (node.body() == other.body() && node.requested_device() == other.requested_device() &&
      HasInputs(node, other)) {
    return true;
  }
  const auto def = NewMessage<tensorflow::NodeDef>();
  other.graph()->WriteNode(other, def.get());
  return HasDefinition(graph, node, *def);
}

// Is the body as one that was made of the node's message now would be?
bool MayShareBody(const Node& node, const FunctionLibrary& functions) {
  const NodeBody& body = *node.body();
  if (body.is_edited()) return false;
  if (body.op_entry() == nullptr) {
    return LookUpOp(node.op()) == nullptr && functions.Find(node.op()) == nullptr;
  }
  return !node.is_const() || body.value() != nullptr;
}

StatusOr<Node*> AddCopy(const Node& node, const FunctionLibrary& functions, Graph* graph) {
  if (!IsLegalNodeName(node.name(), /*internal=*/false)) {
    return absl::InvalidArgumentError(
        absl::StrCat(node.op(), " '", node.name(),
                     "': name must be letters, digits and any of '_./-' and begin with a letter, a "
                     "digit or '.', got '",
                     node.name(), "'"));
  }
  Node* copy = nullptr;
  if (MayShareBody(node, functions)) {
    MR_ASSIGN_OR_RETURN(copy, graph->AddNode(node.name(), node.body()));
  } else {
    const auto def = NewMessage<tensorflow::NodeDef>();
    node.graph()->WriteNode(node, def.get());
    MR_ASSIGN_OR_RETURN(copy, graph->AddNode(*def));
  }
  copy->set_requested_device(node.requested_device());
  return copy;
}

// New nodes have inputs from new ones and from those that were there, in which there is no cycle.
// The same holds for the nodes that they ask to be put next to.
Status CheckNoCycle(absl::Span<Node* const> added, int first_id, const Graph& graph) {
  Dependencies inputs, colocated;
  const auto add = [&](const Node* source, Dependencies* dependencies) {
    if (source->id() >= first_id) dependencies->AddInput(source->id() - first_id);
  };
  for (const Node* node : added) {
    for (const OutputRef& input : node->inputs()) {
      // The back edge of a loop; frames are looked at on their own.
      if (node->is_merge() && input.node->is_next_iteration()) continue;
      add(input.node, &inputs);
    }
    for (const Node* control : node->control_inputs()) add(control, &inputs);
    inputs.EndNode();
    if (HasAttr(*node, "_class")) {
      MR_ASSIGN_OR_RETURN(const std::vector<std::string> groups,
                          GetAttr<std::vector<std::string>>(*node, "_class"));
      for (absl::string_view group : groups) {
        if (!absl::ConsumePrefix(&group, "loc:@")) continue;
        const Node* const target = graph.FindNode(group);
        if (target == nullptr) {
          return absl::InvalidArgumentError(absl::StrCat(
              node->op(), " '", node->name(), "': attr '_class' must name a node, got ", "'loc:@",
              group, "', which is not in the graph"));
        }
        // A node may name its own group.
        if (target != node) add(target, &colocated);
      }
    }
    colocated.EndNode();
  }
  const auto name = [&](int i) { return added[static_cast<size_t>(i)]->name(); };
  MR_RETURN_IF_ERROR(inputs.Order(name).status());
  const Status circles = colocated.Order(name).status();
  if (circles.ok()) return circles;
  const absl::string_view text = circles.message();
  return absl::InvalidArgumentError(
      absl::StrCat("Graph: colocation ('_class') must not be circular, got ",
                   text.substr(std::min(text.size(), text.find("the cycle")))));
}

// The library of a graph that has the functions of both.
StatusOr<std::shared_ptr<const FunctionLibrary>> MergedLibrary(
    const std::shared_ptr<const FunctionLibrary>& here,
    const std::shared_ptr<const FunctionLibrary>& there) {
  if (there == here || there->empty()) return here;
  std::shared_ptr<const FunctionLibrary> merged = there;
  if (!here->empty()) {
    const auto more = NewMessage<tensorflow::FunctionDefLibrary>();
    there->WriteTo(more.get());
    MR_ASSIGN_OR_RETURN(merged, here->With(*more));
  }
  MR_RETURN_IF_ERROR(VerifyFunctions(*merged, *here));
  return merged;
}

}  // namespace

Status ExtendGraph(const tensorflow::GraphDef& def, Graph* graph) {
  return Extend(def, nullptr, graph);
}

Status ExtendGraph(tensorflow::GraphDef&& def, Graph* graph) { return Extend(def, &def, graph); }

Status ExtendGraph(const Graph& from, int first_id, Graph* graph) {
  MR_RETURN_IF_ERROR(VerifyVersions(from.versions()));
  const bool was_empty = graph->num_nodes() == 0 && graph->library().empty();
  const int first_added = graph->num_node_ids();
  const auto incoming = from.nodes().subspan(static_cast<size_t>(first_id));
  MR_ASSIGN_OR_RETURN(std::shared_ptr<const FunctionLibrary> library,
                      MergedLibrary(graph->shared_library(), from.shared_library()));
  AddedNodes added(graph, incoming.size());
  graph->bodies()->set_functions(library.get());
  graph->ReserveNodes(static_cast<int>(incoming.size()));
  std::vector<const Node*> originals;
  for (const auto& node : incoming) {
    if (node == nullptr) continue;
    const Node* const existing = graph->FindNode(node->name());
    if (existing == nullptr) {
      MR_ASSIGN_OR_RETURN(Node * copy, AddCopy(*node, *library, graph));
      added.Add(copy);
      originals.push_back(node.get());
    } else if (!HasDefinition(*graph, *existing, *node)) {
      return AnotherDefinition(*existing, node->name(), node->op());
    }
  }
  const auto find = [&](const Node& node, const Node& source) -> StatusOr<Node*> {
    Node* const found = graph->FindNode(source.name());
    if (found != nullptr) return found;
    return absl::InvalidArgumentError(absl::StrCat(node.op(), " '", node.name(),
                                                   "': input must be a node of the graph, got '",
                                                   source.name(), "'"));
  };
  for (size_t n = 0; n < originals.size(); ++n) {
    const Node& node = *originals[n];
    Node* const copy = added.nodes()[n];
    for (int i = 0; i < node.num_inputs(); ++i) {
      const OutputRef& input = node.input(i);
      if (input.node == nullptr) continue;  // named below
      MR_ASSIGN_OR_RETURN(Node * source, find(node, *input.node));
      MR_RETURN_IF_ERROR(graph->AddEdge(source, input.index, copy, i));
    }
    for (const Node* control : node.control_inputs()) {
      MR_ASSIGN_OR_RETURN(Node * source, find(node, *control));
      graph->AddControlEdge(source, copy);
    }
  }
  MR_RETURN_IF_ERROR(CheckInputsConnected(added.nodes()));
  MR_RETURN_IF_ERROR(CheckNoCycle(added.nodes(), first_added, *graph));
  if (graph->has_loops()) MR_RETURN_IF_ERROR(VerifyGraph(*graph));  // its frames
  tensorflow::VersionDef versions =
      was_empty ? from.versions() : MergedVersions(graph->versions(), from.versions());
  // Nothing fails from here on.
  graph->set_library(std::move(library));
  graph->mutable_versions()->Swap(&versions);
  added.Keep();
  return absl::OkStatus();
}

}  // namespace millrace
