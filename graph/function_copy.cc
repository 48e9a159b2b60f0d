// SPDX-License-Identifier: Apache-2.0
#include "graph/function_copy.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/hash_table.h"
#include "graph/attr.h"
#include "graph/device_name.h"
#include "graph/function_library.h"
#include "proto/attr_value.pb.h"
#include "proto/node_def.pb.h"

namespace millrace {
namespace {

size_t IdOf(const Node& node) { return static_cast<size_t>(node.id()); }

std::vector<bool> NeededNodes(const FunctionBody& body) {
  std::vector<bool> needed(static_cast<size_t>(body.graph->num_node_ids()), false);
  std::vector<const Node*> open;
  const auto need = [&](const Node* node) {
    if (needed[IdOf(*node)]) return;
    needed[IdOf(*node)] = true;
    open.push_back(node);
  };
  for (const Node* const node : body.results) need(node);
  for (const Node* const node : body.effects) need(node);
  while (!open.empty()) {
    const Node* const node = open.back();
    open.pop_back();
    for (const OutputRef& input : node->inputs()) need(input.node);
    for (const Node* const control : node->control_inputs()) need(control);
  }
  return needed;
}

bool CallsFunctions(const Node& node) {
  if (node.body()->function() != nullptr) return true;
  bool calls = false;
  for (const auto& [name, value] : node.def().attr()) {
    ForEachFunction(value, [&](const tensorflow::NameAttrList&) { calls = true; });
  }
  return calls;
}

// What the copy has of its own.
Status Localise(const Node& original, const FunctionCopyOptions& options, Node* copy) {
  if (original.is_arg() || original.is_retval()) return absl::OkStatus();
  if (!options.site.empty() && (original.is_stateful() || CallsFunctions(original))) {
    copy->EditAttr(kIdentityAttr, [&](tensorflow::AttrValue* attr) {
      attr->set_s(absl::StrCat(options.site, "\n", original.name()));
    });
  }
  if (original.is_enter()) {
    MR_ASSIGN_OR_RETURN(const std::string frame, GetAttr<std::string>(original, "frame_name"));
    copy->EditAttr("frame_name", [&](tensorflow::AttrValue* attr) {
      attr->set_s(absl::StrCat(options.prefix, frame));
    });
  }
  return absl::OkStatus();
}

void RenameClasses(const std::string& prefix, const HashMap<std::string, std::string>& renamed,
                   Node* copy) {
  if (!HasAttr(*copy, "_class")) return;
  copy->EditAttr("_class", [&](tensorflow::AttrValue* classes) {
    for (std::string& text : *classes->mutable_list()->mutable_s()) {
      absl::string_view name = text;
      if (!absl::ConsumePrefix(&name, "loc:@")) continue;
      const auto it = renamed.find(name);
      text = absl::StrCat("loc:@", it == renamed.end() ? absl::StrCat(prefix, name) : it->second);
    }
  });
}

}  // namespace

StatusOr<std::vector<Node*>> CopyFunctionNodes(const FunctionBody& body,
                                               const FunctionCopyOptions& options, Graph* to) {
  const std::vector<bool> needed = NeededNodes(body);
  std::vector<Node*> copies(needed.size(), nullptr);
  HashMap<std::string, std::string> renamed;  // those that did not get the plain name
  for (const auto& node : body.graph->nodes()) {
    if (node == nullptr || !needed[IdOf(*node)]) continue;
    const bool is_boundary = node->is_arg() || node->is_retval();
    if (is_boundary && !options.boundary) continue;
    const std::string plain = absl::StrCat(options.prefix, node->name());
    const std::string name = to->UniqueName(plain);
    if (name != plain) renamed.emplace(node->name(), name);
    MR_ASSIGN_OR_RETURN(Node * copy, to->AddNode(name, node->body()));
    copies[IdOf(*node)] = copy;
    MR_RETURN_IF_ERROR(Localise(*node, options, copy));
    if (!is_boundary) {
      StatusOr<std::string> device = MergeDeviceNames(options.device, node->requested_device());
      if (!device.ok()) {
        return Prefixed(absl::StrCat(node->op(), " '", name, "'"), device.status());
      }
      copy->set_requested_device(*device);
    }
    copy->set_built_at(options.built_at);
  }
  for (const auto& node : body.graph->nodes()) {
    Node* const copy = node == nullptr ? nullptr : copies[IdOf(*node)];
    if (copy == nullptr) continue;
    if (!options.prefix.empty() || !renamed.empty()) RenameClasses(options.prefix, renamed, copy);
    for (int i = 0; i < node->num_inputs(); ++i) {
      const OutputRef& input = node->input(i);
      Node* const source = copies[IdOf(*input.node)];
      if (source != nullptr) MR_RETURN_IF_ERROR(to->AddEdge(source, input.index, copy, i));
    }
    for (const Node* const control : node->control_inputs()) {
      Node* const source = copies[IdOf(*control)];
      if (source != nullptr) to->AddControlEdge(source, copy);
    }
  }
  return copies;
}

}  // namespace millrace
