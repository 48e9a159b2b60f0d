// SPDX-License-Identifier: Apache-2.0
#include "saver/export_model.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "core/memory_files.h"
#include "core/tensor.h"
#include "graph/attr.h"
#include "graph/graph.h"
#include "graph/import_export.h"
#include "layers/lookup.h"
#include "layers/variable.h"
#include "ops/array/identity.h"
#include "proto/graph.pb.h"
#include "proto/meta_graph.pb.h"
#include "proto/variable.pb.h"
#include "saver/saver.h"
#include "saver/saver_nodes.h"
#include "saver/table_saveable.h"

namespace millrace {
namespace {

// Variables that are fetched at a time; a larger one goes alone.
constexpr int64_t kBytesPerRun = int64_t{64} << 20;
constexpr char kColocation[] = "loc:@";
constexpr const char* kVariableCollections[] = {"variables", "trainable_variables",
                                                "local_variables"};
constexpr char kTableInitializers[] = "table_initializer";
// Names of nodes and tensors.
constexpr const char* kNodeCollections[] = {kTableInitializers, "asset_filepaths", kSaveableTables};

// A legal node name made of a signature's key.
std::string NodeName(const std::string& key) {
  std::string name = key;
  for (char& c : name) {
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) && c != '_' && c != '.') c = '_';
  }
  return name.empty() || name[0] == '_' ? absl::StrCat("input", name) : name;
}

// The variables of a scope that have values of their own, looked up once.
struct ScopeVariables {
  explicit ScopeVariables(const Scope& scope) : saved(VariablesOf(scope)) {
    for (const Variable& variable : saved) by_handle.emplace(variable.handle.node(), variable);
    for (const Variable& variable : VariablesOf(scope, "local_variables")) {
      by_handle.emplace(variable.handle.node(), variable);
      local.insert(variable.handle.node());
    }
  }
  std::vector<Variable> saved;
  std::set<const Node*> local;                // handles
  std::map<const Node*, Variable> by_handle;  // the local ones, too
};

// The part of a scope's graph that signatures need.
class ServingPart {
 public:
  ServingPart(const Scope& scope, const ScopeVariables& variables,
              absl::Span<const ServingSignature> signatures, const ExportModelOptions& options)
      : scope_(scope), variables_(variables), signatures_(signatures), options_(options) {}

  Status Find() {
    std::vector<Reached> reached;
    for (const ServingSignature& signature : signatures_) {
      Reached& own = reached.emplace_back();
      for (const auto& [key, input] : signature.inputs) {
        own.fed.insert({input.node(), input.index()});
        if (IsPlaceholder(*input.node())) own.Add(input.node());
      }
      for (const auto& [key, output] : signature.outputs) {
        if (own.fed.count({output.node(), output.index()}) == 0) own.Add(output.node());
      }
      own.Walk(0, own.fed);
      for (const Node* node : own.nodes) {
        if (node->traits().feeding != Feeding::kRequired || own.fed.count({node, 0}) > 0) continue;
        return InvalidArgument("ExportModel: signature '", signature.key, "': the outputs need '",
                               node->name(), "', which must be an input; inputs are ",
                               InputNames(signature));
      }
    }
    if (options_.main_op.valid()) {
      Reached& own = reached.emplace_back();
      own.Add(options_.main_op.node());
      own.Walk(0, {});
      for (const Node* node : own.nodes) {
        if (node->traits().feeding != Feeding::kRequired && variables_.local.count(node) == 0)
          continue;
        return InvalidArgument("ExportModel: main_op '", options_.main_op.name(),
                               "' must need no input and no local variable, got '", node->name(),
                               "'");
      }
    }
    MR_RETURN_IF_ERROR(FindTables(&reached));
    // An input becomes a placeholder unless somebody else computes it.
    for (const ServingSignature& signature : signatures_) {
      for (const auto& [key, input] : signature.inputs) {
        const std::pair<const Node*, int> tensor(input.node(), input.index());
        if (IsPlaceholder(*input.node()) || cut_.count(tensor) > 0) continue;
        const bool is_computed =
            std::any_of(reached.begin(), reached.end(), [&](const Reached& other) {
              return other.fed.count(tensor) == 0 && other.set.count(input.node()) > 0;
            });
        if (!is_computed) cut_[tensor] = {input, FreeName(NodeName(key))};
      }
    }
    for (const Reached& one : reached) {
      for (const Node* node : one.nodes) kept_.Add(node);
    }
    return KeepVariables();
  }

