// SPDX-License-Identifier: Apache-2.0
#include "saver/model.h"

#include <algorithm>
#include <set>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "core/io_pool.h"
#include "graph/graph.h"
#include "graph/graph_def.h"
#include "proto/meta_graph.pb.h"
#include "proto/saved_model.pb.h"
#include "saver/large_constants.h"
#include "saver/meta_graph.h"
#include "saver/save_restore.h"
#include "saver/saved_model_reader.h"
#include "saver/saver_nodes.h"

namespace millrace {
namespace {

// A pointer that owns nothing.
std::shared_ptr<FileSystem> Borrowed(FileSystem* file_system) {
  return std::shared_ptr<FileSystem>(std::shared_ptr<void>(), file_system);
}

std::string ValueText(const std::string& name, const std::string& slice) {
  return slice.empty() ? absl::StrCat("'", name, "'") : absl::StrCat("'", name, "' [", slice, "]");
}

// Does `restoring.op` read the Saver's file even when all its tensors are fed?
bool OpReadsFiles(const Model::Restoring& restoring, const tensorflow::GraphDef& graph,
                  const tensorflow::SaverDef& saver) {
  const StatusOr<TensorName> filename = ParseTensorName(saver.filename_tensor_name());
  const StatusOr<std::vector<int>> needed = NeededNodes(graph, {restoring.op}, restoring.tensors);
  if (!filename.ok() || !needed.ok()) return true;  // the step says what is wrong
  return std::any_of(needed->begin(), needed->end(),
                     [&](int i) { return graph.node(i).name() == filename->node; });
}

// What the restore op of a graph reads: `restoring` gets the op and the tensors of its RestoreV2
// nodes, `values` what `value_of` has for each of these tensors, in the same order.
Status FindRestored(
    const tensorflow::GraphDef& graph, const tensorflow::SaverDef& saver,
    absl::FunctionRef<StatusOr<ModelValue>(const RestoreNode& node, size_t i)> value_of,
    Model::Restoring* restoring, std::vector<ModelValue>* values) {
  restoring->op = saver.restore_op_name();
  for (const RestoreNode& node : RestoreNodesOf(graph, saver)) {
    for (size_t i = 0; i < node.request.names.size(); ++i) {
      MR_ASSIGN_OR_RETURN(ModelValue value, value_of(node, i));
      restoring->tensors.push_back(absl::StrCat(node.name, ":", i));
      values->push_back(std::move(value));
    }
  }
  restoring->op_reads_files = OpReadsFiles(*restoring, graph, saver);
  return absl::OkStatus();
}

// The rules of assets that are no files of a directory.
Status CheckAssets(absl::Span<const ModelAsset> assets, const tensorflow::GraphDef& graph) {
  std::set<absl::string_view> nodes;
  std::map<absl::string_view, const ModelAsset*> named;
  for (const auto& node : graph.node()) nodes.insert(node.name());
  for (const ModelAsset& asset : assets) {
    if (asset.file_name.empty() || Basename(asset.file_name) != asset.file_name) {
      return InvalidArgument("an asset must be a file in '", kAssetsDirectory, "', got '",
                             asset.file_name, "'");
    }
    const ModelAsset& first = *named.emplace(asset.file_name, &asset).first->second;
    if (first.files != asset.files || first.path != asset.path) {
      return InvalidArgument("assets with one name must be one file, got '", first.path, "' and '",
                             asset.path, "' for '", asset.file_name, "'");
    }
    const StatusOr<TensorName> parsed = ParseTensorName(asset.tensor);
    if (!parsed.ok() || nodes.count(parsed->node) == 0) {
      return absl::NotFoundError(
          absl::StrCat("asset tensor '", asset.tensor, "' must be in the graph, got no such node"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

StatusOr<std::vector<Tensor>> ReadValues(absl::Span<const ModelValue> values) {
  std::vector<Tensor> tensors(values.size());
  std::map<const CheckpointSource*, std::vector<size_t>> stored;
  for (size_t i = 0; i < values.size(); ++i) {
    if (const Tensor* const tensor = std::get_if<Tensor>(&values[i].source)) {
      tensors[i] = *tensor;
    } else {
      stored[std::get<0>(values[i].source).get()].push_back(i);
    }
  }
  for (const auto& [source, places] : stored) {
    RestoreRequest request;
    for (const size_t i : places) {
      request.names.push_back(values[i].name);
      request.specs.push_back(values[i].slice);
      request.dtypes.push_back(values[i].dtype);
    }
    MR_ASSIGN_OR_RETURN(std::vector<Tensor> read,
                        RestoreTensors(source->files.get(), source->prefix, request.names,
                                       request.specs, request.dtypes, nullptr, IoPool::Default()));
    for (size_t k = 0; k < places.size(); ++k) tensors[places[k]] = std::move(read[k]);
  }
  return tensors;
}

struct Model::Content {
  std::string name;
  std::shared_ptr<const tensorflow::MetaGraphDef> meta;
  std::map<std::string, ModelSignature> signatures;
  std::string init_op;
  std::vector<ModelValue> values;
  std::vector<ModelAsset> assets;
  LargeConstants constants;
  std::optional<Restoring> restoring;
};

Model::Model(std::shared_ptr<const Content> content) : content_(std::move(content)) {}
const std::string& Model::name() const { return content_->name; }
const tensorflow::GraphDef& Model::graph() const { return content_->meta->graph_def(); }
const std::map<std::string, ModelSignature>& Model::signatures() const {
  return content_->signatures;
}
const std::string& Model::init_op() const { return content_->init_op; }
const std::vector<ModelValue>& Model::values() const { return content_->values; }
const std::vector<ModelAsset>& Model::assets() const { return content_->assets; }
const std::map<std::string, Tensor>& Model::constants() const { return content_->constants; }
const std::shared_ptr<const tensorflow::MetaGraphDef>& Model::meta_graph() const {
  return content_->meta;
}
const std::optional<Model::Restoring>& Model::restoring() const { return content_->restoring; }

// All that the message says by itself.
StatusOr<std::shared_ptr<Model::Content>> Model::Begin(std::string name,
                                                       tensorflow::MetaGraphDef meta) {
  MR_RETURN_IF_ERROR(OfSavedModel(name, CheckSignatures(meta)));
  StatusOr<std::string> init_op = InitOpOf(meta);
  MR_RETURN_IF_ERROR(OfSavedModel(name, init_op.status()));
  MR_RETURN_IF_ERROR(OfSavedModel(name, RemoveUnknownDefaultAttrs(&meta)));
  auto content = std::make_shared<Content>();
  content->name = std::move(name);
  content->init_op = *std::move(init_op);
  for (const auto& [key, def] : meta.signature_def()) {
    if (key != kInitOpSignature) content->signatures.emplace(key, def);
  }
  content->meta = std::make_shared<const tensorflow::MetaGraphDef>(std::move(meta));
  return content;
}

StatusOr<Model> Model::Make(std::string name, tensorflow::MetaGraphDef meta,
                            std::vector<ModelValue> values, std::vector<ModelAsset> assets) {
  MR_ASSIGN_OR_RETURN(const std::shared_ptr<Content> content,
                      Begin(std::move(name), std::move(meta)));
  const tensorflow::SaverDef& saver = content->meta->saver_def();
  MR_RETURN_IF_ERROR(OfSavedModel(content->name, CheckAssets(assets, content->meta->graph_def())));
  content->assets = std::move(assets);
  if (saver.restore_op_name().empty()) {
    if (values.empty()) return Model(content);
    return OfSavedModel(
        content->name,
        InvalidArgument("a graph without a restore op must have no values, got ", values.size()));
  }
  std::map<std::pair<absl::string_view, absl::string_view>, const ModelValue*> given;
  for (const ModelValue& value : values) given[{value.name, value.slice}] = &value;
  const auto value_of = [&](const RestoreNode& node, size_t i) -> StatusOr<ModelValue> {
    const std::string& wanted = node.request.names[i];
    const auto found = given.find({wanted, node.request.specs[i]});
    const std::string text = ValueText(wanted, node.request.specs[i]);
    if (found == given.end()) {
      return absl::NotFoundError(absl::StrCat("value ", text, ", which '", node.name,
                                              "' restores, must be given, got ", values.size(),
                                              " others"));
    }
    const ModelValue& value = *found->second;
    const Tensor* const tensor = std::get_if<Tensor>(&value.source);
    const DType dtype = tensor == nullptr ? value.dtype : tensor->dtype();
    if (dtype != node.request.dtypes[i]) {
      return InvalidArgument("value ", text, " must have the dtype that the graph expects, ",
                             node.request.dtypes[i], ", got ", dtype);
    }
    return value;
  };
  Restoring restoring;
  MR_RETURN_IF_ERROR(OfSavedModel(
      content->name,
      FindRestored(content->meta->graph_def(), saver, value_of, &restoring, &content->values)));
  if (restoring.op_reads_files) {
    return OfSavedModel(
        content->name,
        Unimplemented("the restore op '", restoring.op,
                      "' must read values by RestoreV2 nodes of the graph that name them by "
                      "constants, got another reader of '",
                      saver.filename_tensor_name(), "'"));
  }
  if (!content->values.empty()) content->restoring = std::move(restoring);
  return Model(content);
}

StatusOr<Model> Model::InDirectory(std::string directory, tensorflow::MetaGraphDef meta,
                                   std::shared_ptr<FileSystem> files,
                                   std::map<std::string, Tensor> constants) {
  const LoadPlan plan = PlanLoading(files.get(), directory, meta);
  if (!plan.errors.empty()) return plan.errors.front();
  MR_ASSIGN_OR_RETURN(const std::shared_ptr<Content> content,
                      Begin(std::move(directory), std::move(meta)));
  content->constants = std::move(constants);
  const std::string& name = content->name;
  MR_ASSIGN_OR_RETURN(const std::vector<tensorflow::AssetFileDef> assets,
                      AssetFilesOf(*content->meta));
  for (const tensorflow::AssetFileDef& asset : assets) {
    content->assets.push_back(
        {.tensor = asset.tensor_info().name(),
         .file_name = asset.filename(),
         .files = files,
         .path = JoinPath(JoinPath(name, kAssetsDirectory), asset.filename())});
  }
  if (!plan.restore) return Model(content);

  const tensorflow::SaverDef& saver = content->meta->saver_def();
  const auto checkpoint =
      std::make_shared<const CheckpointSource>(CheckpointSource{files, VariablesPrefix(name)});
  const auto value_of = [&](const RestoreNode& node, size_t i) -> StatusOr<ModelValue> {
    return ModelValue{.name = node.request.names[i],
                      .slice = node.request.specs[i],
                      .dtype = node.request.dtypes[i],
                      .source = checkpoint};
  };
  Restoring restoring;
  restoring.filename_tensor = saver.filename_tensor_name();
  restoring.checkpoint = checkpoint;
  MR_RETURN_IF_ERROR(
      FindRestored(content->meta->graph_def(), saver, value_of, &restoring, &content->values));
  content->restoring = std::move(restoring);
  return Model(content);
}

namespace {

// A SavedModel without large constants, and these; without any meta graph where it must be read
// whole.
ModelInPieces InPieces(FileSystem* files, const std::string& directory) {
  const std::optional<std::string> path = SavedModelPath(files, directory);
  if (!path || Basename(*path) != kSavedModelFile) return {};
  return ReadModelInPieces(files, *path).value_or(ModelInPieces());
}

StatusOr<Model> ReadFrom(const std::string& directory, absl::Span<const std::string> tags,
                         std::shared_ptr<FileSystem> files, bool only_to_open) {
  ModelInPieces read;
  if (only_to_open) read = InPieces(files.get(), directory);
  if (read.model.meta_graphs().empty()) {
    MR_ASSIGN_OR_RETURN(read.model, ReadSavedModel(files.get(), directory));
    read.constants.assign(static_cast<size_t>(read.model.meta_graphs_size()), {});
  }
  MR_ASSIGN_OR_RETURN(const tensorflow::MetaGraphDef* const found, FindMetaGraph(read.model, tags));
  tensorflow::MetaGraphDef meta;  // without a copy: a frozen graph is as large as its values
  LargeConstants constants;
  for (int i = 0; i < read.model.meta_graphs_size(); ++i) {
    if (&read.model.meta_graphs(i) != found) continue;
    constants.swap(read.constants[static_cast<size_t>(i)]);
    meta.Swap(read.model.mutable_meta_graphs(i));
    break;
  }
  read = {};
  return Model::InDirectory(directory, std::move(meta), std::move(files), std::move(constants));
}

}  // namespace

StatusOr<Model> ReadModel(const std::string& directory, const ReadModelOptions& options) {
  return ReadFrom(directory, options.tags, Borrowed(options.file_system), options.only_to_open);
}

StatusOr<Model> ReadModelFromBytes(NamedBytes files, const ModelBytesOptions& options) {
  MR_ASSIGN_OR_RETURN(std::shared_ptr<FileSystem> in_memory,
                      MemoryFiles(options.name, std::move(files)));
  return ReadFrom(options.name, options.tags, std::move(in_memory), /*only_to_open=*/false);
}

}  // namespace millrace
