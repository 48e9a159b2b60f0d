// SPDX-License-Identifier: Apache-2.0
//
// Graphs: edits that happen whole or not at all, import and export, questions.
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "api/c_api.h"
#include "api/c_api_handle.h"
#include "api/c_api_internal.h"
#include "core/deterministic_bytes.h"
#include "core/dtype.h"
#include "core/mutex.h"
#include "core/new_message.h"
#include "core/shape.h"
#include "core/status.h"
#include "graph/graph.h"
#include "graph/import_export.h"
#include "graph/scope.h"
#include "graph/shape_inference.h"
#include "graph/signature.h"
#include "layers/variable.h"
#include "proto/graph.pb.h"
#include "proto/meta_graph.pb.h"
#include "proto/node_def.pb.h"
#include "runtime/session.h"
#include "saver/meta_graph.h"

namespace millrace::c_api {
namespace {

// The line of this library that made a node says nothing to its caller.
Status WithoutLine(const Status& status) {
  if (status.ok()) return status;
  const size_t at = status.message().rfind("; built at ");
  return at == absl::string_view::npos ? status
                                       : Status(status.code(), status.message().substr(0, at));
}

// How long the lists of each collection are.
int SizeOf(const tensorflow::CollectionDef& collection) {
  return collection.node_list().value_size() + collection.bytes_list().value_size();
}

std::map<std::string, int> SizesOf(const Scope& scope) {
  std::map<std::string, int> sizes;
  for (const auto& [key, collection] : *scope.collections()) sizes[key] = SizeOf(collection);
  return sizes;
}

template <typename List>
void Shorten(List* list, int size) {
  while (list->value_size() > size) list->mutable_value()->RemoveLast();
}

// What is known of shapes, by the names of nodes.
using KnownShapes = std::vector<std::pair<std::string, std::vector<PartialShape>>>;

KnownShapes ShapesOf(const Scope& scope, int num_ids) {
  KnownShapes shapes;
  for (const auto& node : scope.graph()->nodes().subspan(0, static_cast<size_t>(num_ids))) {
    if (node == nullptr || node->num_outputs() == 0) continue;
    std::vector<PartialShape>& outputs = shapes.emplace_back(node->name(), 0).second;
    for (int i = 0; i < node->num_outputs(); ++i) {
      outputs.push_back(scope.shape(Output(node.get(), i)));
    }
  }
  return shapes;
}

// What inference alone does not find again: what callers have said, and all that came of it.
Status KeepShapes(const KnownShapes& shapes, const Scope& scope) {
  for (const auto& [name, outputs] : shapes) {
    Node* const node = scope.graph()->FindNode(name);
    if (node == nullptr) return Internal("Graph: node '", name, "' must be in the graph again");
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (outputs[i].has_rank()) scope.SetShape(Output(node, static_cast<int>(i)), outputs[i]);
    }
  }
  return scope.status();
}

// Infers what is in `scope` and not in `old` once more, of the shapes that are known by now.
Status InferNew(const Scope& old, const Scope& scope) {
  if (old.graph()->num_nodes() == 0) return absl::OkStatus();
  MR_ASSIGN_OR_RETURN(const std::vector<Node*> order, TopologicalOrder(*scope.graph()));
  for (const Node* node : order) {
    if (old.graph()->FindNode(node->name()) != nullptr) continue;
    MR_RETURN_IF_ERROR(scope.refiner()->AddNode(*node));
  }
  return absl::OkStatus();
}

// What a graph of this library has exported.
Status ImportOwn(const std::shared_ptr<tensorflow::GraphDef>& def, Graph* graph) {
  ImportOptions options;
  options.allow_internal_names = true;
  return ImportGraphDef(std::move(*def), options, graph);
}

}  // namespace

Status GraphState::Edit(absl::FunctionRef<Status(const Scope&)> edit) {
  MutexLock lock(&mu_);
  MR_RETURN_IF_ERROR(broken_);
  const int num_ids = scope_.graph()->num_node_ids();
  const std::map<std::string, int> collection_sizes = SizesOf(scope_);
  Status status = NoExceptions("Graph", [&]() -> Status {
    MR_RETURN_IF_ERROR(edit(scope_));
    return scope_.status();
  });
  if (status.ok()) {
    version_.fetch_add(1, std::memory_order_release);
    return status;
  }
  const bool has_changed = scope_.graph()->num_node_ids() != num_ids || !scope_.ok() ||
                           status.code() == absl::StatusCode::kResourceExhausted;
  if (has_changed) {
    const Status back =
        NoExceptions("Graph", [&]() -> Status { return RollBack(num_ids, collection_sizes); });
    if (!back.ok()) {
      broken_ = FailedPrecondition(
          "Graph: an edit that failed must be taken back before the next, got: ", back.message());
    }
  }
  return WithoutLine(status);
}

