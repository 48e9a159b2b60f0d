// SPDX-License-Identifier: Apache-2.0
#include "graph/scope.h"

#include <algorithm>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "core/tensor.h"
#include "graph/attr.h"
#include "graph/context_collections.h"
#include "graph/control_flow_context.h"
#include "graph/device_name.h"
#include "graph/graph.h"
#include "graph/shape_inference.h"
#include "proto/graph.pb.h"
#include "proto/meta_graph.pb.h"
#include "proto/node_def.pb.h"
#include "proto/versions.pb.h"

namespace millrace {
namespace {

constexpr absl::string_view kColocationPrefix = "loc:@";

}  // namespace

Operation::Operation(Node* node)
    : node_(node == nullptr ? nullptr
                            : std::shared_ptr<Node>(node->graph()->weak_from_this().lock(), node)) {
}

Operation::Operation(const Operation& other) = default;
Operation& Operation::operator=(const Operation& other) = default;
Operation& Operation::operator=(Operation&& other) noexcept = default;
Operation::~Operation() = default;

std::string Operation::name() const { return valid() ? node_->name() : std::string(); }

DType Output::dtype() const { return valid() ? node()->output_type(index_) : DT_INVALID; }

std::string Output::name() const {
  return valid() ? TensorNameString(*node(), index_) : std::string();
}

// What all scopes of one root share.
struct ScopeState {
  ScopeState(std::shared_ptr<Graph> g, ConstantEvaluator* evaluator)
      : graph(std::move(g)), refiner(evaluator) {}

  // Marks `name` as used and returns it, with a suffix when it was used before.
  std::string Unique(absl::string_view name) {
    std::string lower = absl::AsciiStrToLower(name);
    // The entry of the name itself counts the suffixes tried: a second "x" costs one look-up.
    int& used = names[lower];
    if (used == 0 && !graph->HasNameIgnoringCase(lower)) {
      used = 1;
      return std::string(name);
    }
    int suffix = std::max(used, 1);
    std::string candidate;
    do {
      candidate = absl::StrCat(lower, "_", suffix++);
    } while (names.contains(candidate) || graph->HasNameIgnoringCase(candidate));
    used = suffix;
    names.emplace(std::move(candidate), 1);  // `used` is not valid from here on
    return absl::StrCat(name, "_", suffix - 1);
  }

  const std::shared_ptr<Graph> graph;  // also of the outputs that builders returned
  ShapeRefiner refiner;
  Status status;
  // Lower-case names of nodes and scopes -> next suffix.
  absl::flat_hash_map<std::string, int> names;
  std::map<std::string, tensorflow::CollectionDef> collections;
  std::optional<int64_t> graph_seed;
  bool finalized = false;
  // Of the body of a function.
  std::function<StatusOr<Output>(const Output&)> capture;
  int function_depth = 0;

