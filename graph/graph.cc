// SPDX-License-Identifier: Apache-2.0
#include "graph/graph.h"

#include <algorithm>
#include <atomic>
#include <queue>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "core/hash_table.h"
#include "core/new_message.h"
#include "core/tensor.h"
#include "graph/function_library.h"
#include "graph/missing_op_hint.h"
#include "proto/attr_value.pb.h"
#include "proto/graph.pb.h"
#include "proto/node_def.pb.h"
#include "proto/op_def.pb.h"
#include "proto/versions.pb.h"

namespace millrace {

struct ScopeHome;  // graph/scope.h, which builds on this: only its address is looked at

namespace {

std::atomic<int64_t> next_graph_id{1};  // relaxed: hands out numbers

using tensorflow::NodeDef;
using tensorflow::OpDef;

std::atomic<int64_t> attr_validations{0};  // relaxed: a count

// The output types of an unknown op, however many edges have given it.
constexpr DType kUnknownOutputs[kMaxUnknownOutputs] = {};
static_assert(DType{} == DT_INVALID);

// See EdgesVisitedForTesting.
constinit thread_local int64_t edges_visited = 0;

std::string Where(const Node& node) { return absl::StrCat(node.op(), " '", node.name(), "'"); }

bool IsLoopNode(const Node& node) {
  return node.is_enter() || node.is_exit() || node.is_next_iteration() || node.is_loop_cond();
}

// "base_12" -> "base", 12. False when the name has no such suffix.
bool SplitSuffix(absl::string_view name, absl::string_view* base, int* suffix) {
  const size_t underscore = name.rfind('_');
  if (underscore == absl::string_view::npos || underscore + 1 == name.size()) return false;
  absl::string_view digits = name.substr(underscore + 1);
  if (digits[0] == '0' || digits.size() > 9 ||
      !std::all_of(digits.begin(), digits.end(),
                   [](char c) { return absl::ascii_isdigit(static_cast<unsigned char>(c)); }) ||
      !absl::SimpleAtoi(digits, suffix)) {
    return false;
  }
  *base = name.substr(0, underscore);
  return true;
}

// The types of the tensors that `arg` stands for.
Status AppendArgTypes(const NodeDef& node, const OpDef::ArgDef& arg, std::vector<DType>* types) {
  auto wrap = [&](DType type) { return arg.is_ref() ? RefOf(type) : type; };
  if (!arg.type_list_attr().empty()) {
    MR_ASSIGN_OR_RETURN(std::vector<DType> list,
                        GetAttr<std::vector<DType>>(node, arg.type_list_attr()));
    for (DType type : list) {
      if (type == DT_INVALID) {
        return absl::InvalidArgumentError(absl::StrCat(node.op(), " '", node.name(), "': attr '",
                                                       arg.type_list_attr(),
                                                       "' must hold types, got DT_INVALID"));
      }
      types->push_back(wrap(type));
    }
    return absl::OkStatus();
  }
  MR_ASSIGN_OR_RETURN(const int count, ArgSize(node, arg));
  DType type = static_cast<DType>(arg.type());
  if (!arg.type_attr().empty()) {
    MR_ASSIGN_OR_RETURN(type, GetAttr<DType>(node, arg.type_attr()));
  }
  if (type == DT_INVALID) {
    return absl::InvalidArgumentError(absl::StrCat(node.op(), " '", node.name(), "': argument '",
                                                   arg.name(), "' must have a type, got none"));
  }
  types->insert(types->end(), static_cast<size_t>(count), wrap(type));
  return absl::OkStatus();
}

// The next push_back allocates nothing.
template <typename T>
void ReserveRoomForOne(std::vector<T>* items) {
  if (items->size() == items->capacity()) items->reserve(std::max<size_t>(1, 2 * items->size()));
}

std::string Plural(int n, absl::string_view noun) {
  return absl::StrCat(n, " ", noun, n == 1 ? "" : "s");
}

// Whether input `dst_input`, which is in range, may read that output.
Status CheckEdge(const Node& src, int src_output, const Node& dst, int dst_input) {
  const bool src_is_known = src.op_entry() != nullptr;
  if (src_output < 0 || src_output >= (src_is_known ? src.num_outputs() : kMaxUnknownOutputs)) {
    return absl::InvalidArgumentError(
        absl::StrCat(Where(dst), ": input ", dst_input, " refers to '", src.name(), ":", src_output,
                     "', but '", src.name(), "' has ", Plural(src.num_outputs(), "output")));
  }
  if (src_output >= src.num_outputs()) return absl::OkStatus();
  const DType from = src.output_type(src_output);
  const DType to = dst.input_type(dst_input);
  const bool agree = from == DT_INVALID || to == DT_INVALID || from == to ||
                     (IsRef(from) && WithoutRef(from) == to);
  if (agree) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(Where(dst), ": input ", dst_input, " must be ", DTypeName(to), ", got ",
                   DTypeName(from), " from '", TensorNameString(src, src_output), "'"));
}

}  // namespace

