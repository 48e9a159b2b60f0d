// SPDX-License-Identifier: Apache-2.0
#include "saver/export_model.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "core/tensor.h"
#include "graph/graph.h"
#include "graph/import_export.h"
#include "layers/variable.h"
#include "proto/graph.pb.h"
#include "proto/meta_graph.pb.h"
#include "proto/variable.pb.h"
#include "saver/saver.h"

namespace millrace {
namespace {

// Variables that are fetched at a time; a larger one goes alone.
constexpr int64_t kBytesPerRun = int64_t{64} << 20;
constexpr char kColocation[] = "loc:@";
constexpr const char* kVariableCollections[] = {"variables", "trainable_variables",
                                                "local_variables"};

bool IsVariable(const Node& node) {
  return node.op() == "VarHandleOp" || node.op() == "VariableV2" || node.op() == "Variable";
}

// A legal node name made of a signature's key.
std::string NodeName(const std::string& key) {
  std::string name = key;
  for (char& c : name) {
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) && c != '_' && c != '.') c = '_';
  }
  return name.empty() || name[0] == '_' ? absl::StrCat("input", name) : name;
}

// The part of a scope's graph that a signature needs.
class ServingPart {
 public:
  ServingPart(const Scope& scope, const ServingSignature& signature)
      : scope_(scope), signature_(signature) {}

  Status Find() {
    for (const auto& [key, input] : signature_.inputs) {
      if (input.node()->op() == "Placeholder" || input.node()->op() == "PlaceholderWithDefault") {
        fed_.insert(input.node());
        Keep(input.node());
      } else if (cut_.count({input.node(), input.index()}) == 0) {
        cut_[{input.node(), input.index()}] = {input, FreeName(NodeName(key))};
      }
    }
    for (const auto& [key, output] : signature_.outputs) {
      if (cut_.count({output.node(), output.index()}) == 0) Keep(output.node());
    }
    Walk();
    for (const Node* node : kept_) {
      if (node->op() != "Placeholder" || fed_.count(node) > 0) continue;
      return InvalidArgument("ExportModel: signature '", signature_.key, "': the outputs need '",
                             node->name(), "', which must be an input; inputs are ", InputNames());
    }
    return KeepVariables();
  }

  bool Keeps(const Node* node) const { return kept_.count(node) > 0; }