  bool Keeps(const Node* node) const { return kept_.set.count(node) > 0; }

  // The nodes, in the order of the graph.
  StatusOr<tensorflow::GraphDef> ToGraphDef() const {
    MR_ASSIGN_OR_RETURN(tensorflow::GraphDef whole, scope_.ToGraphDef());
    std::set<absl::string_view> names;
    for (const Node* node : kept_.nodes) names.insert(node->name());
    std::map<std::string, std::string> renamed;  // "reader:1" -> "x"
    tensorflow::GraphDef part;
    *part.mutable_versions() = whole.versions();
    part.mutable_library()->Swap(whole.mutable_library());
    for (const auto& [tensor, cut] : cut_) {
      renamed[cut.tensor.name()] = cut.placeholder;
      tensorflow::NodeDef* node = part.add_node();
      node->set_name(cut.placeholder);
      node->set_op("Placeholder");
      (*node->mutable_attr())["dtype"].set_type(
          static_cast<tensorflow::DataType>(WithoutRef(cut.tensor.dtype())));
      scope_.shape(cut.tensor).ToProto((*node->mutable_attr())["shape"].mutable_shape());
    }
    for (tensorflow::NodeDef& node : *whole.mutable_node()) {
      if (names.count(node.name()) == 0) continue;
      node.clear_device();
      for (std::string& input : *node.mutable_input()) {
        absl::string_view name;
        int index = 0;
        if (absl::StartsWith(input, "^") || !SplitTensorName(input, &name, &index)) continue;
        const auto found = renamed.find(absl::StrCat(name, ":", index));
        if (found != renamed.end()) input = found->second;
      }
      KeepColocation(names, &node);
      part.add_node()->Swap(&node);
    }
    return part;
  }

  // Named as the exported graph names it.
  StatusOr<ModelSignature> Named(const ServingSignature& signature) const {
    MR_ASSIGN_OR_RETURN(
        const ModelSignature here,
        BuildSignatureDef(scope_, signature.inputs, signature.outputs, signature.method));
    tensorflow::SignatureDef def = here.def();
    const auto rename = [this](const NamedOutputs& outputs, auto* infos) {
      for (const auto& [key, output] : outputs) {
        const auto found = cut_.find({output.node(), output.index()});
        if (found == cut_.end()) continue;
        (*infos)[key].set_name(absl::StrCat(found->second.placeholder, ":0"));
      }
    };
    rename(signature.inputs, def.mutable_inputs());
    rename(signature.outputs, def.mutable_outputs());
    return ModelSignature(std::move(def));
  }

 private:
  using Tensors = std::set<std::pair<const Node*, int>>;

  // Nodes that something needs, in the order in which they were found.
  struct Reached {
    void Add(const Node* node) {
      if (set.insert(node).second) nodes.push_back(node);
    }
    // Adds what nodes[first], ... are computed from, but for what makes tensors of `given`.
    void Walk(size_t first, const Tensors& given) {
      for (size_t i = first; i < nodes.size(); ++i) {
        const Node* const node = nodes[i];
        for (const OutputRef& input : node->inputs()) {
          if (given.count({input.node, input.index}) == 0) Add(input.node);
        }
        for (const Node* control : node->control_inputs()) Add(control);
      }
    }
    Tensors fed;  // the inputs of a signature
    std::vector<const Node*> nodes;
    std::set<const Node*> set;
  };

