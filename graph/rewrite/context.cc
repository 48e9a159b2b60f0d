// SPDX-License-Identifier: Apache-2.0
#include "graph/rewrite/context.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/hash_table.h"
#include "core/new_message.h"
#include "graph/attr.h"
#include "graph/function_library.h"
#include "graph/node_body.h"
#include "graph/pure.h"
#include "proto/node_def.pb.h"

namespace millrace {
namespace {

// A constant that has more control inputs than these is waited for itself, so that the control
// inputs of a chain of constants do not add up.
constexpr size_t kMaxInheritedControls = 4;

// A copy: the edges go with the node.
std::vector<Edge> OutEdges(const Node& node) {
  return std::vector<Edge>(node.out_edges().begin(), node.out_edges().end());
}

// A reference may be to a variable without a value.
bool CannotFail(const Node& node) {
  if (IsConst(node) || node.op() == "NoOp") return true;
  if (!IsIdentity(node) && node.op() != "Rank") return false;
  const OutputRef& input = node.input(0);
  return input.node != nullptr && input.index < input.node->num_outputs() &&
         !IsRef(input.node->output_type(input.index));
}

}  // namespace

// Shape inference on demand: only what comes before the tensors that are asked for.
struct RewriteContext::Shapes {
  ShapeRefiner refiner;
  HashMap<const Node*, bool> seen;  // whether its shapes are known
};

RewriteContext::RewriteContext(Graph* graph, absl::Span<Node* const> keep,
                               ConstantEvaluator* evaluator, int64_t max_folded_bytes)
    : graph_(graph), evaluator_(evaluator), max_folded_bytes_(max_folded_bytes) {
  for (const Node* node : keep) {
    if (node != nullptr) kept_.insert(node);
  }
}

RewriteContext::~RewriteContext() = default;

Status RewriteContext::BeginPass() {
  unneeded_.clear();
  return FindOrder();
}

Status RewriteContext::FindOrder() {
  shapes_ = std::make_unique<Shapes>();
  if (order_ids_ == graph_->num_node_ids()) return absl::OkStatus();
  const size_t n = static_cast<size_t>(graph_->num_node_ids());
  std::vector<int> pending(n, 0);
  order_.clear();
  order_.reserve(static_cast<size_t>(graph_->num_nodes()));
  const auto is_back_edge = [](const Node& src, const Node& dst) {
    return src.is_next_iteration() && dst.is_merge();
  };
  for (const auto& node : graph_->nodes()) {
    if (node == nullptr) continue;
    int& count = pending[static_cast<size_t>(node->id())];
    for (const OutputRef& input : node->inputs()) {
      if (input.node != nullptr && !is_back_edge(*input.node, *node)) ++count;
    }
    count += static_cast<int>(node->control_inputs().size());
    if (count == 0) order_.push_back(node->id());
  }
  // The order is its own queue.
  for (size_t next = 0; next < order_.size(); ++next) {
    const Node* done = node(order_[next]);
    for (const Edge& edge : done->out_edges()) {
      if (!edge.is_control() && is_back_edge(*done, *edge.dst)) continue;
      if (--pending[static_cast<size_t>(edge.dst->id())] == 0) order_.push_back(edge.dst->id());
    }
  }
  if (order_.size() != static_cast<size_t>(graph_->num_nodes())) {
    MR_RETURN_IF_ERROR(TopologicalOrder(*graph_).status());  // names the nodes of the cycle
    return absl::InternalError("Rewrite: a graph must have an order, got a cycle");
  }
  order_ids_ = graph_->num_node_ids();
  return absl::OkStatus();
}

// --- Shapes --------------------------------------------------------------------------------------

bool RewriteContext::ShapesAreKnownOf(const Node& asked) {
  // A kernel may give what the shape function does not promise: variables keep what was assigned,
  // a default may be fed over.
  const auto is_trusted = [this](const Node& node) {
    if (node.op_entry() == nullptr || node.traits().feeding == Feeding::kOptional) return false;
    if (node.body()->function() != nullptr || OnlyCallsFunctions(node.op())) return false;
    for (const DType type : node.output_types()) {
      if (IsRef(type)) return false;
    }
    return IsFeed(node) || !node.is_stateful();
  };
  std::vector<std::pair<const Node*, int>> stack;
  const auto visit = [&](const Node* node) {
    if (shapes_->seen.emplace(node, false).second) stack.emplace_back(node, 0);
  };
  visit(&asked);
  while (!stack.empty()) {
    auto& [node, next_input] = stack.back();
    const bool trusted = is_trusted(*node);
    if (trusted && next_input < node->num_inputs()) {
      const Node* source = node->input(next_input++).node;
      if (source != nullptr) visit(source);  // may move the stack
      continue;
    }
    const Node* done = node;
    stack.pop_back();
    if (trusted) shapes_->seen[done] = shapes_->refiner.AddNode(*done).ok();
  }
  return shapes_->seen[&asked];
}

PartialShape RewriteContext::ShapeOf(const OutputRef& tensor) {
  if (tensor.node == nullptr || !ShapesAreKnownOf(*tensor.node)) return PartialShape();
  return shapes_->refiner.OutputShape(*tensor.node, tensor.index);
}

// --- Edits ---------------------------------------------------------------------------------------

bool RewriteContext::AppendOrderAfter(const OutputRef& source, std::vector<Node*>* controls) const {
  Node* const node = source.node;
  if (node == nullptr) return false;
  if (IsFeed(*node)) return true;
  if (LeavesOutputsDead(*node)) return false;
  if (IsConst(*node) && node->control_inputs().size() <= kMaxInheritedControls) {
    controls->insert(controls->end(), node->control_inputs().begin(), node->control_inputs().end());
  } else {
    controls->push_back(node);
  }
  return true;
}

StatusOr<bool> RewriteContext::Bypass(Node* node, OutputRef source,
                                      absl::Span<Node* const> controls) {
  if (IsKept(*node) || node->num_outputs() != 1 || source.node == nullptr ||
      source.index >= source.node->num_outputs() ||
      source.node->output_type(source.index) != node->output_type(0) ||
      IsRef(node->output_type(0)) || source.node->assigned_device() != node->assigned_device()) {
    return false;
  }
  const std::vector<Edge> edges = OutEdges(*node);
  if (controls.size() > 1 && edges.size() > 1) return false;
  for (const Node* control : controls) {
    if (control->assigned_device() != node->assigned_device()) return false;
  }
  for (const Edge& edge : edges) {
    if (edge.dst == node) return false;
    if (edge.is_control() && LeavesOutputsDead(*source.node)) return false;
    if (controls.empty()) continue;
    // A dead control input makes `node` dead; some readers would not mind it.
    if (RunsOnDeadInputs(*edge.dst) || edge.dst->assigned_device() != node->assigned_device()) {
      return false;
    }
  }
  const std::vector<Node*> befores(controls.begin(), controls.end());
  unneeded_.erase(node);
  graph_->RemoveNode(node);
  for (const Edge& edge : edges) {
    MR_RETURN_IF_ERROR(graph_->AddEdge(source.node, edge.is_control() ? kControlSlot : source.index,
                                       edge.dst, edge.dst_input));
    for (Node* before : befores) graph_->AddControlEdge(before, edge.dst);
  }
  return true;
}

StatusOr<Node*> RewriteContext::Replace(Node* node, int output, tensorflow::NodeDef* def,
                                        absl::Span<const OutputRef> inputs,
                                        absl::Span<Node* const> controls, const Tensor* value) {
  const std::vector<Edge> edges = OutEdges(*node);
  const std::vector<OutputRef> sources(inputs.begin(), inputs.end());
  const std::vector<Node*> befores(controls.begin(), controls.end());
  const std::string assigned = node->assigned_device(), built_at = node->built_at();
  def->set_name(node->name());
  def->set_device(node->requested_device());
  unneeded_.erase(node);
  graph_->RemoveNode(node);
  MR_ASSIGN_OR_RETURN(Node * by,
                      value != nullptr ? graph_->AddConst(*def, *value) : graph_->AddNode(*def));
  by->set_assigned_device(assigned);
  by->set_built_at(built_at);
  for (size_t i = 0; i < sources.size(); ++i) {
    MR_RETURN_IF_ERROR(graph_->AddEdge(sources[i].node, sources[i].index, by, static_cast<int>(i)));
  }
  for (Node* before : befores) graph_->AddControlEdge(before, by);
  for (const Edge& edge : edges) {
    if (!edge.is_control() && edge.src_output != output) continue;
    MR_RETURN_IF_ERROR(
        graph_->AddEdge(by, edge.is_control() ? kControlSlot : 0, edge.dst, edge.dst_input));
  }
  return by;
}

Status RewriteContext::ReplaceByConstants(Node* node, absl::Span<const Tensor> values,
                                          absl::Span<Node* const> controls) {
  const auto const_def = [](const Tensor& value) {
    auto def = NewMessage<tensorflow::NodeDef>();
    def->set_op("Const");
    SetAttr(value.dtype(), &(*def->mutable_attr())["dtype"]);
    tensorflow::AttrValue* const attr = &(*def->mutable_attr())["value"];
    if (!NodeBodies::CanShare(value)) {
      SetAttr(value, attr);
    } else {
      attr->mutable_tensor()->set_dtype(static_cast<tensorflow::DataType>(value.dtype()));
      value.shape().ToProto(attr->mutable_tensor()->mutable_tensor_shape());
    }
    return def;
  };
  // The bytes of a large value are held once, also where others have them.
  const auto shared = [](const Tensor& value) {
    return NodeBodies::CanShare(value) ? &value : nullptr;
  };
  // The first value takes the node's place, and its control edges.
  size_t first = 0;
  while (first < values.size() && !values[first].has_value()) ++first;
  if (first == values.size()) {
    return Internal("Rewrite: '", node->name(), "' must have a value");
  }
  const std::vector<Tensor> tensors(values.begin(), values.end());
  const std::vector<Node*> befores(controls.begin(), controls.end());
  const std::vector<Edge> edges = OutEdges(*node);
  MR_ASSIGN_OR_RETURN(Node * place,
                      Replace(node, static_cast<int>(first), const_def(tensors[first]).get(), {},
                              befores, shared(tensors[first])));
  for (size_t i = first + 1; i < tensors.size(); ++i) {
    if (!tensors[i].has_value()) continue;
    const auto def = const_def(tensors[i]);
    def->set_name(graph_->UniqueName(absl::StrCat(place->name(), "/output_", i)));
    def->set_device(place->requested_device());
    MR_ASSIGN_OR_RETURN(Node * constant, shared(tensors[i]) != nullptr
                                             ? graph_->AddConst(*def, tensors[i])
                                             : graph_->AddNode(*def));
    constant->set_assigned_device(place->assigned_device());
    constant->set_built_at(place->built_at());
    for (Node* before : befores) graph_->AddControlEdge(before, constant);
    for (const Edge& edge : edges) {
      if (edge.src_output != static_cast<int>(i)) continue;
      MR_RETURN_IF_ERROR(graph_->AddEdge(constant, 0, edge.dst, edge.dst_input));
    }
  }
  return absl::OkStatus();
}

Status RewriteContext::Sweep() {
  MR_RETURN_IF_ERROR(FindOrder());
  // Readers come later in the order: one walk back finds all that goes.
  std::vector<bool> goes(static_cast<size_t>(graph_->num_node_ids()), false);
  for (auto id = order_.rbegin(); id != order_.rend(); ++id) {
    const Node* candidate = node(*id);
    if (candidate == nullptr || IsKept(*candidate)) continue;
    if (!CannotFail(*candidate) && !unneeded_.contains(candidate)) continue;
    goes[static_cast<size_t>(*id)] =
        std::all_of(candidate->out_edges().begin(), candidate->out_edges().end(),
                    [&](const Edge& edge) { return goes[static_cast<size_t>(edge.dst->id())]; });
  }
  // Sources first: then no node has to be taken out of the readers of another that goes, too.
  for (const int id : order_) {
    if (!goes[static_cast<size_t>(id)] || node(id) == nullptr) continue;
    unneeded_.erase(node(id));
    graph_->RemoveNode(node(id));
  }
  return absl::OkStatus();
}

// --- Nodes ---------------------------------------------------------------------------------------

void RemoveDoubles(std::vector<Node*>* controls) {
  if (controls->size() < 2) return;
  HashSet<const Node*> seen;
  controls->erase(std::remove_if(controls->begin(), controls->end(),
                                 [&](const Node* node) { return !seen.insert(node).second; }),
                  controls->end());
}

bool IsConst(const Node& node) { return node.is_const() && node.op_entry() != nullptr; }

int64_t ConstElements(const Node& node) {
  const Tensor* const value = IsConst(node) ? node.body()->value() : nullptr;
  return value == nullptr ? -1 : value->num_elements();
}

StatusOr<Tensor> ConstValue(const Node& node) {
  const Tensor* const value = IsConst(node) ? node.body()->value() : nullptr;
  if (value == nullptr) return absl::NotFoundError("not a constant");
  return *value;
}

bool IsIdentity(const Node& node) {
  return node.traits().hands_on != HandsOn::kNothing && node.num_inputs() == 1;
}

}  // namespace millrace
