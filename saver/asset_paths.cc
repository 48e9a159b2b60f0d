// SPDX-License-Identifier: Apache-2.0
#include "saver/asset_paths.h"

#include <map>
#include <utility>
#include <vector>

#include "core/file_system.h"
#include "core/tensor.h"
#include "graph/attr.h"
#include "graph/graph.h"
#include "proto/meta_graph.pb.h"
#include "saver/load_plan.h"

namespace millrace {
namespace {

// The attr that holds the node's constant text; null where it is no such node.
tensorflow::AttrValue* ConstantText(tensorflow::NodeDef* node) {
  const auto found = node->mutable_attr()->find("value");
  if (found == node->mutable_attr()->end() || !found->second.has_tensor() ||
      found->second.tensor().dtype() != tensorflow::DT_STRING) {
    return nullptr;
  }
  return &found->second;
}

Status SetPaths(const std::string& directory, tensorflow::MetaGraphDef* meta) {
  MR_ASSIGN_OR_RETURN(const std::vector<tensorflow::AssetFileDef> assets, AssetFilesOf(*meta));
  std::map<std::string, std::string> paths;  // of nodes
  for (const tensorflow::AssetFileDef& asset : assets) {
    MR_ASSIGN_OR_RETURN(const TensorName tensor, ParseTensorName(asset.tensor_info().name()));
    paths[tensor.node] = JoinPath(JoinPath(directory, kAssetsDirectory), asset.filename());
  }
  std::vector<std::pair<tensorflow::AttrValue*, const std::string*>> values;
  for (tensorflow::NodeDef& node : *meta->mutable_graph_def()->mutable_node()) {
    const auto path = paths.find(node.name());
    if (path == paths.end()) continue;
    tensorflow::AttrValue* const value = ConstantText(&node);
    if (value == nullptr) {
      return InvalidArgument("asset tensor '", node.name(),
                             "' must be a constant text, which can be given a path, got a node '",
                             node.op(), "'");
    }
    values.emplace_back(value, &path->second);
  }
  for (const auto& [value, path] : values) SetAttr(Tensor::Scalar<std::string>(*path), value);
  return absl::OkStatus();
}

}  // namespace

Status SetAssetPaths(const std::string& directory, tensorflow::MetaGraphDef* meta) {
  return OfSavedModel(directory, SetPaths(directory, meta));
}

}  // namespace millrace