  // The nodes, in the order of the graph, without devices.
  StatusOr<tensorflow::GraphDef> ToGraphDef() const {
    MR_ASSIGN_OR_RETURN(tensorflow::GraphDef whole, scope_.ToGraphDef());
    std::set<absl::string_view> names;
    for (const Node* node : kept_) names.insert(node->name());
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
  StatusOr<tensorflow::SignatureDef> Signature() const {
    MR_ASSIGN_OR_RETURN(const ModelSignature signature,
                        PredictSignatureDef(scope_, signature_.inputs, signature_.outputs));
    tensorflow::SignatureDef def = signature.def();
    const auto rename = [this](const NamedOutputs& outputs, auto* infos) {
      for (const auto& [key, output] : outputs) {
        const auto found = cut_.find({output.node(), output.index()});
        if (found != cut_.end())
          (*infos)[key].set_name(absl::StrCat(found->second.placeholder, ":0"));
      }
    };
    rename(signature_.inputs, def.mutable_inputs());
    rename(signature_.outputs, def.mutable_outputs());
    return def;
  }

 private:
  void Keep(const Node* node) {
    if (kept_.insert(node).second) todo_.push_back(node);
  }
  void Walk() {
    while (!todo_.empty()) {
      const Node* const node = todo_.back();
      todo_.pop_back();
      for (const OutputRef& input : node->inputs()) {
        if (cut_.count({input.node, input.index}) == 0) Keep(input.node);
      }
      for (const Node* control : node->control_inputs()) Keep(control);
    }
  }

  // Their own nodes: other programs look them up by the names in the collections. An initial value
  // may read further variables.
  Status KeepVariables() {
    std::map<const Node*, Variable> by_handle;
    for (const char* collection : kVariableCollections) {
      // What is in that one only is not saved.
      if (absl::string_view(collection) == "trainable_variables") continue;
      for (Variable& variable : VariablesOf(scope_, collection)) {
        const Node* handle = variable.handle.node();
        by_handle.emplace(handle, std::move(variable));
      }
    }
    std::set<const Node*> done;
    for (bool more = true; more;) {
      more = false;
      for (const Node* node : std::vector<const Node*>(kept_.begin(), kept_.end())) {
        if (!IsVariable(*node) || !done.insert(node).second) continue;
        const auto found = by_handle.find(node);
        if (found == by_handle.end()) {
          return InvalidArgument("ExportModel: variable '", node->name(),
                                 "' must be in the collection 'variables' to be saved");
        }
        const Variable& variable = found->second;
        for (const Node* own :
             {variable.value.node(), variable.initializer.node(), variable.is_initialized.node()}) {
          if (own != nullptr) Keep(own);
        }
        Walk();
        more = true;
      }
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

  std::string InputNames() const {
    if (signature_.inputs.empty()) return "none";
    return absl::StrJoin(signature_.inputs, ", ", [](std::string* out, const auto& input) {
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
  const ServingSignature& signature_;
  std::set<const Node*> fed_;                       // placeholders that are inputs
  std::map<std::pair<const Node*, int>, Cut> cut_;  // inputs that are none
  std::set<const Node*> kept_;
  std::vector<const Node*> todo_;
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
  return serving;
}

// The values of `variables` (of the exported graph) as `from` holds those of the same names.
Status CopyVariables(Session* from, const Scope& scope, Session* to,
                     const std::vector<Variable>& variables) {
  std::map<std::string, Variable> trained;
  for (Variable& variable : VariablesOf(scope)) {
    const std::string name = variable.name;
    trained.emplace(name, std::move(variable));
  }
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
      fetches.emplace_back(trained.at(variable.name).value);
    }
    MR_ASSIGN_OR_RETURN(std::vector<Tensor> values, from->Run({}, fetches));
    for (size_t i = begin; i < end; ++i) {
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

Status CheckServingSignature(const Scope& scope, const ServingSignature& signature) {
  MR_RETURN_IF_ERROR(scope.status());
  if (signature.outputs.empty()) {
    return InvalidArgument("ExportModel: signature '", signature.key,
                           "' must have at least one output, got none");
  }
  for (const NamedOutputs* outputs : {&signature.inputs, &signature.outputs}) {
    const char* const kind = outputs == &signature.inputs ? "input" : "output";
    for (const auto& [key, output] : *outputs) {
      const char* const got = !output.valid()                           ? "an invalid output"
                              : output.node()->graph() != scope.graph() ? "one of another Scope"
                                                                        : nullptr;
      if (got == nullptr) continue;
      return InvalidArgument("ExportModel: ", kind, " '", key,
                             "' must be a tensor of the model's graph, got ", got);
    }
  }
  return ServingPart(scope, signature).Find();
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

Status ExportModel(Session* session, const Scope& scope, const ServingSignature& signature,
                   const std::string& directory, FileSystem* file_system) {
  MR_RETURN_IF_ERROR(CheckServingSignature(scope, signature));
  MR_RETURN_IF_ERROR(CheckExportDirectory(directory, file_system));
  ServingPart part(scope, signature);
  MR_RETURN_IF_ERROR(part.Find());
  MR_ASSIGN_OR_RETURN(const tensorflow::SignatureDef def, part.Signature());
  MR_ASSIGN_OR_RETURN(const Scope serving, MakeScope(scope, part));
  const std::vector<Variable> variables = VariablesOf(serving);
  SavedModelOptions options;
  options.signatures[signature.key] = ModelSignature(def);
  std::unique_ptr<Saver> saver;
  if (!variables.empty()) {
    MR_ASSIGN_OR_RETURN(saver, Saver::Make(serving, {.sharded = false}));
  }
  // Local variables are in no checkpoint.
  if (!VariablesOf(serving, "local_variables").empty()) {
    options.main_op = LocalVariablesInitializer(serving);
  }

  // In this process, whatever the other session's variables are spread over.
  MR_ASSIGN_OR_RETURN(const auto local, NewSession());
  MR_RETURN_IF_ERROR(local->Extend(serving));
  MR_RETURN_IF_ERROR(
      Prefixed("ExportModel", CopyVariables(session, scope, local.get(), variables)));

  const std::string target(absl::StripSuffix(directory, "/"));
  const std::string unfinished = UnfinishedPath(target);
  if (file_system->FileExists(unfinished)) {
    MR_RETURN_IF_ERROR(file_system->RecursivelyDelete(unfinished));
  }
  MR_ASSIGN_OR_RETURN(const auto builder, SavedModelBuilder::Open(unfinished, file_system));
  MR_RETURN_IF_ERROR(builder->AddMetaGraphAndVariables(local.get(), serving, saver.get(), options));
  MR_RETURN_IF_ERROR(builder->Save());
  MR_RETURN_IF_ERROR(file_system->RenameFile(unfinished, target));
  MR_RETURN_IF_ERROR(file_system->SyncDirectory(Dirname(target)));
  return local->Close();
}

}  // namespace millrace