  // The initialisers of the tables that are asked: the model runs them when it is loaded.
  Status FindTables(std::vector<Reached>* reached) const {
    const auto tables = scope_.collections()->find(kTableInitializers);
    if (tables == scope_.collections()->end()) return absl::OkStatus();
    const size_t num_reached = reached->size();
    for (const std::string& name : tables->second.node_list().value()) {
      const Node* const fill = scope_.graph()->FindNode(name);
      if (fill == nullptr || fill->num_inputs() == 0) continue;
      const Node* const table = fill->input(0).node;
      const auto asks = [&](const Reached& one) { return one.set.count(table) > 0; };
      const auto end = reached->begin() + static_cast<std::ptrdiff_t>(num_reached);
      if (std::none_of(reached->begin(), end, asks)) continue;
      Reached own;
      own.Add(fill);
      own.Walk(0, {});
      for (const Node* node : own.nodes) {
        if (node->traits().feeding != Feeding::kRequired && variables_.local.count(node) == 0)
          continue;
        return InvalidArgument("ExportModel: table '", table->name(),
                               "' must be initialized without input or local variable, got '",
                               node->name(), "'");
      }
      reached->push_back(std::move(own));
    }
    return absl::OkStatus();
  }

  static bool IsPlaceholder(const Node& node) { return node.traits().feeding != Feeding::kNone; }

  // Their own nodes: other programs look them up by the names in the collections. An initial value
  // may read further variables.
  Status KeepVariables() {
    Tensors cut;
    for (const auto& [tensor, placeholder] : cut_) cut.insert(tensor);
    for (size_t i = 0; i < kept_.nodes.size(); ++i) {
      const Node* const node = kept_.nodes[i];
      if (!node->traits().makes_variable) continue;
      const auto found = variables_.by_handle.find(node);
      if (found == variables_.by_handle.end()) {
        return InvalidArgument("ExportModel: variable '", node->name(),
                               "' must be in the collection 'variables' to be saved");
      }
      const Variable& variable = found->second;
      const size_t first = kept_.nodes.size();
      for (const Node* own :
           {variable.value.node(), variable.initializer.node(), variable.is_initialized.node()}) {
        if (own != nullptr) kept_.Add(own);
      }
      kept_.Walk(first, cut);
    }
    return absl::OkStatus();
  }

  // Nodes that are not there hold nobody.
  static void KeepColocation(const std::set<absl::string_view>& names, tensorflow::NodeDef* node) {
    const auto found = node->mutable_attr()->find("_class");
    if (found == node->mutable_attr()->end()) return;
    std::vector<std::string> left;
    for (const std::string& value : found->second.list().s()) {
      absl::string_view target = value;
      if (!absl::ConsumePrefix(&target, kColocation) || names.count(target) > 0) {
        left.push_back(value);
      }
    }
    if (left.empty()) {
      node->mutable_attr()->erase(found);
      return;
    }
    auto* list = found->second.mutable_list()->mutable_s();
    list->Clear();
    for (std::string& value : left) *list->Add() = std::move(value);
  }

  static std::string InputNames(const ServingSignature& signature) {
    if (signature.inputs.empty()) return "none";
    return absl::StrJoin(signature.inputs, ", ", [](std::string* out, const auto& input) {
      absl::StrAppend(out, "'", input.first, "' ('", input.second.name(), "')");
    });
  }

  // `name`, or with a number, so that no node of the graph has it.
  std::string FreeName(const std::string& name) const {
    const auto taken = [this](const std::string& free) {
      if (scope_.graph()->FindNode(free) != nullptr) return true;
      return std::any_of(cut_.begin(), cut_.end(),
                         [&](const auto& cut) { return cut.second.placeholder == free; });
    };
    std::string free = name;
    for (int i = 1; taken(free); ++i) free = absl::StrCat(name, "_", i);
    return free;
  }

  struct Cut {
    Output tensor;
    std::string placeholder;  // what stands for it
  };

