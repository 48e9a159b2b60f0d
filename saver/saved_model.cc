// SPDX-License-Identifier: Apache-2.0
#include "saver/saved_model.h"

#include <google/protobuf/text_format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "core/crc32c.h"
#include "core/deterministic_bytes.h"
#include "core/exceptions.h"
#include "core/fail_point.h"
#include "core/logging.h"
#include "core/paced_thread.h"
#include "core/tensor.h"
#include "graph/attr.h"
#include "graph/graph.h"
#include "graph/graph_def.h"
#include "proto/meta_graph.pb.h"
#include "proto/saved_model.pb.h"
#include "saver/bundle_paths.h"
#include "saver/disk_copies.h"
#include "saver/export_marker.h"
#include "saver/large_constants.h"
#include "saver/meta_graph.h"
#include "saver/save_restore.h"
#include "saver/saved_model_reader.h"
#include "saver/tensor_bundle.h"

namespace millrace {
namespace {

constexpr int64_t kSchemaVersion = 1;
constexpr char kAssetFilepaths[] = "asset_filepaths";

std::string TagsText(const std::vector<std::string>& tags) {
  return absl::StrCat("{ ", absl::StrJoin(tags, ", "), " }");
}

// The names of the files of a checkpoint, without their directory.
StatusOr<std::vector<std::string>> FilesOf(const CheckpointSource& checkpoint) {
  MR_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                      checkpoint.files->GetChildren(Dirname(checkpoint.prefix)));
  const std::string base = Basename(checkpoint.prefix);
  std::vector<std::string> files;
  for (const std::string& name : names) {
    if (name == BundleIndexPath(base) || absl::StartsWith(name, absl::StrCat(base, ".data-"))) {
      files.push_back(name);
    }
  }
  return files;
}

}  // namespace

// --- Signatures ----------------------------------------------------------------------------------

StatusOr<tensorflow::TensorInfo> MakeTensorInfo(const Scope& scope, Output output) {
  MR_RETURN_IF_ERROR(scope.status());
  if (!output.valid()) {
    return absl::InvalidArgumentError("must be a tensor of the graph, got an invalid output");
  }
  tensorflow::TensorInfo info;
  info.set_name(output.name());
  info.set_dtype(static_cast<tensorflow::DataType>(WithoutRef(output.dtype())));
  scope.shape(output).ToProto(info.mutable_tensor_shape());
  return info;
}

StatusOr<ModelSignature> BuildSignatureDef(const Scope& scope, const NamedOutputs& inputs,
                                           const NamedOutputs& outputs,
                                           absl::string_view method_name) {
  tensorflow::SignatureDef signature;
  for (const auto& [name, input] : inputs) {
    StatusOr<tensorflow::TensorInfo> info = MakeTensorInfo(scope, input);
    if (!info.ok()) return Prefixed(absl::StrCat("Signature: input '", name, "'"), info.status());
    (*signature.mutable_inputs())[name] = *std::move(info);
  }
  for (const auto& [name, output] : outputs) {
    StatusOr<tensorflow::TensorInfo> info = MakeTensorInfo(scope, output);
    if (!info.ok()) return Prefixed(absl::StrCat("Signature: output '", name, "'"), info.status());
    (*signature.mutable_outputs())[name] = *std::move(info);
  }
  signature.set_method_name(std::string(method_name));
  return ModelSignature(std::move(signature));
}

StatusOr<ModelSignature> PredictSignatureDef(const Scope& scope, const NamedOutputs& inputs,
                                             const NamedOutputs& outputs) {
  return BuildSignatureDef(scope, inputs, outputs, kPredictMethod);
}

StatusOr<ModelSignature> ClassifySignatureDef(const Scope& scope, Output examples, Output classes,
                                              Output scores) {
  NamedOutputs outputs;
  if (classes.valid()) outputs["classes"] = classes;
  if (scores.valid()) outputs["scores"] = scores;
  if (outputs.empty()) {
    return absl::InvalidArgumentError(
        "Signature: a classification must have classes or scores, got neither");
  }
  return BuildSignatureDef(scope, {{"inputs", examples}}, outputs, kClassifyMethod);
}