Status GraphState::RollBack(int num_ids, const std::map<std::string, int>& collection_sizes) {
  Graph* const graph = scope_.graph();
  const KnownShapes shapes = ShapesOf(scope_, num_ids);
  // Before nodes go: those of conditionals describe them.
  auto collections = *scope_.collections();
  for (int id = graph->num_node_ids() - 1; id >= num_ids; --id) {
    Node* const node = graph->nodes()[static_cast<size_t>(id)].get();
    if (node != nullptr) graph->RemoveNode(node);
  }
  for (auto it = collections.begin(); it != collections.end();) {
    const auto known = collection_sizes.find(it->first);
    if (known == collection_sizes.end()) {
      it = collections.erase(it);
      continue;
    }
    // A collection has one kind of list.
    if (it->second.has_node_list()) Shorten(it->second.mutable_node_list(), known->second);
    if (it->second.has_bytes_list()) Shorten(it->second.mutable_bytes_list(), known->second);
    ++it;
  }
  const auto def = NewMessage<tensorflow::GraphDef>();
  graph->ToGraphDef(def.get());
  auto again = std::make_unique<Graph>();
  MR_RETURN_IF_ERROR(ImportOwn(def, again.get()));
  MR_ASSIGN_OR_RETURN(Scope fresh, Scope::ForGraph(std::move(again)));
  *fresh.collections() = std::move(collections);
  MR_RETURN_IF_ERROR(KeepShapes(shapes, fresh));
  scope_ = std::move(fresh);
  ++generation_;
  version_.fetch_add(1, std::memory_order_release);
  return absl::OkStatus();
}

Status GraphState::Read(absl::FunctionRef<Status(const Scope&)> read) {
  MutexLock lock(&mu_);
  MR_RETURN_IF_ERROR(broken_);
  return read(scope_);
}

Status GraphState::Replace(absl::FunctionRef<StatusOr<Scope>(const Scope&)> make) {
  MutexLock lock(&mu_);
  MR_RETURN_IF_ERROR(broken_);
  MR_ASSIGN_OR_RETURN(Scope made, make(scope_));
  MR_RETURN_IF_ERROR(KeepShapes(ShapesOf(scope_, scope_.graph()->num_node_ids()), made));
  MR_RETURN_IF_ERROR(InferNew(scope_, made));
  scope_ = std::move(made);
  ++generation_;
  version_.fetch_add(1, std::memory_order_release);
  return absl::OkStatus();
}

const char* GraphState::Keep(absl::string_view text) {
  MutexLock lock(&names_mu_);
  auto it = names_.find(text);
  if (it == names_.end()) it = names_.emplace(text).first;
  return it->c_str();
}

Status GraphState::CatchUp(Session* session, Position* position) {
  return Read(session, position, [](const Scope&) { return absl::OkStatus(); });
}

Status GraphState::Read(Session* session, Position* position,
                        absl::FunctionRef<Status(const Scope&)> read) {
  return NoExceptions("Graph", [&]() -> Status {
    MutexLock lock(&mu_);
    MR_RETURN_IF_ERROR(broken_);
    MR_RETURN_IF_ERROR(Show(session, position));
    return read(scope_);
  });
}

Status GraphState::Show(Session* session, Position* position) {
  const int64_t version = version_.load(std::memory_order_relaxed);
  if (position->version.load(std::memory_order_relaxed) == version) return absl::OkStatus();
  const bool goes_on = position->generation == generation_;
  const int first_id = goes_on ? position->num_ids : 0;
  if (first_id < scope_.graph()->num_node_ids()) {
    const auto def = NewMessage<tensorflow::GraphDef>();
    scope_.graph()->ToGraphDef(def.get(), first_id);
    if (def->node_size() > 0) MR_RETURN_IF_ERROR(session->Extend(*def));
  }
  position->generation = generation_;
  position->num_ids = scope_.graph()->num_node_ids();
  position->version.store(version, std::memory_order_release);
  return absl::OkStatus();
}

// --- Look-ups ------------------------------------------------------------------------------------

StatusOr<Operation> FindNode(const Scope& scope, const std::string& name, absl::string_view where) {
  Node* const node = scope.graph()->FindNode(name);
  if (node != nullptr) return Operation(node);
  return absl::NotFoundError(absl::StrCat(where, ": the graph must have node '", name,
                                          "', got none", NearestNode(*scope.graph(), name)));
}