  const Scope& scope_;
  const ScopeVariables& variables_;
  const absl::Span<const ServingSignature> signatures_;
  const ExportModelOptions& options_;
  std::map<std::pair<const Node*, int>, Cut> cut_;  // inputs that become placeholders
  Reached kept_;
};

// A scope of its own over the part, with the variables' collections.
StatusOr<Scope> MakeScope(const Scope& scope, const ServingPart& part) {
  MR_ASSIGN_OR_RETURN(tensorflow::GraphDef def, part.ToGraphDef());
  auto graph = std::make_unique<Graph>();
  MR_RETURN_IF_ERROR(ImportGraphDef(std::move(def), {}, graph.get()));
  MR_ASSIGN_OR_RETURN(Scope serving, Scope::ForGraph(std::move(graph)));
  for (const char* key : kVariableCollections) {
    const auto found = scope.collections()->find(key);
    if (found == scope.collections()->end()) continue;
    for (const std::string& bytes : found->second.bytes_list().value()) {
      tensorflow::VariableDef variable;
      if (!variable.ParseFromString(bytes)) continue;
      const StatusOr<TensorName> name = ParseTensorName(variable.variable_name());
      if (!name.ok()) continue;
      const Node* const handle = scope.graph()->FindNode(name->node);
      if (handle != nullptr && part.Keeps(handle)) serving.AddToBytesCollection(key, bytes);
    }
  }
  for (const char* key : kNodeCollections) {
    const auto found = scope.collections()->find(key);
    if (found == scope.collections()->end()) continue;
    for (const std::string& text : found->second.node_list().value()) {
      const StatusOr<TensorName> name = ParseTensorName(text);
      const Node* const node = name.ok() ? scope.graph()->FindNode(name->node) : nullptr;
      if (node != nullptr && part.Keeps(node)) serving.AddToNodeCollection(key, text);
    }
  }
  return serving;
}

// What the tables of the exported graph that change have in the other session, which must know the
// nodes that export them.
Status CopyTables(Session* from, const Scope& serving, Session* to) {
  const auto found = serving.collections()->find(kSaveableTables);
  if (found == serving.collections()->end()) return absl::OkStatus();
  for (const std::string& name : found->second.node_list().value()) {
    MR_ASSIGN_OR_RETURN(const auto table,
                        MakeTableSaveable(serving, Output(serving.graph()->FindNode(name), 0)));
    const std::vector<Saveable::Spec> specs = table->specs();
    StatusOr<std::vector<Tensor>> content =
        from->Run({}, {FetchName(specs[0].tensor.name()), FetchName(specs[1].tensor.name())});
    if (absl::IsNotFound(content.status())) {
      return FailedPrecondition("table '", name,
                                "' must have nodes that export it, which a Saver makes before the "
                                "session opens, got none");
    }
    MR_RETURN_IF_ERROR(content.status());
    // Nodes of the session alone: they are not exported.
    tensorflow::GraphDef nodes;
    std::vector<Feed> feeds;
    std::vector<std::string> inputs = {name};
    for (size_t i = 0; i < 2; ++i) {
      tensorflow::NodeDef* const node = nodes.add_node();
      node->set_name(absl::StrCat("export_model/", specs[i].name));
      node->set_op("Placeholder");
      SetAttr((*content)[i].dtype(), &(*node->mutable_attr())["dtype"]);
      inputs.push_back(node->name());
      feeds.emplace_back(absl::StrCat(node->name(), ":0"), (*content)[i]);
    }
    tensorflow::NodeDef* const node = nodes.add_node();
    node->set_name(absl::StrCat("export_model/", name, "-import"));
    const bool is_reference = IsRef(serving.graph()->FindNode(name)->output_type(0));
    node->set_op(is_reference ? "LookupTableImport" : "LookupTableImportV2");
    for (std::string& input : inputs) node->add_input(std::move(input));
    SetAttr((*content)[0].dtype(), &(*node->mutable_attr())["Tin"]);
    SetAttr((*content)[1].dtype(), &(*node->mutable_attr())["Tout"]);
    const std::string import = node->name();
    *nodes.mutable_versions() = serving.graph()->versions();
    MR_RETURN_IF_ERROR(to->Extend(nodes));
    MR_RETURN_IF_ERROR(to->Run(feeds, {}, {FetchName(import)}).status());
  }
  return absl::OkStatus();
}