int64_t EdgesVisitedForTesting() { return edges_visited; }

bool IsLegalNodeName(absl::string_view name, bool internal) {
  if (name.empty()) return false;
  auto alnum = [](char c) { return absl::ascii_isalnum(static_cast<unsigned char>(c)); };
  if (!alnum(name[0]) && name[0] != '.' && !(internal && name[0] == '_')) return false;
  return std::all_of(name.begin() + 1, name.end(), [&](char c) {
    return alnum(c) || c == '_' || c == '.' || c == '/' || c == '-';
  });
}

int64_t AttrValidationsForTesting() { return attr_validations.load(std::memory_order_relaxed); }

Status ValidateNodeAttrs(const NodeDef& node, const OpDef& op) {
  attr_validations.fetch_add(1, std::memory_order_relaxed);
  for (const OpDef::AttrDef& rule : op.attr()) {
    auto it = node.attr().find(rule.name());
    if (it != node.attr().end()) {
      MR_RETURN_IF_ERROR(ValidateAttrValue(rule, it->second));
    } else if (!rule.has_default_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat("attr '", rule.name(), "' must be given (", rule.type(), "), got none"));
    }
  }
  return absl::OkStatus();
}

// --- EdgeList ------------------------------------------------------------------------------------

template <typename Item>
void EdgeList<Item>::ReserveOneMore() {
  ReserveRoomForOne(&items_);
}

template <typename Item>
template <typename Moved>
void EdgeList<Item>::Remove(uint32_t place, Moved moved) {
  ++edges_visited;
  items_[place] = Item{};
  ++num_holes_;
  if (num_holes_ <= items_.size() / 2) return;
  uint32_t kept = 0;
  for (const Item& item : items_) {
    ++edges_visited;
    if (IsHole(item)) continue;
    moved(item, kept);
    items_[kept++] = item;
  }
  items_.resize(kept, Item{});
  num_holes_ = 0;
}

// --- Node ----------------------------------------------------------------------------------------

Node::Node(Graph* graph, int id, std::string name, std::shared_ptr<const NodeBody> body)
    : graph_(graph),
      id_(id),
      num_outputs_(static_cast<int>(body->output_types().size())),
      name_(std::move(name)),
      body_(std::move(body)),
      requested_device_(graph->Text("")),
      assigned_device_(requested_device_),
      built_at_(requested_device_),
      inputs_(body_->input_types().size()) {}

absl::Span<const DType> Node::output_types() const {
  return op_entry() != nullptr
             ? body_->output_types()
             : absl::MakeConstSpan(kUnknownOutputs, static_cast<size_t>(num_outputs_));
}

void Node::set_requested_device(absl::string_view device) {
  requested_device_ = graph_->Text(device);
}
void Node::set_assigned_device(absl::string_view device) {
  assigned_device_ = graph_->Text(device);
}
void Node::set_built_at(absl::string_view where) { built_at_ = graph_->Text(where); }
void Node::set_home(const std::shared_ptr<const ScopeHome>& home) {
  home_ = graph_->KeepHome(home);
}

bool Node::is_stateful() const { return op_entry() != nullptr && op_entry()->def.is_stateful(); }

void Node::EditAttr(absl::string_view name, absl::FunctionRef<void(tensorflow::AttrValue*)> edit) {
  body_ = body_->WithAttr(name, edit);
}

std::string RegisteredSince(const Node& node) {
  return node.op_entry() == nullptr && LookUpOp(node.op()) != nullptr
             ? "; add the node again: its op has been registered since"
             : "";
}

