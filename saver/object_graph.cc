// SPDX-License-Identifier: Apache-2.0
#include "saver/object_graph.h"

#include <cstddef>
#include <deque>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/dtype.h"
#include "core/shape.h"
#include "graph/attr.h"
#include "graph/graph.h"
#include "proto/meta_graph.pb.h"
#include "proto/saved_object_graph.pb.h"

namespace millrace {
namespace {

using tensorflow::SavedObjectGraph;
using tensorflow::SavedVariable;

// Of each object, by the shortest way from the root.
StatusOr<std::vector<std::string>> PathsOf(const SavedObjectGraph& objects) {
  const int n = objects.nodes_size();
  std::vector<std::string> paths(static_cast<size_t>(n));
  std::vector<bool> seen(static_cast<size_t>(n), false);
  std::deque<int> open;
  if (n > 0) {
    seen[0] = true;
    open.push_back(0);
  }
  while (!open.empty()) {
    const int at = open.front();
    open.pop_front();
    for (const auto& child : objects.nodes(at).children()) {
      if (child.node_id() < 0 || child.node_id() >= n) {
        return InvalidArgument("object ", at, ": child '", child.local_name(),
                               "' must be one of the ", n, " objects, got ", child.node_id());
      }
      const size_t to = static_cast<size_t>(child.node_id());
      if (seen[to]) continue;
      seen[to] = true;
      const std::string& before = paths[static_cast<size_t>(at)];
      paths[to] =
          before.empty() ? child.local_name() : absl::StrCat(before, "/", child.local_name());
      open.push_back(child.node_id());
    }
  }
  return paths;
}

// "Variable", "Variable_1", ... for "Variable".
bool IsNameLike(absl::string_view name, absl::string_view wanted) {
  if (!absl::ConsumePrefix(&name, wanted)) return false;
  if (name.empty()) return true;
  if (!absl::ConsumePrefix(&name, "_") || name.empty()) return false;
  for (const char c : name) {
    if (!absl::ascii_isdigit(static_cast<unsigned char>(c))) return false;
  }
  return true;
}

bool IsHandle(const Node& node) {
  return node.traits().makes_variable && node.output_type(0) == DT_RESOURCE;
}

bool IsHandleOf(const Node& node, const SavedVariable& variable, DType dtype,
                const PartialShape& shape) {
  if (!IsHandle(node) || !IsNameLike(node.name(), variable.name())) return false;
  const auto node_dtype = GetAttr<DType>(node, "dtype");
  const auto node_shape = GetAttr<PartialShape>(node, "shape");
  return node_dtype.ok() && node_shape.ok() && *node_dtype == dtype && *node_shape == shape;
}

}  // namespace

StatusOr<std::vector<ObjectVariable>> AdoptObjectVariables(ScopeAt at,
                                                           const tensorflow::MetaGraphDef& meta) {
  const Scope& scope = at.scope;
  MR_RETURN_IF_ERROR(scope.status());
  const SavedObjectGraph& objects = meta.object_graph_def();
  StatusOr<std::vector<std::string>> paths = PathsOf(objects);
  if (!paths.ok()) return Prefixed("Object graph", paths.status());
  std::vector<Node*> handles;
  for (const auto& node : scope.graph()->nodes()) {
    if (node != nullptr && IsHandle(*node)) handles.push_back(node.get());
  }
  std::set<const Node*> taken;
  std::vector<ObjectVariable> variables;
  for (int i = 0; i < objects.nodes_size(); ++i) {
    if (!objects.nodes(i).has_variable()) continue;
    const SavedVariable& saved = objects.nodes(i).variable();
    const std::string where =
        absl::StrCat("Object graph: object ", i, ", variable '", saved.name(), "'");
    StatusOr<DType> dtype = DTypeFromNumber(saved.dtype());
    if (!dtype.ok()) return Prefixed(where, dtype.status());
    StatusOr<PartialShape> shape = PartialShape::FromProto(saved.shape());
    if (!shape.ok()) return Prefixed(where, shape.status());
    Node* handle = nullptr;
    for (Node* const node : handles) {
      if (taken.count(node) > 0 || !IsHandleOf(*node, saved, *dtype, *shape)) continue;
      handle = node;
      break;
    }
    if (handle == nullptr) {
      return InvalidArgument(where, " must have a handle in the graph (a VarHandleOp of ", *dtype,
                             *shape, "), got none");
    }
    taken.insert(handle);
    ObjectVariable& variable = variables.emplace_back();
    variable.path = (*paths)[static_cast<size_t>(i)];
    variable.trainable = saved.trainable();
    variable.variable = AdoptVariable(at, Output(handle, 0), {.trainable = saved.trainable()});
    MR_RETURN_IF_ERROR(scope.status());
  }
  return variables;
}

}  // namespace millrace