// To a variable that nothing in the graph assigns to: of a model that was read.
Status Assign(Session* session, const Variable& variable, Tensor value) {
  tensorflow::GraphDef more;
  *more.mutable_versions() = variable.handle.node()->graph()->versions();
  tensorflow::NodeDef* const fed = more.add_node();
  fed->set_name(absl::StrCat(variable.name, "/ExportModel/value"));
  fed->set_op("Placeholder");
  SetAttr(variable.dtype, &(*fed->mutable_attr())["dtype"]);
  tensorflow::NodeDef* const assign = more.add_node();
  assign->set_name(absl::StrCat(variable.name, "/ExportModel/assign"));
  assign->set_op(variable.is_reference() ? "Assign" : "AssignVariableOp");
  assign->add_input(variable.handle.name());
  assign->add_input(fed->name());
  SetAttr(variable.dtype, &(*assign->mutable_attr())[variable.is_reference() ? "T" : "dtype"]);
  MR_RETURN_IF_ERROR(session->Extend(more));
  return session->Run({{absl::StrCat(fed->name(), ":0"), std::move(value)}}, {}, {assign->name()})
      .status();
}

// The values of `variables` (of the exported graph) as `from` holds those of the same names.
Status CopyVariables(Session* from, const ScopeVariables& here, Session* to,
                     const std::vector<Variable>& variables) {
  std::map<absl::string_view, const Variable*> trained;
  for (const Variable& variable : here.saved) trained.emplace(variable.name, &variable);
  for (size_t begin = 0; begin < variables.size();) {
    std::vector<FetchName> fetches;
    int64_t bytes = 0;
    size_t end = begin;
    for (; end < variables.size(); ++end) {
      const Variable& variable = variables[end];
      const int64_t elements = variable.shape.num_elements();
      bytes +=
          elements < 0 ? kBytesPerRun : elements * static_cast<int64_t>(DTypeSize(variable.dtype));
      if (end > begin && bytes > kBytesPerRun) break;
      const auto found = trained.find(variable.name);
      if (found == trained.end()) {
        return Internal("variable '", variable.name, "' must be one of the model's graph");
      }
      fetches.emplace_back(found->second->value);
    }
    MR_ASSIGN_OR_RETURN(std::vector<Tensor> values, from->Run({}, fetches));
    for (size_t i = begin; i < end; ++i) {
      if (!variables[i].initializer.valid()) {
        MR_RETURN_IF_ERROR(Assign(to, variables[i], std::move(values[i - begin])));
        continue;
      }
      const Node* const assign = variables[i].initializer.node();
      if (assign == nullptr || assign->num_inputs() < 2) {
        return InvalidArgument("ExportModel: variable '", variables[i].name,
                               "' must have an initializer that assigns a value");
      }
      const Output initial(assign->input(1).node, assign->input(1).index);
      MR_RETURN_IF_ERROR(
          to->Run({{initial, std::move(values[i - begin])}}, {}, {variables[i].initializer})
              .status());
    }
    begin = end;
  }
  return absl::OkStatus();
}

// Where a model is until it is whole.
std::string UnfinishedPath(absl::string_view directory) {
  return absl::StrCat(absl::StripSuffix(directory, "/"), ".unfinished");
}

}  // namespace