std::string MissingOpHint(const Node& node) {
  if (node.op_entry() != nullptr) return "";
  std::string since = RegisteredSince(node);
  return since.empty() ? kMissingOpHint : since;
}

NamedAttrs::NamedAttrs(const Node& node) : attrs_(node.attrs()) {
  if (node.body()->value() != nullptr) return;
  named_ = NewMessage<NodeDef>();
  *named_ = node.def();
  named_->set_name(node.name());
  named_->set_device(node.requested_device());
  attrs_ = NodeAttrs(named_.get());
}

// --- Graph ---------------------------------------------------------------------------------------

// Names as UniqueName sees them: in lower case.
struct Graph::NamesIgnoringCase {
  void Add(absl::string_view name) {
    const std::string lower = absl::AsciiStrToLower(name);
    ++count[lower];
    absl::string_view base;
    int suffix = 0;
    if (!SplitSuffix(lower, &base, &suffix)) return;
    auto it = next_suffix.find(base);
    if (it == next_suffix.end()) {
      if (suffix == 1) next_suffix[std::string(base)] = 2;
    } else if (it->second == suffix) {
      ++it->second;
    }
  }
  void Remove(absl::string_view name) {
    const std::string lower = absl::AsciiStrToLower(name);
    auto it = count.find(lower);
    if (--it->second > 0) return;
    count.erase(it);
    absl::string_view base;
    int suffix = 0;
    if (!SplitSuffix(lower, &base, &suffix)) return;
    if (auto next = next_suffix.find(base); next != next_suffix.end()) {
      next->second = std::min(next->second, suffix);
    }
  }

  HashMap<std::string, int> count;  // how many nodes have the name
  // For a base name: base_1 ... base_(n-1) are taken, so UniqueName starts at n.
  HashMap<std::string, int> next_suffix;
};

// What is looked up by key.
struct Graph::Tables {
  HashMap<absl::string_view, Node*> by_name;  // the keys are the nodes' names
  HashMap<absl::string_view, std::unique_ptr<const std::string>> texts;
  HashMap<const ScopeHome*, std::shared_ptr<const ScopeHome>> homes;  // of nodes
  // (source, destination) of every control edge -> its place among the control inputs there.
  HashMap<std::pair<const Node*, const Node*>, uint32_t> control_edges;
};

Graph::Graph()
    : id_(next_graph_id.fetch_add(1, std::memory_order_relaxed)),
      tables_(std::make_unique<Tables>()),
      versions_(std::make_unique<tensorflow::VersionDef>()),
      library_(FunctionLibrary::Empty()) {
  versions_->set_producer(kGraphVersion);
  versions_->set_min_consumer(0);
}
Graph::~Graph() = default;

const ScopeHome* Graph::KeepHome(const std::shared_ptr<const ScopeHome>& home) {
  tables_->homes.try_emplace(home.get(), home);
  return home.get();
}

const std::string* Graph::Text(absl::string_view text) {
  if (last_text_ != nullptr && *last_text_ == text) return last_text_;
  auto it = tables_->texts.find(text);
  if (it == tables_->texts.end()) {
    auto owned = std::make_unique<const std::string>(text);
    const absl::string_view key = *owned;
    it = tables_->texts.emplace(key, std::move(owned)).first;
  }
  return last_text_ = it->second.get();
}

void Graph::set_library(std::shared_ptr<const FunctionLibrary> library) {
  library_ = std::move(library);
  bodies_.set_functions(library_.get());
}

void Graph::TakeVersionsAndLibrary(const Graph& from) {
  *versions_ = *from.versions_;
  set_library(from.library_);
}

Graph::NamesIgnoringCase* Graph::names_ignoring_case() {
  if (names_ignoring_case_ == nullptr) {
    auto names = std::make_unique<NamesIgnoringCase>();
    for (const auto& node : nodes_) {
      if (node != nullptr) names->Add(node->name());
    }
    names_ignoring_case_ = std::move(names);
  }
  return names_ignoring_case_.get();
}

void Graph::NoteName(absl::string_view name, bool added) {
  if (names_ignoring_case_ == nullptr) return;
  try {
    added ? names_ignoring_case_->Add(name) : names_ignoring_case_->Remove(name);
  } catch (...) {
    names_ignoring_case_ = nullptr;
  }
}

StatusOr<Node*> Graph::AddNode(const NodeDef& def) {
  return AddNode(def, static_cast<const Tensor*>(nullptr));
}

