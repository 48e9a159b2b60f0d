// SPDX-License-Identifier: Apache-2.0
#include "saver/load_plan.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/logging.h"
#include "core/tensor.h"
#include "graph/graph.h"
#include "proto/meta_graph.pb.h"
#include "saver/bundle_paths.h"
#include "saver/model_signature.h"
#include "saver/save_restore.h"
#include "saver/saved_model_reader.h"
#include "saver/saver_nodes.h"

namespace millrace {
namespace {

using tensorflow::NodeDef;

bool HasNode(const tensorflow::GraphDef& graph, absl::string_view name) {
  return std::any_of(graph.node().begin(), graph.node().end(),
                     [&](const NodeDef& node) { return node.name() == name; });
}

bool HasVariables(const tensorflow::GraphDef& graph) {
  return std::any_of(graph.node().begin(), graph.node().end(), [](const auto& node) {
    return node.op() == "VariableV2" || node.op() == "Variable" || node.op() == "VarHandleOp";
  });
}

// The assets as a message has them, whatever they say.
StatusOr<std::vector<tensorflow::AssetFileDef>> NamedAssets(const tensorflow::MetaGraphDef& meta) {
  std::vector<tensorflow::AssetFileDef> assets(meta.asset_file_def().begin(),
                                               meta.asset_file_def().end());
  if (!assets.empty()) return assets;
  const auto found = meta.collection_def().find(kAssetsCollection);
  if (found == meta.collection_def().end()) return assets;
  for (const google::protobuf::Any& any : found->second.any_list().value()) {
    tensorflow::AssetFileDef asset;
    // The name of the type is not looked at: old files have other prefixes.
    if (!asset.ParseFromString(any.value())) {
      return absl::DataLossError(absl::StrCat("collection '", kAssetsCollection,
                                              "' must hold assets, got bytes that are none"));
    }
    assets.push_back(std::move(asset));
  }
  return assets;
}

// The paths of the files that the meta graph's assets name, as feeds of tensors of the graph.
StatusOr<std::vector<Feed>> AssetFeeds(FileSystem* fs, const std::string& directory,
                                       const tensorflow::MetaGraphDef& meta) {
  const auto assets = AssetFilesOf(meta);
  if (!assets.ok()) return OfSavedModel(directory, assets.status());
  std::vector<Feed> feeds;
  for (const tensorflow::AssetFileDef& asset : *assets) {
    const std::string path = JoinPath(JoinPath(directory, kAssetsDirectory), asset.filename());
    // The op that reads the file says that it is missing; maybe none does.
    if (!fs->FileExists(path)) {
      LogWarning("SavedModel '", directory, "': asset file '", path,
                 "' does not exist; its path is fed all the same");
    }
    feeds.emplace_back(asset.tensor_info().name(), Tensor::Scalar<std::string>(path));
  }
  return feeds;
}

// The index of the checkpoint, whether a step reads it or not, and what the nodes that restoring
// runs want of it and of its data files; files that they do not read may be missing. (Whether a
// variable takes the shape of its value, only the step tells.)
Status CheckCheckpoint(FileSystem* fs, const std::string& prefix, const tensorflow::GraphDef& graph,
                       const tensorflow::SaverDef& saver) {
  std::vector<RestoreRequest> requests;
  for (RestoreNode& node : RestoreNodesOf(graph, saver)) {
    if (node.is_constant) requests.push_back(std::move(node.request));
  }
  return CheckRestores(fs, prefix, requests);
}

}  // namespace

std::string VariablesPrefix(const std::string& directory) {
  return JoinPath(JoinPath(directory, kVariablesDirectory), kVariablesFile);
}

Status OfSavedModel(const std::string& name, const Status& status) {
  return Prefixed(absl::StrCat("SavedModel '", name, "'"), status);
}

StatusOr<std::vector<tensorflow::AssetFileDef>> AssetFilesOf(const tensorflow::MetaGraphDef& meta) {
  MR_ASSIGN_OR_RETURN(std::vector<tensorflow::AssetFileDef> assets, NamedAssets(meta));
  for (const tensorflow::AssetFileDef& asset : assets) {
    if (asset.filename().empty() || Basename(asset.filename()) != asset.filename()) {
      return InvalidArgument("an asset must be a file in '", kAssetsDirectory, "', got '",
                             asset.filename(), "'");
    }
    const std::string& tensor = asset.tensor_info().name();
    const StatusOr<TensorName> parsed = ParseTensorName(tensor);
    if (!parsed.ok() || !HasNode(meta.graph_def(), parsed->node)) {
      return absl::NotFoundError(
          absl::StrCat("asset tensor '", tensor, "' must be in the graph, got no such node"));
    }
  }
  return assets;
}

StatusOr<std::string> InitOpOf(const tensorflow::MetaGraphDef& meta) {
  std::string source, name;
  const auto signature = meta.signature_def().find(kInitOpSignature);
  if (signature != meta.signature_def().end()) {
    source = absl::StrCat("signature '", kInitOpSignature, "'");
    const auto output = signature->second.outputs().find(kInitOpSignature);
    if (output == signature->second.outputs().end()) {
      return absl::NotFoundError(absl::StrCat(source, " must name the init op in its output '",
                                              kInitOpSignature, "', got none"));
    }
    name = output->second.name();
  } else {
    for (const char* key : {kMainOpCollection, kLegacyInitOpCollection}) {
      const auto found = meta.collection_def().find(key);
      if (found == meta.collection_def().end()) continue;
      source = absl::StrCat("collection '", key, "'");
      if (found->second.node_list().value_size() != 1) {
        return absl::NotFoundError(absl::StrCat(source, " must name one node, got ",
                                                found->second.node_list().value_size()));
      }
      name = found->second.node_list().value(0);
      break;
    }
  }
  if (source.empty()) return std::string();
  StatusOr<TensorName> parsed = ParseTensorName(name);
  if (!parsed.ok() || !HasNode(meta.graph_def(), parsed->node)) {
    return absl::NotFoundError(absl::StrCat("the init op '", name, "' of ", source,
                                            " must be in the graph, got no such node"));
  }
  return parsed->node;
}

Status CheckSignatures(const tensorflow::MetaGraphDef& meta) {
  std::set<absl::string_view> nodes;
  for (const auto& node : meta.graph_def().node()) nodes.insert(node.name());
  const auto check = [&](const std::string& key, const char* kind, const std::string& name,
                         const tensorflow::TensorInfo& info) -> Status {
    for (const std::string& tensor : TensorsOf(info)) {
      const StatusOr<TensorName> parsed = ParseTensorName(tensor);
      if (!parsed.ok() || nodes.count(parsed->node) == 0) {
        return InvalidArgument("signature '", key, "': ", kind, " '", name,
                               "' must be a tensor of the graph, got '", tensor, "'");
      }
    }
    return absl::OkStatus();
  };
  for (const auto& [key, signature] : meta.signature_def()) {
    if (key == kInitOpSignature) continue;  // reported as init op
    for (const auto& [name, info] : signature.inputs()) {
      MR_RETURN_IF_ERROR(check(key, "input", name, info));
    }
    for (const auto& [name, info] : signature.outputs()) {
      MR_RETURN_IF_ERROR(check(key, "output", name, info));
    }
  }
  return absl::OkStatus();
}

void AddAssetFile(const std::string& tensor, const std::string& file_name,
                  tensorflow::MetaGraphDef* meta) {
  tensorflow::AssetFileDef def;
  def.mutable_tensor_info()->set_name(tensor);
  def.set_filename(file_name);
  *meta->add_asset_file_def() = def;
  (*meta->mutable_collection_def())[kAssetsCollection].mutable_any_list()->add_value()->PackFrom(
      def);
}

StatusOr<std::string> AssetFileName(
    const std::string& base, absl::FunctionRef<StatusOr<bool>(const std::string& name)> may_have) {
  for (int i = 0;; ++i) {
    std::string name = i == 0 ? base : absl::StrCat(base, "_", i);
    MR_ASSIGN_OR_RETURN(const bool is_ours, may_have(name));
    if (is_ours) return name;
  }
}

LoadPlan PlanLoading(FileSystem* fs, const std::string& directory,
                     const tensorflow::MetaGraphDef& meta) {
  LoadPlan plan;
  const auto note = [&](const Status& status) {
    if (!status.ok()) plan.errors.push_back(status);
  };
  note(OfSavedModel(directory, CheckSignatures(meta)));
  const StatusOr<std::string> init_op = InitOpOf(meta);
  note(OfSavedModel(directory, init_op.status()));
  const StatusOr<std::vector<Feed>> assets = AssetFeeds(fs, directory, meta);
  note(assets.status());

  const tensorflow::SaverDef& saver = meta.saver_def();
  if (!saver.restore_op_name().empty()) {
    const std::string variables = VariablesPrefix(directory);
    const std::string index = BundleIndexPath(variables);
    if (fs->FileExists(index)) {
      plan.restore.emplace();
      if (assets.ok()) plan.restore->feeds = *assets;
      plan.restore->feeds.emplace_back(saver.filename_tensor_name(),
                                       Tensor::Scalar<std::string>(variables));
      plan.restore->target = saver.restore_op_name();
      note(OfSavedModel(directory, CheckCheckpoint(fs, variables, meta.graph_def(), saver)));
    } else if (HasVariables(meta.graph_def())) {
      note(absl::NotFoundError(absl::StrCat(
          "SavedModel '", directory, "': its graph has variables; '", index, "' must exist")));
    }
  }
  if (init_op.ok() && !init_op->empty()) {
    plan.init.emplace();
    if (assets.ok()) plan.init->feeds = *assets;
    plan.init->target = *init_op;
  }
  return plan;
}

}  // namespace millrace