StatusOr<ModelSignature> RegressSignatureDef(const Scope& scope, Output examples,
                                             Output predictions) {
  return BuildSignatureDef(scope, {{"inputs", examples}}, {{"outputs", predictions}},
                           kRegressMethod);
}

// --- Writing -------------------------------------------------------------------------------------

SavedModelBuilder::SavedModelBuilder(std::string directory, FileSystem* fs)
    : directory_(std::move(directory)),
      fs_(fs),
      model_(std::make_unique<tensorflow::SavedModel>()) {}

SavedModelBuilder::~SavedModelBuilder() = default;

StatusOr<std::unique_ptr<SavedModelBuilder>> SavedModelBuilder::Open(std::string directory,
                                                                     FileSystem* file_system) {
  if (file_system->FileExists(directory)) {
    MR_ASSIGN_OR_RETURN(const auto children, file_system->GetChildren(directory));
    if (!children.empty()) {
      return FailedPrecondition("SavedModel '", directory,
                                "': the export directory must be new or empty, ", "got ",
                                children.size(), " files in it");
    }
  }
  MR_RETURN_IF_ERROR(file_system->RecursivelyCreateDirectory(directory));
  return std::unique_ptr<SavedModelBuilder>(
      new SavedModelBuilder(std::move(directory), file_system));
}

StatusOr<std::string> SavedModelBuilder::CopyAsset(const ModelAsset& asset) {
  MR_ASSIGN_OR_RETURN(const std::string bytes, ReadFileToString(asset.files.get(), asset.path));
  const std::string fingerprint = absl::StrCat(Crc32c(bytes), " ", bytes.size());
  const std::string folder = JoinPath(directory_, kAssetsDirectory);
  bool is_new = false;
  MR_ASSIGN_OR_RETURN(
      std::string name,
      AssetFileName(asset.file_name, [&](const std::string& candidate) -> StatusOr<bool> {
        const auto [known, inserted] = assets_.emplace(candidate, fingerprint);
        is_new = inserted;
        if (inserted || known->second != fingerprint) return inserted;
        // Equal checksums are not equal files.
        MR_ASSIGN_OR_RETURN(const std::string copy,
                            ReadFileToString(fs_, JoinPath(folder, candidate)));
        return copy == bytes;
      }));
  if (!is_new) return name;
  MR_RETURN_IF_ERROR(fs_->RecursivelyCreateDirectory(folder));
  MR_RETURN_IF_ERROR(WriteFileAtomically(fs_, JoinPath(folder, name), bytes));
  return name;
}

Status SavedModelBuilder::Add(tensorflow::MetaGraphDef meta, absl::Span<const Asset> assets) {
  std::vector<ModelAsset> files;
  for (const Asset& asset : assets) {
    files.push_back({.tensor = asset.tensor,
                     .file_name = Basename(asset.source),
                     .files = std::shared_ptr<FileSystem>(std::shared_ptr<void>(), fs_),
                     .path = asset.source});
  }
  return Add(std::move(meta), files);
}

Status SavedModelBuilder::Add(tensorflow::MetaGraphDef meta, absl::Span<const ModelAsset> assets) {
  if (meta.meta_info_def().tags().empty()) {
    return InvalidArgument("SavedModel '", directory_,
                           "': a meta graph must have at least one tag, got none");
  }
  for (const auto& other : model_->meta_graphs()) {
    if (TagSet(other) == TagSet(meta)) {
      const std::set<std::string> tags = TagSet(meta);
      return InvalidArgument("SavedModel '", directory_,
                             "': each meta graph must have tags of its own, got ",
                             TagsText({tags.begin(), tags.end()}), " twice");
    }
  }
  MR_RETURN_IF_ERROR(OfSavedModel(directory_, CheckSignatures(meta)));
  MR_RETURN_IF_ERROR(OfSavedModel(directory_, InitOpOf(meta).status()));
  for (const ModelAsset& asset : assets) {
    MR_ASSIGN_OR_RETURN(const std::string file_name, CopyAsset(asset));
    AddAssetFile(asset.tensor, file_name, &meta);
  }
  *model_->add_meta_graphs() = std::move(meta);
  return absl::OkStatus();
}

