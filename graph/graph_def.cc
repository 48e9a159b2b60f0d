// SPDX-License-Identifier: Apache-2.0
#include "graph/graph_def.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "core/did_you_mean.h"
#include "core/hash_table.h"

namespace millrace {
namespace {

constexpr absl::string_view kClassAttr = "_class";

// "x" of "x", "x:1" and "^x"; names have no colons of their own.
absl::string_view NodeOf(absl::string_view input) {
  absl::ConsumePrefix(&input, "^");
  return input.substr(0, input.rfind(':'));
}

// "x:0" for "x".
std::string TensorOfInput(absl::string_view input) {
  return absl::StrCat(input, input.find(':') == absl::string_view::npos ? ":0" : "");
}

using Positions = HashMap<std::string, int>;

Positions PositionsOf(const tensorflow::GraphDef& def) {
  Positions positions;
  for (int i = 0; i < def.node_size(); ++i) positions[def.node(i).name()] = i;
  return positions;
}

// Removes "loc:@x" where x is not among the nodes.
void RemoveLostColocation(const Positions& nodes, tensorflow::NodeDef* node) {
  const auto attr = node->mutable_attr()->find(std::string(kClassAttr));
  if (attr == node->mutable_attr()->end()) return;
  tensorflow::AttrValue kept;
  for (const std::string& text : attr->second.list().s()) {
    absl::string_view name = text;
    if (absl::ConsumePrefix(&name, "loc:@") && !nodes.contains(name)) continue;
    kept.mutable_list()->add_s(text);
  }
  if (kept.list().s_size() == attr->second.list().s_size()) return;
  if (kept.list().s().empty()) {
    node->mutable_attr()->erase(attr);
  } else {
    attr->second = kept;
  }
}

}  // namespace

Status ForEachNode(tensorflow::GraphDef* def, absl::FunctionRef<Status(tensorflow::NodeDef*)> fn) {
  for (auto& node : *def->mutable_node()) MR_RETURN_IF_ERROR(fn(&node));
  for (auto& function : *def->mutable_library()->mutable_function()) {
    for (auto& node : *function.mutable_node_def()) MR_RETURN_IF_ERROR(fn(&node));
  }
  return absl::OkStatus();
}

void ClearDevices(tensorflow::GraphDef* def) {
  ForEachNode(def, [](tensorflow::NodeDef* node) {
    node->clear_device();
    return absl::OkStatus();
  }).IgnoreError();
}

StatusOr<std::vector<int>> NeededNodes(const tensorflow::GraphDef& def,
                                       absl::Span<const std::string> fetches,
                                       absl::Span<const std::string> feeds) {
  const Positions positions = PositionsOf(def);
  HashSet<std::string> fed;
  for (const std::string& feed : feeds) fed.insert(TensorOfInput(feed));

  std::vector<bool> needed(static_cast<size_t>(def.node_size()));
  std::vector<int> open;
  const auto need = [&](int position) {
    if (needed[static_cast<size_t>(position)]) return;
    needed[static_cast<size_t>(position)] = true;
    open.push_back(position);
  };
  for (const std::string& fetch : fetches) {
    const auto found = positions.find(NodeOf(fetch));
    if (found == positions.end()) {
      DidYouMean best(NodeOf(fetch));
      for (const auto& node : def.node()) best.Consider(node.name());
      return absl::NotFoundError(
          absl::StrCat("GraphDef: has no node '", NodeOf(fetch), "'", best.Hint()));
    }
    if (!fed.contains(TensorOfInput(fetch))) need(found->second);
  }
  while (!open.empty()) {
    const tensorflow::NodeDef& node = def.node(open.back());
    open.pop_back();
    for (const std::string& input : node.input()) {
      const auto source = positions.find(NodeOf(input));
      if (source == positions.end()) continue;
      if (input[0] != '^' && fed.contains(TensorOfInput(input))) continue;
      need(source->second);
    }
  }
  std::vector<int> result;
  for (int i = 0; i < def.node_size(); ++i) {
    if (needed[static_cast<size_t>(i)]) result.push_back(i);
  }
  return result;
}

StatusOr<tensorflow::GraphDef> PrunedGraphDef(const tensorflow::GraphDef& def,
                                              absl::Span<const std::string> outputs) {
  MR_ASSIGN_OR_RETURN(const std::vector<int> needed, NeededNodes(def, outputs));
  tensorflow::GraphDef pruned;
  *pruned.mutable_versions() = def.versions();
  if (def.has_library()) *pruned.mutable_library() = def.library();
  for (const int position : needed) *pruned.add_node() = def.node(position);
  const Positions kept = PositionsOf(pruned);
  for (auto& node : *pruned.mutable_node()) RemoveLostColocation(kept, &node);
  return pruned;
}

}  // namespace millrace