namespace {

// What one signature may be, whatever the graph computes.
Status CheckNames(const Scope& scope, const ServingSignature& signature) {
  if (signature.key.empty() || signature.key == kInitOpSignature) {
    return InvalidArgument("ExportModel: the key of a signature must be a name and not '",
                           kInitOpSignature, "', got '", signature.key, "'");
  }
  if (signature.outputs.empty()) {
    return InvalidArgument("ExportModel: signature '", signature.key,
                           "' must have at least one output, got none");
  }
  for (const NamedOutputs* outputs : {&signature.inputs, &signature.outputs}) {
    const char* const kind = outputs == &signature.inputs ? "input" : "output";
    for (const auto& [key, output] : *outputs) {
      if (key.empty()) {
        return InvalidArgument("ExportModel: signature '", signature.key, "': an ", kind,
                               " must have a name, got '' for '", output.name(), "'");
      }
      const char* const got = !output.valid()                           ? "an invalid output"
                              : output.node()->graph() != scope.graph() ? "one of another Scope"
                                                                        : nullptr;
      if (got == nullptr) continue;
      return InvalidArgument("ExportModel: ", kind, " '", key,
                             "' must be a tensor of the model's graph, got ", got);
    }
  }
  return absl::OkStatus();
}

Status CheckNames(const Scope& scope, absl::Span<const ServingSignature> signatures,
                  const ExportModelOptions& options) {
  MR_RETURN_IF_ERROR(scope.status());
  if (signatures.empty()) {
    return absl::InvalidArgumentError(
        "ExportModel: there must be at least one signature, got none");
  }
  std::set<absl::string_view> keys;
  for (const ServingSignature& signature : signatures) {
    MR_RETURN_IF_ERROR(CheckNames(scope, signature));
    if (!keys.insert(signature.key).second) {
      return InvalidArgument("ExportModel: signatures must have keys of their own, got '",
                             signature.key, "' twice");
    }
  }
  std::set<absl::string_view> tags;
  for (const std::string& tag : options.tags) {
    if (!tags.insert(tag).second || tag.empty()) {
      return InvalidArgument("ExportModel: tags must be names that differ, got '",
                             absl::StrJoin(options.tags, "', '"), "'");
    }
  }
  if (options.main_op.valid() && options.main_op.node()->graph() != scope.graph()) {
    return InvalidArgument("ExportModel: main_op must be an operation of the model's graph, got '",
                           options.main_op.name(), "' of another Scope");
  }
  return absl::OkStatus();
}

}  // namespace

Status CheckServingSignature(const Scope& scope, const ServingSignature& signature) {
  const ExportModelOptions options;
  MR_RETURN_IF_ERROR(CheckNames(scope, {&signature, 1}, options));
  const ScopeVariables variables(scope);
  return ServingPart(scope, variables, {&signature, 1}, options).Find();
}

Status CheckExportDirectory(const std::string& directory, FileSystem* file_system) {
  if (absl::StripSuffix(directory, "/").empty()) {
    return InvalidArgument("ExportModel: the export directory must have a name, got '", directory,
                           "'");
  }
  if (file_system->FileExists(directory)) {
    const auto children = file_system->GetChildren(directory);
    if (!children.ok() || !children->empty()) {
      return FailedPrecondition("ExportModel: the export directory '", directory,
                                "' must be new or empty, got ",
                                children.ok() ? absl::StrCat(children->size(), " files in it")
                                              : std::string(children.status().message()));
    }
  }
  const std::string unfinished = UnfinishedPath(directory);
  const Status made = file_system->RecursivelyCreateDirectory(unfinished);
  if (!made.ok()) {
    return Status(made.code(),
                  absl::StrCat("ExportModel: the export directory '", directory,
                               "' must be one that can be made, got ", made.message()));
  }
  file_system->DeleteDirectory(unfinished).IgnoreError();  // not if something was left in it
  // The model is put there by a rename, which a mount point or a link does not take.
  const std::string target(absl::StripSuffix(directory, "/"));
  const bool was_there = file_system->FileExists(target);
  const std::string probe = absl::StrCat(target, ".probe");
  MR_RETURN_IF_ERROR(file_system->RecursivelyCreateDirectory(probe));
  const Status renamed = file_system->RenameFile(probe, target);
  if (!renamed.ok()) {
    file_system->DeleteDirectory(probe).IgnoreError();
    return Status(
        renamed.code(),
        absl::StrCat("ExportModel: the export directory '", directory,
                     "' must be one that a directory can be renamed to, got ", renamed.message()));
  }
  return was_there ? absl::OkStatus() : file_system->DeleteDirectory(target);
}