Status SavedModelBuilder::CheckFirst() const {
  if (model_->meta_graphs_size() == 0) return absl::OkStatus();
  return FailedPrecondition("SavedModel '", directory_,
                            "': variables must be added once, with the first ",
                            "meta graph, got a further one; use AddMetaGraph");
}

Status SavedModelBuilder::WriteValues(const Model& model) const {
  if (!model.restoring()) return absl::OkStatus();
  const std::string prefix = VariablesPrefix(directory_);
  const std::string folder = Dirname(prefix);
  MR_RETURN_IF_ERROR(fs_->RecursivelyCreateDirectory(folder));
  if (const CheckpointSource* const source = model.restoring()->checkpoint.get()) {
    MR_ASSIGN_OR_RETURN(const std::vector<std::string> names, FilesOf(*source));
    for (const std::string& name : names) {
      MR_ASSIGN_OR_RETURN(const auto from, source->files->NewRandomAccessFile(
                                               JoinPath(Dirname(source->prefix), name)));
      const std::string rest = name.substr(Basename(source->prefix).size());
      MR_ASSIGN_OR_RETURN(const auto to, fs_->NewExclusiveFile(prefix + rest));
      MR_RETURN_IF_ERROR(CopyBytes(*from, to.get()));
      MR_RETURN_IF_ERROR(to->Sync());
      MR_RETURN_IF_ERROR(to->Close());
    }
    return fs_->SyncDirectory(folder);
  }
  MR_ASSIGN_OR_RETURN(std::vector<Tensor> tensors, ReadValues(model.values()));
  std::vector<std::string> names, slices;
  std::vector<ValueToSave> values;
  std::set<std::pair<std::string, std::string>> known;  // several nodes may restore one value
  for (size_t i = 0; i < tensors.size(); ++i) {
    const ModelValue& value = model.values()[i];
    if (!known.insert({value.name, value.slice}).second) continue;
    names.push_back(value.name);
    slices.push_back(value.slice);
    values.emplace_back(std::move(tensors[i]));
  }
  return SaveTensors(fs_, prefix, names, slices, values);
}

Status SavedModelBuilder::AddModel(const Model& model) {
  MR_RETURN_IF_ERROR(CheckFirst());
  if (!model.constants().empty()) {
    return InvalidArgument("SavedModel '", directory_,
                           "': a model to write must have its constants in its graph, got one ",
                           "that was read only to be opened");
  }
  tensorflow::MetaGraphDef meta = *model.meta_graph();
  meta.clear_asset_file_def();
  meta.mutable_collection_def()->erase(kAssetsCollection);
  MR_RETURN_IF_ERROR(Add(std::move(meta), model.assets()));
  const Status written = WriteValues(model);
  if (!written.ok()) model_->clear_meta_graphs();
  return written;
}

Status SavedModelBuilder::AddMetaGraphAndVariables(Session* session, tensorflow::MetaGraphDef meta,
                                                   absl::Span<const Asset> assets) {
  MR_RETURN_IF_ERROR(CheckFirst());
  const tensorflow::SaverDef saver = meta.saver_def();
  MR_RETURN_IF_ERROR(Add(std::move(meta), assets));
  if (saver.save_tensor_name().empty()) return absl::OkStatus();
  const std::string prefix = VariablesPrefix(directory_);
  Status saved = fs_->RecursivelyCreateDirectory(Dirname(prefix));
  if (saved.ok()) {
    saved = session
                ->Run({{saver.filename_tensor_name(), Tensor::Scalar<std::string>(prefix)}},
                      {saver.save_tensor_name()})
                .status();
  }
  if (!saved.ok()) model_->clear_meta_graphs();
  return saved;
}

