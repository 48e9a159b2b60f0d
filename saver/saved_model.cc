// SPDX-License-Identifier: Apache-2.0
#include "saver/saved_model.h"

#include <google/protobuf/text_format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_join.h"
#include "core/crc32c.h"
#include "core/deterministic_bytes.h"
#include "core/fail_point.h"
#include "core/logging.h"
#include "core/tensor.h"
#include "graph/attr.h"
#include "graph/graph.h"
#include "graph/graph_def.h"
#include "proto/meta_graph.pb.h"
#include "proto/saved_model.pb.h"
#include "saver/meta_graph.h"
#include "saver/save_restore.h"
#include "saver/saved_model_reader.h"
#include "saver/tensor_bundle.h"

namespace millrace {
namespace {

using tensorflow::NodeDef;

constexpr int64_t kSchemaVersion = 1;
// Collections that loaders of older and newer files know.
constexpr char kAssetsCollection[] = "saved_model_assets";
constexpr char kAssetFilepaths[] = "asset_filepaths";
constexpr char kMainOpCollection[] = "saved_model_main_op";
constexpr char kLegacyInitOpCollection[] = "legacy_init_op";

std::string VariablesPrefix(const std::string& directory) {
  return JoinPath(JoinPath(directory, kVariablesDirectory), kVariablesFile);
}

Status OfModel(const std::string& directory, const Status& status) {
  return Prefixed(absl::StrCat("SavedModel '", directory, "'"), status);
}

std::string TagsText(const std::vector<std::string>& tags) {
  return absl::StrCat("{ ", absl::StrJoin(tags, ", "), " }");
}

// The assets of a meta graph: its field, else the collection of older files.
StatusOr<std::vector<tensorflow::AssetFileDef>> AssetsOf(const tensorflow::MetaGraphDef& meta) {
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

bool HasNode(const tensorflow::GraphDef& graph, absl::string_view name) {
  return std::any_of(graph.node().begin(), graph.node().end(),
                     [&](const tensorflow::NodeDef& node) { return node.name() == name; });
}

bool HasVariables(const tensorflow::GraphDef& graph) {
  return std::any_of(graph.node().begin(), graph.node().end(), [](const auto& node) {
    return node.op() == "VariableV2" || node.op() == "Variable" || node.op() == "VarHandleOp";
  });
}

// The operation that makes a model ready once its variables are restored; "" when it has none.
// NotFound when it names one that is not in the graph.
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

// InvalidArgument unless every tensor of every signature is one of the graph.
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

// The paths of the files that the meta graph's assets name, as feeds of tensors of the graph.
StatusOr<std::vector<Feed>> AssetFeeds(FileSystem* fs, const std::string& directory,
                                       const tensorflow::MetaGraphDef& meta) {
  const auto assets = AssetsOf(meta);
  if (!assets.ok()) return OfModel(directory, assets.status());
  std::vector<Feed> feeds;
  for (const tensorflow::AssetFileDef& asset : *assets) {
    if (asset.filename().empty() || Basename(asset.filename()) != asset.filename()) {
      return InvalidArgument("SavedModel '", directory, "': an asset must be a file in '",
                             kAssetsDirectory, "', got '", asset.filename(), "'");
    }
    const std::string& tensor = asset.tensor_info().name();
    const StatusOr<TensorName> parsed = ParseTensorName(tensor);
    if (!parsed.ok() || !HasNode(meta.graph_def(), parsed->node)) {
      return absl::NotFoundError(absl::StrCat("SavedModel '", directory, "': asset tensor '",
                                              tensor, "' must be in the graph"));
    }
    const std::string path = JoinPath(JoinPath(directory, kAssetsDirectory), asset.filename());
    // Whoever reads the file says that it is missing, with the op's name; maybe nobody does.
    if (!fs->FileExists(path)) {
      LogWarning("SavedModel '", directory, "': asset file '", path,
                 "' does not exist; its path is fed all the same");
    }
    feeds.emplace_back(tensor, Tensor::Scalar<std::string>(path));
  }
  return feeds;
}

// The strings of a constant input of a node; none when it is something else.
std::vector<std::string> ConstantStrings(const std::map<absl::string_view, const NodeDef*>& nodes,
                                         const NodeDef& node, int input) {
  const StatusOr<TensorName> name =
      input < node.input_size() ? ParseTensorName(node.input(input)) : InvalidArgument("none");
  const auto found = name.ok() ? nodes.find(name->node) : nodes.end();
  if (found == nodes.end() || found->second->op() != "Const") return {};
  const StatusOr<Tensor> value = GetAttr<Tensor>(*found->second, "value");
  if (!value.ok() || value->dtype() != DT_STRING) return {};
  const absl::Span<const std::string> strings = value->flat<std::string>();
  return {strings.begin(), strings.end()};
}

// The index of the checkpoint, whether a step reads it or not, and what the nodes that restoring
// runs want of it and of its data files; files that they do not read may be missing. (Whether a
// variable takes the shape of its value, only the step tells.)
Status CheckCheckpoint(FileSystem* fs, const std::string& prefix, const tensorflow::GraphDef& graph,
                       const tensorflow::SaverDef& saver) {
  const StatusOr<std::vector<int>> needed =
      NeededNodes(graph, {saver.restore_op_name()}, {saver.filename_tensor_name()});
  const StatusOr<TensorName> filename = ParseTensorName(saver.filename_tensor_name());
  // Otherwise the step says what is wrong.
  if (!needed.ok() || !filename.ok()) return CheckRestores(fs, prefix, {});
  std::vector<RestoreRequest> requests;
  std::map<absl::string_view, const NodeDef*> nodes;
  for (const NodeDef& node : graph.node()) nodes.emplace(node.name(), &node);
  for (const int position : *needed) {
    const NodeDef& node = graph.node(position);
    if (node.op() != "RestoreV2") continue;
    const StatusOr<TensorName> from = ParseTensorName(node.input_size() > 0 ? node.input(0) : "");
    if (!from.ok() || from->node != filename->node) continue;
    StatusOr<std::vector<DType>> dtypes = GetAttr<std::vector<DType>>(node, "dtypes");
    if (!dtypes.ok()) continue;
    RestoreRequest request{ConstantStrings(nodes, node, 1), ConstantStrings(nodes, node, 2),
                           *std::move(dtypes)};
    const size_t count = request.dtypes.size();
    if (request.names.size() == count && request.specs.size() == count) {
      requests.push_back(std::move(request));
    }
  }
  return CheckRestores(fs, prefix, requests);
}

}  // namespace

// --- Signatures ----------------------------------------------------------------------------------

SignatureTensor::SignatureTensor(const tensorflow::TensorInfo& info)
    : name_(info.name()), dtype_(DTypeFromNumber(info.dtype()).value_or(DT_INVALID)) {
  if (!info.has_tensor_shape()) return;
  if (StatusOr<PartialShape> shape = PartialShape::FromProto(info.tensor_shape()); shape.ok()) {
    shape_ = *std::move(shape);
  }
}

struct ModelSignature::Content {
  explicit Content(tensorflow::SignatureDef signature) : def(std::move(signature)) {
    for (const auto& [name, info] : def.inputs()) inputs.emplace(name, info);
    for (const auto& [name, info] : def.outputs()) outputs.emplace(name, info);
  }
  const tensorflow::SignatureDef def;
  std::map<std::string, SignatureTensor> inputs, outputs;
};

ModelSignature::ModelSignature() : ModelSignature(tensorflow::SignatureDef()) {}
ModelSignature::ModelSignature(tensorflow::SignatureDef def)
    : content_(std::make_shared<const Content>(std::move(def))) {}
const std::string& ModelSignature::method_name() const { return def().method_name(); }
const std::map<std::string, SignatureTensor>& ModelSignature::inputs() const {
  return content_->inputs;
}
const std::map<std::string, SignatureTensor>& ModelSignature::outputs() const {
  return content_->outputs;
}
const tensorflow::SignatureDef& ModelSignature::def() const { return content_->def; }

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

StatusOr<std::string> SavedModelBuilder::CopyAsset(const std::string& source) {
  MR_ASSIGN_OR_RETURN(const std::string bytes, ReadFileToString(fs_, source));
  const std::string fingerprint = absl::StrCat(Crc32c(bytes), " ", bytes.size());
  const std::string base = Basename(source);
  std::string name = base;
  for (int i = 1;; ++i) {
    const auto [known, is_new] = assets_.emplace(name, fingerprint);
    if (is_new) break;
    if (known->second == fingerprint) {
      // Equal checksums are not equal files.
      MR_ASSIGN_OR_RETURN(
          const std::string copy,
          ReadFileToString(fs_, JoinPath(JoinPath(directory_, kAssetsDirectory), name)));
      if (copy == bytes) return name;
    }
    name = absl::StrCat(base, "_", i);
  }
  const std::string folder = JoinPath(directory_, kAssetsDirectory);
  MR_RETURN_IF_ERROR(fs_->RecursivelyCreateDirectory(folder));
  MR_RETURN_IF_ERROR(WriteFileAtomically(fs_, JoinPath(folder, name), bytes));
  return name;
}

Status SavedModelBuilder::Add(tensorflow::MetaGraphDef meta, absl::Span<const Asset> assets) {
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
  MR_RETURN_IF_ERROR(OfModel(directory_, CheckSignatures(meta)));
  MR_RETURN_IF_ERROR(OfModel(directory_, InitOpOf(meta).status()));
  for (const Asset& asset : assets) {
    tensorflow::AssetFileDef def;
    def.mutable_tensor_info()->set_name(asset.tensor);
    MR_ASSIGN_OR_RETURN(*def.mutable_filename(), CopyAsset(asset.source));
    *meta.add_asset_file_def() = def;
    (*meta.mutable_collection_def())[kAssetsCollection].mutable_any_list()->add_value()->PackFrom(
        def);
  }
  *model_->add_meta_graphs() = std::move(meta);
  return absl::OkStatus();
}

Status SavedModelBuilder::AddMetaGraphAndVariables(Session* session, tensorflow::MetaGraphDef meta,
                                                   absl::Span<const Asset> assets) {
  if (model_->meta_graphs_size() > 0) {
    return FailedPrecondition("SavedModel '", directory_,
                              "': variables must be added once, with the first ",
                              "meta graph, got a further one; use AddMetaGraph");
  }
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

namespace {

StatusOr<tensorflow::MetaGraphDef> MakeMetaGraph(const Scope& scope, const Saver* saver,
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

}  // namespace

Status SavedModelBuilder::AddMetaGraphAndVariables(Session* session, const Scope& scope,
                                                   const Saver* saver,
                                                   const SavedModelOptions& options) {
  MR_ASSIGN_OR_RETURN(tensorflow::MetaGraphDef meta, MakeMetaGraph(scope, saver, options));
  return AddMetaGraphAndVariables(session, std::move(meta), options.assets);
}

Status SavedModelBuilder::AddMetaGraph(const Scope& scope, const Saver* saver,
                                       const SavedModelOptions& options) {
  MR_ASSIGN_OR_RETURN(tensorflow::MetaGraphDef meta, MakeMetaGraph(scope, saver, options));
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

StatusOr<SavedModelBundle> LoadSavedModel(const SessionOptions& options,
                                          const std::string& directory,
                                          absl::Span<const std::string> tags,
                                          FileSystem* file_system) {
  MR_ASSIGN_OR_RETURN(const tensorflow::SavedModel model, ReadSavedModel(file_system, directory));
  MR_ASSIGN_OR_RETURN(const tensorflow::MetaGraphDef* meta, FindMetaGraph(model, tags));
  return LoadMetaGraph(options, directory, *meta, file_system);
}

LoadPlan PlanLoading(FileSystem* fs, const std::string& directory,
                     const tensorflow::MetaGraphDef& meta) {
  LoadPlan plan;
  const auto note = [&](const Status& status) {
    if (!status.ok()) plan.errors.push_back(status);
  };
  note(OfModel(directory, CheckSignatures(meta)));
  const StatusOr<std::string> init_op = InitOpOf(meta);
  note(OfModel(directory, init_op.status()));
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
      note(OfModel(directory, CheckCheckpoint(fs, variables, meta.graph_def(), saver)));
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

StatusOr<std::unique_ptr<Session>> OpenMetaGraph(const SessionOptions& options,
                                                 const std::string& directory,
                                                 tensorflow::MetaGraphDef* meta) {
  MR_RETURN_IF_ERROR(OfModel(directory, RemoveUnknownDefaultAttrs(meta)));
  MR_ASSIGN_OR_RETURN(std::unique_ptr<Session> session, NewSession(options));
  MR_RETURN_IF_ERROR(OfModel(directory, session->Extend(meta->graph_def())));
  return session;
}

StatusOr<SavedModelBundle> LoadMetaGraph(const SessionOptions& options,
                                         const std::string& directory,
                                         tensorflow::MetaGraphDef meta_graph,
                                         FileSystem* file_system) {
  const auto meta = std::make_shared<tensorflow::MetaGraphDef>(std::move(meta_graph));
  const LoadPlan plan = PlanLoading(file_system, directory, *meta);
  if (!plan.errors.empty()) return plan.errors.front();
  SavedModelBundle bundle;
  MR_ASSIGN_OR_RETURN(bundle.session, OpenMetaGraph(options, directory, meta.get()));
  if (!plan.restore) LogInfo("SavedModel '", directory, "' has no variables");
  for (const std::optional<LoadPlan::Step>& step : {plan.restore, plan.init}) {
    if (!step) continue;
    MR_RETURN_IF_ERROR(
        OfModel(directory, bundle.session->Run(step->feeds, {}, {step->target}).status()));
  }
  bundle.meta_graph_def = meta;
  return bundle;
}

StatusOr<SavedModelBundle> LoadSavedModel(const SessionOptions& options,
                                          const std::string& directory,
                                          std::initializer_list<std::string> tags) {
  return LoadSavedModel(options, directory, absl::MakeConstSpan(tags.begin(), tags.size()));
}

}  // namespace millrace
