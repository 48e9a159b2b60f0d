// SPDX-License-Identifier: Apache-2.0
#include "saver/saver_nodes.h"

#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/dtype.h"
#include "core/tensor.h"
#include "graph/attr.h"
#include "graph/graph.h"
#include "graph/graph_def.h"
#include "graph/node_body.h"
#include "proto/graph.pb.h"
#include "proto/node_def.pb.h"
#include "proto/saver.pb.h"

namespace millrace {
namespace {

using tensorflow::NodeDef;

// The strings of a constant input of a node; none when it is something else.
std::vector<std::string> ConstantStrings(const std::map<absl::string_view, const NodeDef*>& nodes,
                                         const NodeDef& node, int input) {
  const StatusOr<TensorName> name =
      input < node.input_size() ? ParseTensorName(node.input(input)) : InvalidArgument("none");
  const auto found = name.ok() ? nodes.find(name->node) : nodes.end();
  if (found == nodes.end() || NodeBody::KindOf(found->second->op()) != NodeBody::Kind::kConst) {
    return {};
  }
  const StatusOr<Tensor> value = GetAttr<Tensor>(*found->second, "value");
  if (!value.ok() || value->dtype() != DT_STRING) return {};
  const absl::Span<const std::string> strings = value->flat<std::string>();
  return {strings.begin(), strings.end()};
}

}  // namespace

std::vector<RestoreNode> RestoreNodesOf(const tensorflow::GraphDef& graph,
                                        const tensorflow::SaverDef& saver) {
  std::vector<RestoreNode> found;
  const StatusOr<std::vector<int>> needed =
      NeededNodes(graph, {saver.restore_op_name()}, {saver.filename_tensor_name()});
  const StatusOr<TensorName> filename = ParseTensorName(saver.filename_tensor_name());
  if (!needed.ok() || !filename.ok()) return found;
  std::map<absl::string_view, const NodeDef*> nodes;
  for (const NodeDef& node : graph.node()) nodes.emplace(node.name(), &node);
  for (const int position : *needed) {
    const NodeDef& node = graph.node(position);
    if (node.op() != "RestoreV2") continue;
    const StatusOr<TensorName> from = ParseTensorName(node.input_size() > 0 ? node.input(0) : "");
    if (!from.ok() || from->node != filename->node) continue;
    RestoreNode& one = found.emplace_back();
    one.name = node.name();
    StatusOr<std::vector<DType>> dtypes = GetAttr<std::vector<DType>>(node, "dtypes");
    if (!dtypes.ok()) continue;
    RestoreRequest request{ConstantStrings(nodes, node, 1), ConstantStrings(nodes, node, 2),
                           *std::move(dtypes)};
    const size_t count = request.dtypes.size();
    if (request.names.size() != count || request.specs.size() != count) continue;
    one.request = std::move(request);
    one.is_constant = true;
  }
  return found;
}

StatusOr<std::vector<SavedTensor>> SavedTensorsOf(const tensorflow::GraphDef& graph,
                                                  const tensorflow::SaverDef& saver) {
  constexpr int kFirstTensor = 3;
  MR_ASSIGN_OR_RETURN(const std::vector<int> needed,
                      NeededNodes(graph, {saver.save_tensor_name()}, {}));
  std::map<absl::string_view, const NodeDef*> nodes;
  for (const NodeDef& node : graph.node()) nodes.emplace(node.name(), &node);
  std::vector<SavedTensor> saved;
  for (const int position : needed) {
    const NodeDef& node = graph.node(position);
    if (node.op() != "SaveV2") continue;
    std::vector<std::string> tensors;
    for (int i = kFirstTensor; i < node.input_size(); ++i) {
      if (!absl::StartsWith(node.input(i), "^")) tensors.push_back(node.input(i));
    }
    const std::vector<std::string> names = ConstantStrings(nodes, node, 1);
    const std::vector<std::string> slices = ConstantStrings(nodes, node, 2);
    if (names.size() != tensors.size() || slices.size() != tensors.size()) {
      return InvalidArgument("SaveV2 '", node.name(), "' must name its ", tensors.size(),
                             " tensors by constants, got ", names.size(), " names and ",
                             slices.size(), " slices");
    }
    for (size_t i = 0; i < tensors.size(); ++i) saved.push_back({names[i], slices[i], tensors[i]});
  }
  return saved;
}

}  // namespace millrace