StatusOr<Node*> Graph::AddConst(const NodeDef& def, const Tensor& value) {
  return AddNode(def, &value);
}

StatusOr<Node*> Graph::AddNode(const NodeDef& def, const Tensor* value) {
  auto where = [&def] { return absl::StrCat(def.op(), " '", def.name(), "'"); };
  if (!IsLegalNodeName(def.name(), /*internal=*/true)) {
    return absl::InvalidArgumentError(absl::StrCat(
        where(),
        ": node name must be letters, digits and any of '_./-' and not begin with '/' or "
        "'-', got '",
        def.name(), "'"));
  }
  if (def.op().empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("node '", def.name(), "': op must be given, got none"));
  }
  if (tables_->by_name.contains(def.name())) {
    return absl::InvalidArgumentError(
        absl::StrCat(where(), ": node name must be unique, got a second node of this name"));
  }
  StatusOr<std::shared_ptr<const NodeBody>> body =
      value != nullptr
          ? bodies_.MakeConst(def, *value)
          : bodies_.Make(def, nullptr, [](const NodeDef&) { return absl::OkStatus(); });
  if (!body.ok()) {
    const std::string self = where();
    return absl::StartsWith(body.status().message(), self) ? body.status()
                                                           : Prefixed(self, body.status());
  }
  const std::string* const device = Text(def.device());
  Node* const node = Insert(def.name(), *std::move(body));
  node->requested_device_ = device;
  return node;
}

StatusOr<Node*> Graph::AddNode(absl::string_view name, std::shared_ptr<const NodeBody> body) {
  if (tables_->by_name.contains(name)) {
    return absl::InvalidArgumentError(absl::StrCat(
        body->op(), " '", name, "': node name must be unique, got a second node of this name"));
  }
  return Insert(std::string(name), std::move(body));
}

Node* Graph::Insert(std::string name, std::shared_ptr<const NodeBody> body) {
  std::unique_ptr<Node> made(new Node(this, num_node_ids(), std::move(name), std::move(body)));
  Node* const node = made.get();
  ReserveRoomForOne(&nodes_);
  tables_->by_name.emplace(node->name(), node);
  nodes_.push_back(std::move(made));
  NoteName(node->name(), /*added=*/true);
  ++num_nodes_;
  num_loop_nodes_ += IsLoopNode(*node);
  return node;
}

Status Graph::ReplaceBody(Node* node, std::shared_ptr<const NodeBody> body) {
  const absl::Span<const DType> inputs = body->input_types(), outputs = body->output_types();
  const absl::Span<const DType> old = node->output_types();
  if (inputs != node->input_types() || outputs.size() < old.size() ||
      !std::equal(old.begin(), old.end(), outputs.begin())) {
    return InvalidArgument(Where(*node), ": must keep the types of its inputs and outputs, got ",
                           body->op(), " with others");
  }
  num_loop_nodes_ -= IsLoopNode(*node);
  node->body_ = std::move(body);
  node->num_outputs_ = static_cast<int>(outputs.size());
  num_loop_nodes_ += IsLoopNode(*node);
  return absl::OkStatus();
}

void Graph::ReserveNodes(int count) {
  // Exact room for a few more would have to be made again for the next few.
  if (static_cast<size_t>(count) < nodes_.size()) return;
  nodes_.reserve(nodes_.size() + static_cast<size_t>(count));
  tables_->by_name.reserve(tables_->by_name.size() + static_cast<size_t>(count));
}

void Graph::RemoveOutEdge(Node* src, uint32_t at) {
  src->out_edges_.Remove(at, [](const Edge& edge, uint32_t place) {
    if (edge.is_control()) {
      edge.dst->control_inputs_.at(edge.control_at).edge_at = place;
    } else {
      edge.dst->inputs_[static_cast<size_t>(edge.dst_input)].edge_at = place;
    }
  });
}

void Graph::RemoveControlInput(Node* dst, uint32_t at) {
  tables_->control_edges.erase({dst->control_inputs_.at(at).node, dst});
  dst->control_inputs_.Remove(at, [this, dst](const ControlInput& input, uint32_t place) {
    input.node->out_edges_.at(input.edge_at).control_at = place;
    tables_->control_edges[{input.node, dst}] = place;
  });
}