  std::vector<std::unique_ptr<ControlFlowContext>> contexts;
  absl::flat_hash_map<const Node*, ControlFlowContext*> context_of;  // of those inside of one
  ContextCollections context_collections;
};

Scope::Scope() : Scope(static_cast<ConstantEvaluator*>(nullptr)) {}
Scope::Scope(ConstantEvaluator* evaluator)
    : Scope(std::make_shared<ScopeState>(std::make_shared<Graph>(), evaluator)) {}
Scope::Scope(std::shared_ptr<ScopeState> shared)
    : shared_(std::move(shared)), here_(std::make_shared<ScopeHome>()), home_(here_) {
  shared_->graph->set_scope(shared_);
}
Scope::Scope(const Scope& other) = default;
Scope::Scope(Scope&& other) noexcept = default;
Scope& Scope::operator=(const Scope& other) = default;
Scope& Scope::operator=(Scope&& other) noexcept = default;
Scope::~Scope() = default;

StatusOr<Scope> Scope::ForGraph(std::unique_ptr<Graph> graph, ConstantEvaluator* evaluator) {
  auto shared = std::make_shared<ScopeState>(std::shared_ptr<Graph>(std::move(graph)), evaluator);
  MR_ASSIGN_OR_RETURN(std::vector<Node*> order, TopologicalOrder(*shared->graph));
  for (const Node* node : order) {
    MR_RETURN_IF_ERROR(shared->refiner.AddNode(*node));
    // The scopes that hold the node are taken, too.
    const std::string lower = absl::AsciiStrToLower(node->name());
    for (size_t slash = lower.find('/'); slash != std::string::npos;
         slash = lower.find('/', slash + 1)) {
      shared->names.emplace(lower.substr(0, slash), 1);
    }
    shared->names.emplace(lower, 1);
  }
  return Scope(std::move(shared));
}

Scope Scope::ForFunction(const Scope& outer,
                         std::function<StatusOr<Output>(const Output&)> capture) {
  Scope result(outer.refiner()->evaluator());
  result.graph()->set_library(outer.graph()->shared_library());
  *result.graph()->mutable_versions() = outer.graph()->versions();
  result.shared_->graph_seed = outer.graph_seed();
  result.shared_->capture = std::move(capture);
  result.shared_->function_depth = outer.function_depth() + 1;
  return result;
}

int Scope::function_depth() const { return shared_->function_depth; }

StatusOr<Output> Scope::Captured(const Output& tensor) const {
  if (shared_->capture != nullptr) return shared_->capture(tensor);
  return InvalidArgument("must be of the same graph, got '", tensor.name(), "' of another");
}

Scope Scope::At(ScopeHome place) const {
  Scope result = *this;
  result.here_ = std::make_shared<const ScopeHome>(std::move(place));
  if (!home_is_fixed_) result.home_ = result.here_;
  return result;
}

Scope Scope::WithSubScope(absl::string_view name) const {
  Scope result =
      At({absl::EndsWith(name, "/") ? std::string(name) : UniqueName(name) + "/", here_->devices});
  result.next_name_.clear();
  return result;
}

Scope Scope::WithName(absl::string_view name) const {
  Scope result = *this;
  result.next_name_ = std::string(name);
  return result;
}

Scope Scope::WithRootPrefix() const {
  Scope result = At({"", here_->devices});
  result.home_ = home_;
  result.next_name_.clear();
  return result;
}

Scope Scope::CompositeScope(absl::string_view default_name) const {
  Scope result = WithSubScope(RequestedName(default_name));
  result.home_ = home_;
  result.home_is_fixed_ = true;
  return result;
}

Scope Scope::WithDevice(absl::string_view device) const {
  ScopeHome place = *here_;
  if (device.empty()) {
    place.devices.clear();
  } else {
    place.devices.emplace_back(std::string(device), nullptr);
  }
  return At(std::move(place));
}

Scope Scope::WithDevice(DeviceFunction function) const {
  if (!function) return *this;
  ScopeHome place = *here_;
  place.devices.emplace_back(std::string(), std::move(function));
  return At(std::move(place));
}

Scope Scope::BuiltAt(std::source_location where) const {
  Scope result = *this;
  result.built_at_ = where;
  return result;
}

std::optional<Scope> Scope::HomeOf(const Output& output) {
  if (!output.valid()) return std::nullopt;
  const Graph* const graph = output.node()->graph();
  std::shared_ptr<ScopeState> shared = graph->scope();
  if (shared == nullptr) return std::nullopt;
  Scope result(std::move(shared));
  if (output.node()->home() != nullptr) {
    result.here_ =
        std::shared_ptr<const ScopeHome>(graph->shared_from_this(), output.node()->home());
    result.home_ = result.here_;
  }
  result.context_ = result.ContextOf(*output.node());
  return result;
}

// --- Branches and loops --------------------------------------------------------------------------

Scope Scope::InContext(ControlFlowContext* context) const {
  Scope result = *this;
  result.context_ = context;
  result.home_ = result.here_;
  result.home_is_fixed_ = false;
  return result;
}

Scope Scope::AcrossBranches() const {
  Scope result = *this;
  result.across_branches_ = true;
  return result;
}

bool Scope::UsesAsTheyAre(ControlFlowContext* context) const {
  return context == context_ ||
         (across_branches_ && LoopOf(context) == LoopOf(context_) && Reaches(context, context_));
}

Scope Scope::OutsideControlFlow() const {
  if (context_ == nullptr) return *this;
  Scope result = *this;
  result.context_ = nullptr;
  result.control_.clear();
  return result;
}

bool Scope::has_contexts() const { return !shared_->contexts.empty(); }

void Scope::OwnContext(std::unique_ptr<ControlFlowContext> context) const {
  shared_->contexts.push_back(std::move(context));
}

ControlFlowContext* Scope::ContextOf(const Node& node) const {
  const auto it = shared_->context_of.find(&node);
  return it == shared_->context_of.end() ? nullptr : it->second;
}

void Scope::SetContextOf(const Node& node, ControlFlowContext* context) const {
  if (context == nullptr) {
    shared_->context_of.erase(&node);
  } else {
    shared_->context_of[&node] = context;
  }
}

ControlFlowContext* Scope::FindContext(absl::string_view name) const {
  for (const auto& context : shared_->contexts) {
    if (context->name() == name) return context.get();
  }
  return nullptr;
}

StatusOr<Output> Scope::Adopted(const Output& tensor, absl::string_view op,
                                const std::source_location& where) const {
  ControlFlowContext* const of = ContextOf(*tensor.node());
  if (UsesAsTheyAre(of)) return tensor;
  if (context_ == nullptr) {
    return InvalidArgument("must be outside of all branches and loops, got '", tensor.name(),
                           "' of ", of->Title(),
                           "; build with the Scope that the branch or body was given, or return "
                           "the tensor from it");
  }
  const Scope inside =
      WithoutControlDependencies().BuiltAt(where).WithSubScope(absl::StrCat(AskedName(op), "/"));
  return context_->Adopt(inside, tensor);
}

StatusOr<Operation> Scope::AdoptedControl(const Operation& operation, absl::string_view op,
                                          const std::source_location& where) const {
  ControlFlowContext* const of = ContextOf(*operation.node());
  if (LoopOf(of) == LoopOf(context_)) return operation;
  if (context_ == nullptr) {
    return InvalidArgument("must be outside of all loops, got '", operation.name(), "' of ",
                           of->Title());
  }
  const Scope inside =
      WithoutControlDependencies().BuiltAt(where).WithSubScope(absl::StrCat(AskedName(op), "/"));
  return context_->AdoptControl(inside, operation);
}

Scope Scope::WithControlDependencies(absl::Span<const Operation> operations) const {
  Scope result = *this;
  for (const Operation& operation : operations) {
    if (operation.valid() && std::find(result.control_.begin(), result.control_.end(), operation) ==
                                 result.control_.end()) {
      result.control_.push_back(operation);
    }
  }
  return result;
}

Scope Scope::WithoutControlDependencies() const {
  Scope result = *this;
  result.control_.clear();
  return result;
}

Scope Scope::ColocatedWith(Operation operation) const {
  Scope result = *this;
  result.colocated_ = operation;
  return result;
}

void Scope::SetGraphSeed(int64_t seed) const { shared_->graph_seed = seed; }
std::optional<int64_t> Scope::graph_seed() const { return shared_->graph_seed; }
Graph* Scope::graph() const { return shared_->graph.get(); }
ShapeRefiner* Scope::refiner() const { return &shared_->refiner; }
Status Scope::status() const { return shared_->status; }
bool Scope::ok() const { return shared_->status.ok(); }

void Scope::UpdateStatus(const Status& status, std::source_location where) const {
  if (status.ok() || !shared_->status.ok()) return;
  shared_->status =
      Suffixed(status, absl::StrCat("; built at ", where.file_name(), ":", where.line()));
}

PartialShape Scope::shape(Output output) const {
  return output.valid() ? shared_->refiner.OutputShape(*output.node(), output.index())
                        : PartialShape();
}

void Scope::SetShape(Output output, const PartialShape& shape, std::source_location where) const {
  if (!ok()) return;
  if (!output.valid()) {
    UpdateStatus(
        absl::InvalidArgumentError("SetShape: output must be a tensor, got an invalid one"), where);
    return;
  }
  UpdateStatus(shared_->refiner.MergeOutputShape(*output.node(), output.index(), shape),
               ScopeAt(*this, where).where);
}

StatusOr<Output> Scope::Find(absl::string_view tensor) const {
  MR_ASSIGN_OR_RETURN(const TensorName name, ParseTensorName(tensor));
  if (name.index == kControlSlot) {
    return InvalidArgument("Find: tensor '", tensor,
                           "' must be 'node' or 'node:index', got a control edge");
  }
  Node* const node = graph()->FindNode(name.node);
  if (node == nullptr) {
    return absl::NotFoundError(absl::StrCat(
        "Find: tensor '", tensor, "' must be of the graph, got no node '", name.node, "'"));
  }
  if (name.index >= node->num_outputs()) {
    return absl::NotFoundError(absl::StrCat("Find: tensor '", tensor,
                                            "' must be of the graph, got a node with ",
                                            node->num_outputs(), " outputs"));
  }
  return Output(node, name.index);
}

const Tensor* Scope::constant_value(Output output) const {
  return output.valid() ? shared_->refiner.ConstantValue(*output.node(), output.index()) : nullptr;
}

std::map<std::string, tensorflow::CollectionDef>* Scope::collections() const {
  if (has_contexts()) {
    shared_->context_collections.Update(*shared_->graph, shared_->contexts, shared_->context_of,
                                        &shared_->collections);
  }
  return &shared_->collections;
}

void Scope::AddToNodeCollection(absl::string_view key, absl::string_view name) const {
  shared_->collections[std::string(key)].mutable_node_list()->add_value(std::string(name));
}

void Scope::AddToBytesCollection(absl::string_view key, std::string bytes) const {
  shared_->collections[std::string(key)].mutable_bytes_list()->add_value(std::move(bytes));
}

std::string Scope::UniqueName(absl::string_view op_name) const {
  return shared_->Unique(absl::StrCat(prefix(), op_name));
}

StatusOr<tensorflow::GraphDef> Scope::ToGraphDef() const {
  MR_RETURN_IF_ERROR(shared_->status);
  tensorflow::GraphDef def;
  shared_->graph->ToGraphDef(&def);
  return def;
}

void Scope::Finalize() const { shared_->finalized = true; }

bool Scope::MayBuild(std::source_location where) const {
  if (!ok()) return false;
  if (shared_->finalized) {
    UpdateStatus(absl::FailedPreconditionError("Graph is finalized and cannot be modified."),
                 where);
  }
  return ok();
}

std::string Scope::AskedName(absl::string_view op) const {
  if (next_name_.empty()) return absl::StrCat(prefix(), op);
  absl::string_view name = next_name_;
  return absl::ConsumeSuffix(&name, "/") ? std::string(name) : absl::StrCat(prefix(), name);
}

Status Scope::Prepare(bool own_device, tensorflow::NodeDef* def) const {
  def->set_name(absl::EndsWith(next_name_, "/") ? AskedName(def->op())
                                                : shared_->Unique(AskedName(def->op())));
  // First: device functions see with whom the node stands.
  if (colocated_.valid()) {
    // A node that is itself colocated stands for its whole group.
    std::vector<std::string> groups;
    if (HasAttr(*colocated_.node(), "_class")) {
      MR_ASSIGN_OR_RETURN(groups, GetAttr<std::vector<std::string>>(*colocated_.node(), "_class"));
    }
    groups.erase(std::remove_if(
                     groups.begin(), groups.end(),
                     [](const std::string& g) { return !absl::StartsWith(g, kColocationPrefix); }),
                 groups.end());
    if (groups.empty()) groups.push_back(absl::StrCat(kColocationPrefix, colocated_.name()));
    if (HasAttr(*def, "_class")) {
      MR_ASSIGN_OR_RETURN(std::vector<std::string> own,
                          GetAttr<std::vector<std::string>>(*def, "_class"));
      groups.insert(groups.end(), own.begin(), own.end());
    }
    std::sort(groups.begin(), groups.end());
    groups.erase(std::unique(groups.begin(), groups.end()), groups.end());
    SetAttr(groups, &(*def->mutable_attr())["_class"]);
  }
  if (!own_device) {
    // From the innermost scope to the outermost: what is inside wins.
    for (auto it = here_->devices.rbegin(); it != here_->devices.rend(); ++it) {
      const auto& [device, function] = *it;
      if (function) {
        def->set_device(function(*def));
      } else {
        StatusOr<std::string> merged = MergeDeviceNames(device, def->device());
        if (!merged.ok()) {
          return Prefixed(absl::StrCat(def->op(), " '", def->name(), "'"), merged.status());
        }
        def->set_device(*merged);
      }
    }
  }
  if (!own_device && colocated_.valid() && !colocated_.node()->requested_device().empty()) {
    def->set_device(colocated_.node()->requested_device());
  }
  return absl::OkStatus();
}

}  // namespace millrace