StatusOr<Output> FindTensor(const Scope& scope, const std::string& name, absl::string_view where) {
  const StatusOr<TensorName> parsed = ParseTensorName(name);
  if (!parsed.ok()) return Prefixed(where, parsed.status());
  if (parsed->index == kControlSlot) {
    return InvalidArgument(where, ": a tensor must be 'node' or 'node:output', got '", name, "'");
  }
  MR_ASSIGN_OR_RETURN(const Operation op, FindNode(scope, parsed->node, where));
  if (parsed->index >= op.node()->num_outputs()) {
    return InvalidArgument(where, ": '", name, "' must be an output of ", op.node()->op(), " '",
                           parsed->node, "', got one that has ", op.node()->num_outputs());
  }
  return Output(op, parsed->index);
}

StatusOr<std::vector<Variable>> FindVariables(const Scope& scope,
                                              absl::Span<const std::string> names,
                                              absl::string_view where) {
  std::map<absl::string_view, Variable> known;
  std::vector<Variable> all = VariablesOf(scope, "variables");
  for (Variable& variable : VariablesOf(scope, "local_variables")) {
    all.push_back(std::move(variable));
  }
  for (const Variable& variable : all) known.emplace(variable.name, variable);
  std::vector<Variable> result;
  for (const std::string& name : names) {
    // "w:0" is how TensorFlow's programs call a variable.
    const auto found = known.find(absl::StripSuffix(name, ":0"));
    if (found == known.end()) {
      return absl::NotFoundError(absl::StrCat(where, ": the graph must have variable '", name,
                                              "', got none of its ", known.size(), " variables",
                                              NearestNode(*scope.graph(), name)));
    }
    result.push_back(found->second);
  }
  return result;
}

StatusOr<Variable> FindVariable(const Scope& scope, const std::string& name,
                                absl::string_view where) {
  MR_ASSIGN_OR_RETURN(std::vector<Variable> found, FindVariables(scope, {&name, 1}, where));
  return std::move(found[0]);
}

// --- Functions that name what they make ----------------------------------------------------------

const char* NameFor(GraphState* graph, const Operation& op) {
  return op.valid() ? graph->Keep(op.name()) : nullptr;  // the scope says why
}

const char* EditForName(MillraceGraph* graph, MillraceStatus* status, absl::string_view where,
                        absl::FunctionRef<StatusOr<Operation>(const Scope&)> edit) {
  return CallFor<const char*>(
      status, where, nullptr, [&](absl::string_view) -> StatusOr<const char*> {
        MR_ASSIGN_OR_RETURN(const GraphObject* object,
                            Handles<GraphObject>::Get(graph, where, "graph"));
        const std::shared_ptr<GraphState> state = object->state;
        const char* name = nullptr;
        MR_RETURN_IF_ERROR(state->Edit([&](const Scope& scope) -> Status {
          MR_ASSIGN_OR_RETURN(const Operation op, edit(scope));
          name = NameFor(state.get(), op);
          return absl::OkStatus();
        }));
        return name;
      });
}

namespace {

StatusOr<MillraceBuffer*> BufferOf(const google::protobuf::MessageLite& message,
                                   absl::string_view where) {
  std::string bytes = DeterministicBytes(message);
  if (bytes.empty() && message.ByteSizeLong() > 0) {
    return absl::ResourceExhaustedError(absl::StrCat(
        where, ": a message must be smaller than 2 GiB, got ", message.ByteSizeLong(), " bytes"));
  }
  return Handles<BufferObject>::New({std::move(bytes)});
}

}  // namespace
}  // namespace millrace::c_api

using namespace millrace;         // NOLINT: this file is the C face of it
using namespace millrace::c_api;  // NOLINT

// --- Graphs --------------------------------------------------------------------------------------

MillraceGraph* millrace_graph_new(MillraceStatus* status) {
  return CallFor<MillraceGraph*>(
      status, __func__, nullptr, [&](absl::string_view) -> StatusOr<MillraceGraph*> {
        return Handles<GraphObject>::New({std::make_shared<GraphState>()});
      });
}

void millrace_graph_delete(MillraceGraph* graph) { DeleteHandle<GraphObject>(graph, __func__); }