void Graph::RemoveControlEdge(Node* src, Node* dst) {
  const auto edge = tables_->control_edges.find({src, dst});
  if (edge == tables_->control_edges.end()) return;
  const uint32_t at = edge->second;
  RemoveOutEdge(src, dst->control_inputs_.at(at).edge_at);
  RemoveControlInput(dst, at);
}

void Graph::RemoveNode(Node* node) {
  // By index: closing up a neighbour's list moves the places that are noted here.
  for (size_t i = 0; i < node->inputs_.size(); ++i) {
    const OutputRef input = node->inputs_[i];
    if (input.node != nullptr && input.node != node) RemoveOutEdge(input.node, input.edge_at);
  }
  for (size_t i = 0; i < node->control_inputs_.places().size(); ++i) {
    const ControlInput input = node->control_inputs_.places()[i];
    if (IsHole(input)) continue;
    tables_->control_edges.erase({input.node, node});
    if (input.node != node) RemoveOutEdge(input.node, input.edge_at);
  }
  for (size_t i = 0; i < node->out_edges_.places().size(); ++i) {
    const Edge edge = node->out_edges_.places()[i];
    ++edges_visited;
    if (IsHole(edge) || edge.dst == node) continue;
    if (edge.is_control()) {
      RemoveControlInput(edge.dst, edge.control_at);
    } else {
      edge.dst->inputs_[static_cast<size_t>(edge.dst_input)] = OutputRef();
    }
  }
  NoteName(node->name(), /*added=*/false);
  tables_->by_name.erase(node->name());
  --num_nodes_;
  num_loop_nodes_ -= IsLoopNode(*node);
  nodes_[static_cast<size_t>(node->id_)].reset();
}

Status Graph::AddEdge(Node* src, int src_output, Node* dst, int dst_input) {
  if (src_output == kControlSlot && dst_input == kControlSlot) {
    AddControlEdge(src, dst);
    return absl::OkStatus();
  }
  if (dst_input < 0 || dst_input >= dst->num_inputs()) {
    return absl::InvalidArgumentError(absl::StrCat(Where(*dst), ": has ",
                                                   Plural(dst->num_inputs(), "input"),
                                                   ", got an edge to input ", dst_input));
  }
  if (const OutputRef& input = dst->input(dst_input); input.node != nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(Where(*dst), ": input ", dst_input, " must have one source, got '",
                     TensorNameString(*input.node, input.index), "' and '",
                     TensorNameString(*src, src_output), "'"));
  }
  MR_RETURN_IF_ERROR(CheckEdge(*src, src_output, *dst, dst_input));
  Connect(src, src_output, dst, dst_input);
  return absl::OkStatus();
}

void Graph::Connect(Node* src, int src_output, Node* dst, int dst_input) {
  EdgeList<Edge>& edges = src->out_edges_;
  edges.Add(Edge{src, src_output, dst, dst_input});
  src->num_outputs_ = std::max(src->num_outputs_, src_output + 1);
  dst->inputs_[static_cast<size_t>(dst_input)] =
      OutputRef{src, src_output, static_cast<uint32_t>(edges.places().size() - 1)};
}

void Graph::AddControlEdge(Node* src, Node* dst) {
  const uint32_t at = static_cast<uint32_t>(dst->control_inputs_.places().size());
  dst->control_inputs_.ReserveOneMore();
  src->out_edges_.ReserveOneMore();
  if (!tables_->control_edges.try_emplace({src, dst}, at).second) return;
  dst->control_inputs_.Add(
      ControlInput{src, static_cast<uint32_t>(src->out_edges_.places().size())});
  src->out_edges_.Add(Edge{src, kControlSlot, dst, kControlSlot, at});
}

Status Graph::UpdateInput(Node* dst, int dst_input, Node* src, int src_output) {
  if (dst_input < 0 || dst_input >= dst->num_inputs()) {
    return AddEdge(src, src_output, dst, dst_input);  // tells what is wrong
  }
  MR_RETURN_IF_ERROR(CheckEdge(*src, src_output, *dst, dst_input));
  const OutputRef old = dst->input(dst_input);
  Connect(src, src_output, dst, dst_input);
  if (old.node != nullptr) RemoveOutEdge(old.node, old.edge_at);
  return absl::OkStatus();
}