Status SavedModelBuilder::AddMetaGraph(tensorflow::MetaGraphDef meta,
                                       absl::Span<const Asset> assets) {
  if (model_->meta_graphs_size() == 0) {
    return FailedPrecondition("SavedModel '", directory_,
                              "': the first meta graph must come with the ",
                              "variables; use AddMetaGraphAndVariables");
  }
  return Add(std::move(meta), assets);
}

Status SavedModelBuilder::Save(bool as_text) {
  if (model_->meta_graphs_size() == 0) {
    return FailedPrecondition("SavedModel '", directory_,
                              "': a model must have at least one meta graph, got none");
  }
  model_->set_saved_model_schema_version(kSchemaVersion);
  std::string bytes;
  if (as_text) {
    google::protobuf::TextFormat::PrintToString(*model_, &bytes);
  } else {
    bytes = DeterministicBytes(*model_);
  }
  // The names of the folders, before the file that makes them a model.
  MR_RETURN_IF_ERROR(fs_->SyncDirectory(directory_));
  MR_RETURN_IF_ERROR(FailPoint("saved_model/before_model"));
  MR_RETURN_IF_ERROR(WriteFileAtomically(
      fs_, JoinPath(directory_, as_text ? kSavedModelTextFile : kSavedModelFile), bytes));
  MR_RETURN_IF_ERROR(WriteExportMarker(fs_, directory_));
  return fs_->SyncDirectory(Dirname(directory_));
}

StatusOr<std::vector<Asset>> AssetsOf(const Scope& scope) {
  std::vector<Asset> assets;
  const auto found = scope.collections()->find(kAssetFilepaths);
  if (found == scope.collections()->end()) return assets;
  for (const std::string& name : found->second.node_list().value()) {
    const StatusOr<TensorName> parsed = ParseTensorName(name);
    Node* const node = parsed.ok() ? scope.graph()->FindNode(parsed->node) : nullptr;
    const bool is_there = node != nullptr && parsed->index < node->num_outputs();
    const Tensor* const path =
        is_there ? scope.constant_value(Output(node, parsed->index)) : nullptr;
    if (path == nullptr || path->dtype() != DT_STRING || path->num_elements() != 1) {
      return InvalidArgument("SavedModel: collection '", kAssetFilepaths,
                             "' must name constant texts, got '", name, "'");
    }
    assets.push_back(
        {.tensor = Output(node, parsed->index).name(), .source = path->scalar<std::string>()});
  }
  return assets;
}

StatusOr<tensorflow::MetaGraphDef> MakeSavedMetaGraph(const Scope& scope, const Saver* saver,
                                                      const SavedModelOptions& options) {
  MetaGraphOptions meta_options;
  meta_options.tags = options.tags;
  if (saver != nullptr) meta_options.saver_def = saver->def();
  meta_options.clear_devices = options.clear_devices;
  meta_options.strip_default_attrs = options.strip_default_attrs;
  MR_ASSIGN_OR_RETURN(tensorflow::MetaGraphDef meta, ExportMetaGraph(scope, meta_options));
  for (const auto& [key, signature] : options.signatures) {
    (*meta.mutable_signature_def())[key] = signature.def();
  }
  if (options.main_op.valid()) {
    auto* nodes = (*meta.mutable_collection_def())[kMainOpCollection].mutable_node_list();
    nodes->clear_value();
    nodes->add_value(options.main_op.name());
  }
  return meta;
}

Status SavedModelBuilder::AddMetaGraphAndVariables(Session* session, const Scope& scope,
                                                   const Saver* saver,
                                                   const SavedModelOptions& options) {
  MR_ASSIGN_OR_RETURN(tensorflow::MetaGraphDef meta, MakeSavedMetaGraph(scope, saver, options));
  return AddMetaGraphAndVariables(session, std::move(meta), options.assets);
}

Status SavedModelBuilder::AddMetaGraph(const Scope& scope, const Saver* saver,
                                       const SavedModelOptions& options) {
  MR_ASSIGN_OR_RETURN(tensorflow::MetaGraphDef meta, MakeSavedMetaGraph(scope, saver, options));
  return AddMetaGraph(std::move(meta), options.assets);
}