MillraceCode millrace_graph_import(MillraceGraph* graph, const void* graph_def, size_t size,
                                   const MillraceImportOptions* options, MillraceStatus* status) {
  return Call(status, __func__, [&](absl::string_view where) -> Status {
    MR_ASSIGN_OR_RETURN(const GraphObject* object,
                        Handles<GraphObject>::Get(graph, where, "graph"));
    const std::shared_ptr<GraphState> state = object->state;
    MillraceImportOptions given;
    MR_RETURN_IF_ERROR(ReadOptions(options, where, "options", &given));
    MR_ASSIGN_OR_RETURN(const auto from,
                        TextsOf(given.mapped_from, given.num_mapped, where, "options.mapped_from"));
    MR_ASSIGN_OR_RETURN(const auto to,
                        TextsOf(given.mapped_to, given.num_mapped, where, "options.mapped_to"));
    MR_ASSIGN_OR_RETURN(const auto control, TextsOf(given.control_inputs, given.num_control_inputs,
                                                    where, "options.control_inputs"));
    MR_ASSIGN_OR_RETURN(const auto def,
                        ParseMessage<tensorflow::GraphDef>(graph_def, size, where, "GraphDef"));
    return state->Replace([&](const Scope& old) -> StatusOr<Scope> {
      auto made = std::make_unique<Graph>();
      if (old.graph()->num_nodes() > 0) {
        const auto own = NewMessage<tensorflow::GraphDef>();
        old.graph()->ToGraphDef(own.get());
        MR_RETURN_IF_ERROR(ImportOwn(own, made.get()));
      }
      ImportOptions wanted;
      wanted.prefix = TextOrNone(given.prefix);
      wanted.uniquify_names = given.uniquify_names != 0;
      // The old graph tells whether names are right; the new one has the same.
      for (size_t i = 0; i < from.size(); ++i) {
        MR_ASSIGN_OR_RETURN(const Output output, FindTensor(old, to[i], where));
        OutputRef mapped;
        mapped.node = made->FindNode(output.op().name());
        mapped.index = output.index();
        wanted.input_map.emplace(from[i], mapped);
      }
      for (const std::string& name : control) {
        MR_ASSIGN_OR_RETURN(const Operation op, FindNode(old, name, where));
        wanted.control_dependencies.push_back(made->FindNode(op.name()));
      }
      MR_RETURN_IF_ERROR(ImportGraphDef(std::move(*def), wanted, made.get()));
      MR_ASSIGN_OR_RETURN(Scope scope, Scope::ForGraph(std::move(made)));
      *scope.collections() = *old.collections();
      return scope;
    });
  });
}

MillraceCode millrace_graph_import_meta(MillraceGraph* graph, const void* meta_graph_def,
                                        size_t size, MillraceStatus* status) {
  return Call(status, __func__, [&](absl::string_view where) -> Status {
    MR_ASSIGN_OR_RETURN(const GraphObject* object,
                        Handles<GraphObject>::Get(graph, where, "graph"));
    const std::shared_ptr<GraphState> state = object->state;
    MR_ASSIGN_OR_RETURN(const auto meta, ParseMessage<tensorflow::MetaGraphDef>(
                                             meta_graph_def, size, where, "MetaGraphDef"));
    return state->Replace([&](const Scope& old) -> StatusOr<Scope> {
      if (old.graph()->num_nodes() > 0) {
        return FailedPrecondition(where, ": the graph must have no nodes, got ",
                                  old.graph()->num_nodes());
      }
      return ImportMetaGraph(*meta);
    });
  });
}

MillraceBuffer* millrace_graph_export(MillraceGraph* graph, MillraceStatus* status) {
  const absl::string_view where = __func__;
  return Ask<MillraceBuffer*>(graph, status, where, nullptr, [&](GraphState*, const Scope& scope) {
    const auto def = NewMessage<tensorflow::GraphDef>();
    scope.graph()->ToGraphDef(def.get());
    return BufferOf(*def, where);
  });
}

MillraceBuffer* millrace_graph_export_meta(MillraceGraph* graph, MillraceStatus* status) {
  const absl::string_view where = __func__;
  return Ask<MillraceBuffer*>(graph, status, where, nullptr,
                              [&](GraphState*, const Scope& scope) -> StatusOr<MillraceBuffer*> {
                                MR_ASSIGN_OR_RETURN(const tensorflow::MetaGraphDef meta,
                                                    ExportMetaGraph(scope));
                                return BufferOf(meta, where);
                              });
}

MillraceStrings* millrace_graph_nodes(MillraceGraph* graph, MillraceStatus* status) {
  return Ask<MillraceStrings*>(graph, status, __func__, nullptr,
                               [](GraphState*, const Scope& scope) -> StatusOr<MillraceStrings*> {
                                 StringsObject names;
                                 for (const auto& node : scope.graph()->nodes()) {
                                   if (node != nullptr) names.strings.push_back(node->name());
                                 }
                                 return Handles<StringsObject>::New(std::move(names));
                               });
}