Node* Graph::FindNode(absl::string_view name) const {
  auto it = tables_->by_name.find(name);
  return it == tables_->by_name.end() ? nullptr : it->second;
}

bool Graph::HasNameIgnoringCase(absl::string_view name) {
  return names_ignoring_case()->count.contains(absl::AsciiStrToLower(name));
}

std::string Graph::UniqueName(absl::string_view prefix) {
  const NamesIgnoringCase& names = *names_ignoring_case();
  const std::string lower = absl::AsciiStrToLower(prefix);
  if (!names.count.contains(lower)) return std::string(prefix);
  auto it = names.next_suffix.find(lower);
  int suffix = it == names.next_suffix.end() ? 1 : it->second;
  while (names.count.contains(absl::StrCat(lower, "_", suffix))) ++suffix;
  return absl::StrCat(prefix, "_", suffix);
}

void Graph::WriteNode(const Node& node, NodeDef* def) const {
  node.body()->WriteTo(def);
  def->set_name(node.name());
  if (!node.requested_device().empty()) def->set_device(node.requested_device());
  def->mutable_input()->Reserve(node.num_inputs() + static_cast<int>(node.control_inputs().size()));
  for (const OutputRef& input : node.inputs()) {
    if (input.node == nullptr) {
      def->add_input();  // keeps the places of the others
    } else if (input.index == 0) {
      def->add_input(input.node->name());
    } else {
      def->add_input(absl::StrCat(input.node->name(), ":", input.index));
    }
  }
  for (const Node* src : node.control_inputs()) def->add_input(absl::StrCat("^", src->name()));
}

NodeDef Graph::NodeToDef(const Node& node) const {
  NodeDef def;
  WriteNode(node, &def);
  return def;
}

void Graph::ToGraphDef(tensorflow::GraphDef* def, int first_id, bool assigned) const {
  def->Clear();
  *def->mutable_versions() = *versions_;
  // An empty library is not written, as TensorFlow does.
  if (!library_->empty()) library_->WriteTo(def->mutable_library());
  def->mutable_node()->Reserve(num_nodes_);
  for (size_t id = static_cast<size_t>(std::max(first_id, 0)); id < nodes_.size(); ++id) {
    const Node* node = nodes_[id].get();
    if (node == nullptr) continue;
    NodeDef* out = def->add_node();
    WriteNode(*node, out);
    if (assigned && !node->assigned_device().empty()) out->set_device(node->assigned_device());
  }
}

StatusOr<std::vector<int>> Dependencies::Order(absl::FunctionRef<std::string(int)> name) const {
  const size_t n = end_.size();
  // The nodes that wait for node i: waiters[first[i] .. first[i + 1]).
  std::vector<size_t> first(n + 1, 0);
  for (int source : sources_) ++first[static_cast<size_t>(source) + 1];
  for (size_t i = 0; i < n; ++i) first[i + 1] += first[i];
  std::vector<int> waiters(sources_.size());
  std::vector<int> pending(n, 0);
  {
    std::vector<size_t> fill(first.begin(), first.end() - 1);
    for (int node = 0; node < static_cast<int>(n); ++node) {
      for (int source : inputs(node)) waiters[fill[static_cast<size_t>(source)]++] = node;
      pending[static_cast<size_t>(node)] = static_cast<int>(inputs(node).size());
    }
  }
  std::priority_queue<int, std::vector<int>, std::greater<int>> ready;  // smallest number first
  for (size_t i = 0; i < n; ++i) {
    if (pending[i] == 0) ready.push(static_cast<int>(i));
  }
  std::vector<int> order;
  order.reserve(n);
  while (!ready.empty()) {
    const int node = ready.top();
    ready.pop();
    order.push_back(node);
    const size_t i = static_cast<size_t>(node);
    for (size_t w = first[i]; w < first[i + 1]; ++w) {
      if (--pending[static_cast<size_t>(waiters[w])] == 0) ready.push(waiters[w]);
    }
  }
  if (order.size() == n) return order;

  // Every node left waits for one that is left: walking back ends on a cycle.
  int node = static_cast<int>(
      std::find_if(pending.begin(), pending.end(), [](int count) { return count > 0; }) -
      pending.begin());
  auto step_back = [&](int from) {
    for (int source : inputs(from)) {
      if (pending[static_cast<size_t>(source)] > 0) return source;
    }
    return from;
  };
  std::vector<bool> visited(n, false);
  while (!visited[static_cast<size_t>(node)]) {
    visited[static_cast<size_t>(node)] = true;
    node = step_back(node);
  }
  std::vector<int> path = {node};
  for (int at = step_back(node); at != node; at = step_back(at)) path.push_back(at);
  std::reverse(path.begin(), path.end());
  // A stable beginning: the smallest number.
  std::rotate(path.begin(), std::min_element(path.begin(), path.end()), path.end());
  constexpr size_t kMaxNamed = 20;
  std::vector<std::string> names;
  for (int p : path) {
    if (names.size() == kMaxNamed) {
      names.push_back(absl::StrCat("... (", path.size() - kMaxNamed, " more)"));
      break;
    }
    names.push_back(absl::StrCat("'", name(p), "'"));
  }
  names.push_back(absl::StrCat("'", name(path.front()), "'"));
  return absl::InvalidArgumentError(
      absl::StrCat("Graph: a cycle must go through NextIteration into Merge, got the cycle ",
                   absl::StrJoin(names, " -> ")));
}