namespace {

// The graph of the part with what saves and fills it, as a scope.
struct ServingGraph {
  Scope scope;
  std::unique_ptr<Saver> saver;  // null: there is nothing to save
  Operation main_op;
};
StatusOr<ServingGraph> MakeServingGraph(const Scope& from, const ServingPart& part,
                                        const ExportModelOptions& options) {
  ServingGraph made;
  MR_ASSIGN_OR_RETURN(const Scope copied, MakeScope(from, part));
  made.scope = copied.BuiltAt(from.built_at());
  const Scope& serving = made.scope;
  if (!VariablesOf(serving).empty() || serving.collections()->count(kSaveableTables) > 0) {
    MR_ASSIGN_OR_RETURN(made.saver, Saver::Make(serving, {.sharded = false}));
  }
  std::vector<Operation> main_ops;
  if (options.main_op.valid()) {
    main_ops.emplace_back(serving.graph()->FindNode(options.main_op.name()));
  }
  // Local variables are in no checkpoint.
  if (!VariablesOf(serving, "local_variables").empty()) {
    main_ops.push_back(LocalVariablesInitializer(serving));
  }
  if (serving.collections()->count(kTableInitializers) > 0) {
    main_ops.push_back(TablesInitializer(serving));
  }
  if (main_ops.size() == 1) made.main_op = main_ops[0];
  if (main_ops.size() > 1) made.main_op = Group(serving.WithName("main_op"), main_ops);
  return made;
}

// What the Saver would write, as the session has it.
StatusOr<std::vector<ModelValue>> ValuesIn(Session* session, const tensorflow::MetaGraphDef& meta) {
  std::vector<ModelValue> values;
  MR_ASSIGN_OR_RETURN(const std::vector<SavedTensor> saved,
                      SavedTensorsOf(meta.graph_def(), meta.saver_def()));
  std::vector<FetchName> fetches;
  for (const SavedTensor& one : saved) fetches.emplace_back(one.tensor);
  MR_ASSIGN_OR_RETURN(std::vector<Tensor> tensors, session->Run({}, fetches));
  for (size_t i = 0; i < saved.size(); ++i) {
    values.push_back({.name = saved[i].name,
                      .slice = saved[i].slice,
                      .dtype = tensors[i].dtype(),
                      .source = std::move(tensors[i])});
  }
  return values;
}

// The files that the graph reads, in memory, by the names that they get in assets/.
StatusOr<std::vector<ModelAsset>> AssetsInMemory(const Scope& serving, FileSystem* files) {
  MR_ASSIGN_OR_RETURN(const std::vector<Asset> sources, AssetsOf(serving));
  std::vector<ModelAsset> assets;
  NamedBytes named;
  for (const Asset& source : sources) {
    MR_ASSIGN_OR_RETURN(const std::string bytes, ReadFileToString(files, source.source));
    ModelAsset& asset = assets.emplace_back();
    asset.tensor = source.tensor;
    MR_ASSIGN_OR_RETURN(
        asset.file_name,
        AssetFileName(Basename(source.source), [&](const std::string& name) -> StatusOr<bool> {
          return named.emplace(name, bytes).first->second == bytes;
        }));
    asset.path = JoinPath(kAssetsDirectory, asset.file_name);
  }
  MR_ASSIGN_OR_RETURN(const std::shared_ptr<FileSystem> in_memory,
                      MemoryFiles(kAssetsDirectory, std::move(named)));
  for (ModelAsset& asset : assets) asset.files = in_memory;
  return assets;
}

}  // namespace