const char* millrace_graph_node_op(MillraceGraph* graph, const char* node, MillraceStatus* status) {
  const absl::string_view where = __func__;
  return Ask<const char*>(graph, status, where, nullptr,
                          [&](GraphState* state, const Scope& scope) -> StatusOr<const char*> {
                            MR_RETURN_IF_ERROR(CheckText(node, where, "node"));
                            MR_ASSIGN_OR_RETURN(const Operation op, FindNode(scope, node, where));
                            return state->Keep(op.node()->op());
                          });
}

MillraceStrings* millrace_graph_node_inputs(MillraceGraph* graph, const char* node,
                                            MillraceStatus* status) {
  const absl::string_view where = __func__;
  return Ask<MillraceStrings*>(
      graph, status, where, nullptr,
      [&](GraphState*, const Scope& scope) -> StatusOr<MillraceStrings*> {
        MR_RETURN_IF_ERROR(CheckText(node, where, "node"));
        MR_ASSIGN_OR_RETURN(const Operation op, FindNode(scope, node, where));
        const auto def = NewMessage<tensorflow::NodeDef>();
        scope.graph()->WriteNode(*op.node(), def.get());
        return Handles<StringsObject>::New({{def->input().begin(), def->input().end()}});
      });
}

MillraceBuffer* millrace_graph_node_def(MillraceGraph* graph, const char* node,
                                        MillraceStatus* status) {
  const absl::string_view where = __func__;
  return Ask<MillraceBuffer*>(graph, status, where, nullptr,
                              [&](GraphState*, const Scope& scope) -> StatusOr<MillraceBuffer*> {
                                MR_RETURN_IF_ERROR(CheckText(node, where, "node"));
                                MR_ASSIGN_OR_RETURN(const Operation op,
                                                    FindNode(scope, node, where));
                                const auto def = NewMessage<tensorflow::NodeDef>();
                                scope.graph()->WriteNode(*op.node(), def.get());
                                return BufferOf(*def, where);
                              });
}

int millrace_graph_node_num_outputs(MillraceGraph* graph, const char* node,
                                    MillraceStatus* status) {
  const absl::string_view where = __func__;
  return Ask<int>(graph, status, where, -1, [&](GraphState*, const Scope& scope) -> StatusOr<int> {
    MR_RETURN_IF_ERROR(CheckText(node, where, "node"));
    MR_ASSIGN_OR_RETURN(const Operation op, FindNode(scope, node, where));
    return op.node()->num_outputs();
  });
}

MillraceDType millrace_graph_dtype(MillraceGraph* graph, const char* tensor,
                                   MillraceStatus* status) {
  const absl::string_view where = __func__;
  return Ask<MillraceDType>(
      graph, status, where, 0, [&](GraphState*, const Scope& scope) -> StatusOr<MillraceDType> {
        MR_RETURN_IF_ERROR(CheckText(tensor, where, "tensor"));
        MR_ASSIGN_OR_RETURN(const Output output, FindTensor(scope, tensor, where));
        return static_cast<MillraceDType>(WithoutRef(output.dtype()));
      });
}

int millrace_graph_shape(MillraceGraph* graph, const char* tensor, int64_t* dims, int max_dims,
                         MillraceStatus* status) {
  const absl::string_view where = __func__;
  return Ask<int>(graph, status, where, -1, [&](GraphState*, const Scope& scope) -> StatusOr<int> {
    MR_RETURN_IF_ERROR(CheckText(tensor, where, "tensor"));
    MR_ASSIGN_OR_RETURN(const Output output, FindTensor(scope, tensor, where));
    return WriteShape(scope.shape(output), dims, max_dims, where);
  });
}

MillraceCode millrace_graph_set_shape(MillraceGraph* graph, const char* tensor, const int64_t* dims,
                                      int num_dims, MillraceStatus* status) {
  return Call(status, __func__, [&](absl::string_view where) -> Status {
    MR_ASSIGN_OR_RETURN(const GraphObject* object,
                        Handles<GraphObject>::Get(graph, where, "graph"));
    const std::shared_ptr<GraphState> state = object->state;
    MR_RETURN_IF_ERROR(CheckText(tensor, where, "tensor"));
    MR_ASSIGN_OR_RETURN(const PartialShape shape, PartialShapeOf(dims, num_dims, where));
    return state->Edit([&](const Scope& scope) -> Status {
      MR_ASSIGN_OR_RETURN(const Output output, FindTensor(scope, tensor, where));
      scope.SetShape(output, shape);
      return absl::OkStatus();
    });
  });
}