StatusOr<std::vector<Node*>> TopologicalOrder(const Graph& graph) {
  // Numbers of nodes are their ids; a removed node is one without inputs.
  Dependencies dependencies;
  for (const auto& node : graph.nodes()) {
    if (node != nullptr) {
      for (const OutputRef& input : node->inputs()) {
        const bool is_back_edge =
            input.node != nullptr && input.node->is_next_iteration() && node->is_merge();
        if (input.node != nullptr && !is_back_edge) dependencies.AddInput(input.node->id());
      }
      for (const Node* src : node->control_inputs()) dependencies.AddInput(src->id());
    }
    dependencies.EndNode();
  }
  auto node_of = [&](int id) { return graph.nodes()[static_cast<size_t>(id)].get(); };
  MR_ASSIGN_OR_RETURN(std::vector<int> ids,
                      dependencies.Order([&](int id) { return node_of(id)->name(); }));
  std::vector<Node*> order;
  order.reserve(static_cast<size_t>(graph.num_nodes()));
  for (int id : ids) {
    if (node_of(id) != nullptr) order.push_back(node_of(id));
  }
  return order;
}

bool SplitTensorName(absl::string_view text, absl::string_view* node, int* index) {
  *index = 0;
  absl::string_view rest = text;
  if (absl::ConsumePrefix(&rest, "^")) {
    *index = kControlSlot;
  } else if (const size_t colon = rest.rfind(':'); colon != absl::string_view::npos) {
    absl::string_view digits = rest.substr(colon + 1);
    if (digits.empty() ||
        !std::all_of(digits.begin(), digits.end(),
                     [](char c) { return absl::ascii_isdigit(static_cast<unsigned char>(c)); }) ||
        !absl::SimpleAtoi(digits, index)) {
      return false;
    }
    rest = rest.substr(0, colon);
  }
  *node = rest;
  return !rest.empty() && rest.find(':') == absl::string_view::npos;
}

StatusOr<TensorName> ParseTensorName(absl::string_view text) {
  absl::string_view node;
  TensorName name;
  if (!SplitTensorName(text, &node, &name.index)) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor name must be 'node', 'node:index' or '^node', got '", text, "'"));
  }
  name.node = std::string(node);
  return name;
}

std::string TensorNameString(const Node& node, int index) {
  return absl::StrCat(node.name(), ":", index);
}

Status NodeTypes(const NodeDef& node, const OpDef& op, std::vector<DType>* inputs,
                 std::vector<DType>* outputs) {
  inputs->clear();
  outputs->clear();
  for (const OpDef::ArgDef& arg : op.input_arg()) {
    MR_RETURN_IF_ERROR(AppendArgTypes(node, arg, inputs));
  }
  for (const OpDef::ArgDef& arg : op.output_arg()) {
    MR_RETURN_IF_ERROR(AppendArgTypes(node, arg, outputs));
  }
  for (const auto* types : {inputs, outputs}) {
    if (types->size() > kMaxNodeArgs) {
      return absl::InvalidArgumentError(absl::StrCat(node.op(), " '", node.name(),
                                                     "': number of arguments must be at most ",
                                                     kMaxNodeArgs, ", got ", types->size()));
    }
  }
  return absl::OkStatus();
}

}  // namespace millrace