// --- Reading -------------------------------------------------------------------------------------

StatusOr<ModelSignature> SavedModelBundle::Signature(const std::string& key) const {
  if (meta_graph_def == nullptr) return FailedPrecondition("SavedModel: must be loaded, got none");
  const auto found = meta_graph_def->signature_def().find(key);
  if (found != meta_graph_def->signature_def().end()) return ModelSignature(found->second);
  std::set<std::string> keys;
  for (const auto& [name, signature] : meta_graph_def->signature_def()) keys.insert(name);
  return absl::NotFoundError(absl::StrCat("SavedModel: signature '", key, "' must be one of ",
                                          TagsText({keys.begin(), keys.end()})));
}

StatusOr<std::unique_ptr<Session>> OpenMetaGraph(const SessionOptions& options,
                                                 const std::string& directory,
                                                 tensorflow::MetaGraphDef* meta) {
  MR_RETURN_IF_ERROR(OfSavedModel(directory, RemoveUnknownDefaultAttrs(meta)));
  MR_ASSIGN_OR_RETURN(std::unique_ptr<Session> session, NewSession(options));
  MR_RETURN_IF_ERROR(OfSavedModel(directory, session->Extend(meta->graph_def())));
  return session;
}

namespace {

// Unimplemented unless ops may read copies on this machine's disk.
Status CheckCopies(const SessionOptions& options, absl::string_view what) {
  if (options.target.empty()) return absl::OkStatus();
  return Unimplemented(what, " must be on disk, where the target '", options.target,
                       "' can read it, got one in memory; write the model to a directory");
}

// The paths of the model's assets. Where they are in memory, `copies` gets what keeps the copies.
StatusOr<std::vector<Feed>> AssetFeeds(const SessionOptions& options, const Model& model,
                                       std::shared_ptr<const void>* copies) {
  std::vector<Feed> feeds;
  std::shared_ptr<DiskCopies> in_memory;
  std::set<absl::string_view> copied;
  for (const ModelAsset& asset : model.assets()) {
    std::string path = asset.path;
    if (asset.files.get() != FileSystem::Default()) {
      MR_RETURN_IF_ERROR(CheckCopies(options, absl::StrCat("asset '", asset.file_name, "'")));
      if (in_memory == nullptr) {
        MR_ASSIGN_OR_RETURN(in_memory, DiskCopies::Make());
      }
      path = JoinPath(in_memory->directory(), asset.file_name);
      // A file that is not there has no copy: the op that reads it says so, as in a directory.
      if (asset.files->FileExists(asset.path) && copied.insert(asset.file_name).second) {
        MR_RETURN_IF_ERROR(in_memory->Add(asset.files.get(), asset.path, asset.file_name));
      }
    }
    feeds.emplace_back(asset.tensor, Tensor::Scalar<std::string>(std::move(path)));
  }
  *copies = in_memory;
  return feeds;
}

// Copies of the files of a checkpoint; null for one on disk.
StatusOr<std::unique_ptr<DiskCopies>> CopiesOf(const CheckpointSource& checkpoint) {
  if (checkpoint.files.get() == FileSystem::Default()) return nullptr;
  MR_ASSIGN_OR_RETURN(std::unique_ptr<DiskCopies> copies, DiskCopies::Make());
  MR_ASSIGN_OR_RETURN(const std::vector<std::string> names, FilesOf(checkpoint));
  for (const std::string& name : names) {
    MR_RETURN_IF_ERROR(
        copies->Add(checkpoint.files.get(), JoinPath(Dirname(checkpoint.prefix), name), name));
  }
  return copies;
}

// Gives the graph of `session` the model's values; `feeds` are those of its assets.
Status Restore(const SessionOptions& options, Session* session, const Model& model,
               std::vector<Feed> feeds) {
  const Model::Restoring& restoring = *model.restoring();
  const CheckpointSource* const checkpoint = restoring.checkpoint.get();
  std::unique_ptr<DiskCopies> copies;
  if (checkpoint != nullptr &&
      (restoring.op_reads_files || checkpoint->files.get() == FileSystem::Default())) {
    if (checkpoint->files.get() != FileSystem::Default()) {
      MR_RETURN_IF_ERROR(CheckCopies(
          options, absl::StrCat("checkpoint '", checkpoint->prefix, "', which a function reads,")));
    }
    MR_ASSIGN_OR_RETURN(copies, CopiesOf(*checkpoint));
    const std::string prefix = copies == nullptr
                                   ? checkpoint->prefix
                                   : JoinPath(copies->directory(), Basename(checkpoint->prefix));
    feeds.emplace_back(restoring.filename_tensor, Tensor::Scalar<std::string>(prefix));
  } else {
    MR_ASSIGN_OR_RETURN(std::vector<Tensor> values, ReadValues(model.values()));
    for (size_t i = 0; i < values.size(); ++i) {
      feeds.emplace_back(restoring.tensors[i], std::move(values[i]));
    }
  }
  return session->Run(feeds, {}, {restoring.op}).status();
}

}  // namespace