StatusOr<Model> MakeServingModel(Session* session, ScopeAt at,
                                 absl::Span<const ServingSignature> signatures,
                                 const ExportModelOptions& options, const std::string& name) {
  const Scope scope = at.here();
  MR_RETURN_IF_ERROR(CheckNames(scope, signatures, options));
  const ScopeVariables trained(scope);
  ServingPart part(scope, trained, signatures, options);
  MR_RETURN_IF_ERROR(part.Find());
  SavedModelOptions model_options;
  model_options.tags = options.tags;
  for (const ServingSignature& signature : signatures) {
    MR_ASSIGN_OR_RETURN(model_options.signatures[signature.key], part.Named(signature));
  }
  MR_ASSIGN_OR_RETURN(const ServingGraph serving, MakeServingGraph(scope, part, options));
  model_options.main_op = serving.main_op;
  MR_ASSIGN_OR_RETURN(tensorflow::MetaGraphDef meta,
                      MakeSavedMetaGraph(serving.scope, serving.saver.get(), model_options));
  MR_ASSIGN_OR_RETURN(std::vector<ModelAsset> assets,
                      AssetsInMemory(serving.scope, options.file_system));

  // In this process, whatever the other session's variables are spread over.
  MR_ASSIGN_OR_RETURN(const auto local, NewSession());
  MR_RETURN_IF_ERROR(local->Extend(serving.scope));
  MR_RETURN_IF_ERROR(Prefixed(
      "ExportModel", CopyVariables(session, trained, local.get(), VariablesOf(serving.scope))));
  MR_RETURN_IF_ERROR(Prefixed("ExportModel", CopyTables(session, serving.scope, local.get())));
  std::vector<ModelValue> values;
  if (serving.saver != nullptr) {
    StatusOr<std::vector<ModelValue>> held = ValuesIn(local.get(), meta);
    MR_RETURN_IF_ERROR(Prefixed("ExportModel", held.status()));
    values = *std::move(held);
  }
  MR_RETURN_IF_ERROR(local->Close());
  return Model::Make(name, std::move(meta), std::move(values), std::move(assets));
}

Status WriteModel(const Model& model, const std::string& directory, FileSystem* file_system) {
  MR_RETURN_IF_ERROR(CheckExportDirectory(directory, file_system));
  const std::string target(absl::StripSuffix(directory, "/"));
  const std::string unfinished = UnfinishedPath(target);
  if (file_system->FileExists(unfinished)) {
    MR_RETURN_IF_ERROR(file_system->RecursivelyDelete(unfinished));
  }
  const Status written = [&]() -> Status {
    MR_ASSIGN_OR_RETURN(const auto builder, SavedModelBuilder::Open(unfinished, file_system));
    MR_RETURN_IF_ERROR(builder->AddModel(model));
    MR_RETURN_IF_ERROR(builder->Save());
    return file_system->RenameFile(unfinished, target);
  }();
  if (!written.ok()) {
    file_system->RecursivelyDelete(unfinished).IgnoreError();
    return written;
  }
  return file_system->SyncDirectory(Dirname(target));
}

Status ExportModel(Session* session, ScopeAt at, absl::Span<const ServingSignature> signatures,
                   const std::string& directory, const ExportModelOptions& options) {
  MR_RETURN_IF_ERROR(CheckNames(at.scope, signatures, options));
  MR_RETURN_IF_ERROR(CheckExportDirectory(directory, options.file_system));
  MR_ASSIGN_OR_RETURN(const Model model,
                      MakeServingModel(session, at, signatures, options, directory));
  return WriteModel(model, directory, options.file_system);
}

Status ExportModel(Session* session, ScopeAt at, const ServingSignature& signature,
                   const std::string& directory, FileSystem* file_system) {
  ExportModelOptions options;
  options.file_system = file_system;
  return ExportModel(session, at, {&signature, 1}, directory, options);
}

}  // namespace millrace
