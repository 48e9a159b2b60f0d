// SPDX-License-Identifier: Apache-2.0
#include "saver/restore_variables.h"

#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/hash_table.h"
#include "core/tensor.h"
#include "graph/graph.h"
#include "proto/saver.pb.h"
#include "runtime/session.h"

namespace millrace {
namespace {

// Does `assign` write what a RestoreV2 node has read? TensorFlow puts an Identity between.
bool AssignsRestored(const Node& assign) {
  if (assign.op() != "AssignVariableOp" && assign.op() != "Assign") return false;
  if (assign.num_inputs() < 2) return false;
  const Node* value = assign.input(1).node;
  if (value != nullptr && value->traits().hands_on != HandsOn::kNothing &&
      value->num_inputs() > 0) {
    value = value->input(0).node;
  }
  return value != nullptr && value->op() == "RestoreV2";
}

}  // namespace

RestoreVariables::RestoreVariables(const Graph& graph, const tensorflow::SaverDef& def,
                                   absl::Span<const Variable> variables)
    : filename_tensor_(def.filename_tensor_name()) {
  HashMap<const Node*, std::string> variable_of;
  for (const Variable& variable : variables) variable_of[variable.handle.node()] = variable.name;
  // Of several Savers each has its nodes under a name of its own.
  const std::string& restore_op = def.restore_op_name();
  const std::string prefix = restore_op.substr(0, restore_op.rfind('/') + 1);
  for (const auto& node : graph.nodes()) {
    if (node == nullptr || !absl::StartsWith(node->name(), prefix)) continue;
    if (!AssignsRestored(*node)) continue;
    const auto found = variable_of.find(node->input(0).node);
    if (found != variable_of.end()) nodes_[found->second] = node->name();
  }
}

Status RestoreVariables::Restore(Session* session, const std::string& checkpoint,
                                 absl::Span<const std::string> names,
                                 absl::string_view where) const {
  std::vector<FetchName> targets;
  for (const std::string& name : names) {
    const auto found = nodes_.find(name);
    if (found == nodes_.end()) {
      return absl::NotFoundError(absl::StrCat(where, ": variable '", name,
                                              "' must be saved by the Saver to be restored from ",
                                              checkpoint, ", got a Saver without it"));
    }
    targets.push_back(found->second);
  }
  const Feed filename(filename_tensor_, Tensor::Scalar<std::string>(checkpoint));
  return session->Run({filename}, {}, targets).status();
}

}  // namespace millrace