namespace {

Status Extend(const Model& model, Session* session) {
  if (model.constants().empty()) return session->Extend(model.graph());
  const Scope root;
  MR_RETURN_IF_ERROR(NoExceptions("Extend", [&] {
    return ImportWithConstants(model.graph(), model.constants(), root.graph());
  }));
  MR_RETURN_IF_ERROR(session->Extend(root));
  // So that names of any Scope find its nodes, as in a session that got a message.
  return session->Extend(tensorflow::GraphDef());
}

}  // namespace

StatusOr<SavedModelBundle> OpenModel(const SessionOptions& options, const Model& model) {
  const auto of_model = [&](const Status& status) { return OfSavedModel(model.name(), status); };
  SavedModelBundle bundle;
  StatusOr<std::vector<Feed>> assets = AssetFeeds(options, model, &bundle.asset_copies);
  MR_RETURN_IF_ERROR(of_model(assets.status()));
  MR_ASSIGN_OR_RETURN(bundle.session, NewSession(options));
  MR_RETURN_IF_ERROR(of_model(AtLowPriority([&] { return Extend(model, bundle.session.get()); })));
  if (model.restoring()) {
    MR_RETURN_IF_ERROR(of_model(Restore(options, bundle.session.get(), model, *assets)));
  } else {
    LogInfo("SavedModel '", model.name(), "' has no variables");
  }
  if (!model.init_op().empty()) {
    MR_RETURN_IF_ERROR(of_model(bundle.session->Run(*assets, {}, {model.init_op()}).status()));
  }
  bundle.meta_graph_def = model.meta_graph();
  return bundle;
}

StatusOr<SavedModelBundle> LoadMetaGraph(const SessionOptions& options,
                                         const std::string& directory,
                                         tensorflow::MetaGraphDef meta_graph,
                                         FileSystem* file_system) {
  MR_ASSIGN_OR_RETURN(
      const Model model,
      Model::InDirectory(directory, std::move(meta_graph),
                         std::shared_ptr<FileSystem>(std::shared_ptr<void>(), file_system)));
  return OpenModel(options, model);
}

StatusOr<SavedModelBundle> LoadSavedModel(const SessionOptions& options,
                                          const std::string& directory,
                                          absl::Span<const std::string> tags,
                                          FileSystem* file_system) {
  MR_ASSIGN_OR_RETURN(const Model model, ReadModel(directory, {.tags = {tags.begin(), tags.end()},
                                                               .file_system = file_system}));
  return OpenModel(options, model);
}

StatusOr<SavedModelBundle> LoadSavedModel(const SessionOptions& options,
                                          const std::string& directory,
                                          std::initializer_list<std::string> tags) {
  return LoadSavedModel(options, directory, absl::MakeConstSpan(tags.begin(), tags.size()));
}

}  // namespace millrace
