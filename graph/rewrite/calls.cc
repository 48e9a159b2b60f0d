// SPDX-License-Identifier: Apache-2.0
#include "graph/rewrite/calls.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/dtype.h"
#include "core/hash_table.h"
#include "core/new_message.h"
#include "core/tensor.h"
#include "graph/attr.h"
#include "graph/function_body.h"
#include "graph/function_copy.h"
#include "graph/function_gradient.h"
#include "graph/function_library.h"
#include "graph/graph.h"
#include "graph/node_body.h"
#include "graph/op_registry.h"
#include "graph/pure.h"
#include "proto/attr_value.pb.h"
#include "proto/config.pb.h"
#include "proto/node_def.pb.h"

namespace millrace {
namespace {

using tensorflow::NameAttrList;
using tensorflow::NodeDef;
using tensorflow::RewriterConfig;

bool IsCall(const Node& node) {
  return node.op() == "PartitionedCall" || node.op() == "StatefulPartitionedCall";
}

// What may leave nodes dead that come after it, or puts them into a loop.
bool MakesConditional(const Node& node) {
  return node.is_switch() || node.is_enter() || node.is_recv();
}

bool HasConditional(const Graph& graph) {
  return std::any_of(graph.nodes().begin(), graph.nodes().end(),
                     [](const auto& node) { return node != nullptr && MakesConditional(*node); });
}

bool HasTrueAttr(const Node& node, const char* name) {
  const StatusOr<bool> value = GetAttr<bool>(node, name);
  return value.ok() && *value;
}

Status NewBody(Graph* graph, const NodeDef& def, std::shared_ptr<const NodeBody>* body) {
  MR_RETURN_IF_ERROR(FindOp(def.op()).status());
  MR_ASSIGN_OR_RETURN(
      *body, graph->bodies()->Make(def, nullptr, [](const NodeDef&) { return absl::OkStatus(); }));
  return absl::OkStatus();
}

// A node that calls by name, as one whose op is to call.
Status NameFunction(Graph* graph, Node* node) {
  const auto def = NewMessage<NodeDef>();
  const bool stateful = graph->library().IsStateful(*node->body()->function());
  def->set_name(node->name());
  def->set_op(stateful ? "StatefulPartitionedCall" : "PartitionedCall");
  auto& attrs = *def->mutable_attr();
  const auto types = [](absl::Span<const DType> from) {
    return std::vector<DType>(from.begin(), from.end());
  };
  SetAttr(types(node->input_types()), &attrs["Tin"]);
  SetAttr(types(node->output_types()), &attrs["Tout"]);
  NameAttrList* const function = attrs["f"].mutable_func();
  function->set_name(node->op());
  for (const auto& [name, value] : node->def().attr()) {
    // Those of the framework belong to the node.
    auto& to = name[0] == '_' ? attrs : *function->mutable_attr();
    to[name] = value;
  }
  std::shared_ptr<const NodeBody> body;
  MR_RETURN_IF_ERROR(NewBody(graph, *def, &body));
  return graph->ReplaceBody(node, std::move(body));
}

// Puts the nodes of one call's function in the place of the call.
class Inlining {
 public:
  Inlining(Graph* graph, Node* call, std::shared_ptr<const FunctionBody> body, bool conditional)
      : graph_(graph),
        name_(call->name()),
        device_(call->requested_device()),
        built_at_(call->built_at()),
        body_(std::move(body)),
        conditional_(conditional && (call->num_inputs() > 0 || !call->control_inputs().empty())),
        dead_inside_(HasConditional(*body_->graph)),
        inputs_(call->inputs().begin(), call->inputs().end()),
        passed_(inputs_.size(), nullptr) {
    for (Node* const control : call->control_inputs()) controls_.push_back(control);
    for (const Edge& edge : call->out_edges()) {
      (edge.is_control() ? waiting_ : reading_).push_back(edge);
    }
  }

  enum class End { kIfAwaited, kNode, kResults };
  // The call is gone then. What stands in its place under its name: nothing, unless nodes wait for
  // it; a node that ends with it; one with its results.
  Status Run(Node* call, bool runs, End end) {
    FunctionCopyOptions options;
    options.prefix = absl::StrCat(name_, "/");
    if (runs) {
      MR_ASSIGN_OR_RETURN(options.site, IdentityOf(call->attrs()));
    }
    options.device = device_;
    options.built_at = built_at_;
    MR_ASSIGN_OR_RETURN(copies_, CopyFunctionNodes(*body_, options, graph_));
    for (const Node* const effect : body_->effects) effects_.push_back(CopyOf(effect));
    MR_RETURN_IF_ERROR(MakeStart());
    MR_RETURN_IF_ERROR(ConnectArguments());
    AnchorNodes();
    MR_RETURN_IF_ERROR(MakeResults());
    const std::string name = name_;
    graph_->RemoveNode(call);
    if (end == End::kResults && !results_.empty()) {
      MR_RETURN_IF_ERROR(MakeResultsNode(name));
    } else if (end != End::kIfAwaited || !waiting_.empty()) {
      MR_RETURN_IF_ERROR(MakeEnd(name));
    }
    return HandOn();
  }

  // Ends when the call would have ended; null unless somebody waits for that.
  Node* end() const { return end_; }

 private:
  Node* CopyOf(const Node* node) const { return copies_[static_cast<size_t>(node->id())]; }

  // Op and attrs of `def` at the call's place, under a name like `name`.
  StatusOr<Node*> AddNode(NodeDef* def, const std::string& name) {
    def->set_name(graph_->UniqueName(name));
    def->set_device(device_);
    MR_RETURN_IF_ERROR(FindOp(def->op()).status());
    MR_ASSIGN_OR_RETURN(Node * node, graph_->AddNode(*def));
    node->set_built_at(built_at_);
    return node;
  }
  StatusOr<Node*> AddNoOp(const std::string& name) {
    const auto def = NewMessage<NodeDef>();
    def->set_op("NoOp");
    return AddNode(def.get(), name);
  }
  StatusOr<Node*> AddIdentity(const std::string& name, const OutputRef& of) {
    const auto def = NewMessage<NodeDef>();
    def->set_op("Identity");
    SetAttr(WithoutRef(of.node->output_type(of.index)), &(*def->mutable_attr())["T"]);
    MR_ASSIGN_OR_RETURN(Node * node, AddNode(def.get(), name));
    MR_RETURN_IF_ERROR(graph_->AddEdge(of.node, of.index, node, 0));
    return node;
  }

  // Input i of the call as a node of its own, which waits for what the call waits for.
  StatusOr<Node*> Passed(size_t i) {
    if (passed_[i] == nullptr) {
      MR_ASSIGN_OR_RETURN(
          passed_[i],
          AddIdentity(absl::StrCat(name_, "/", body_->arguments[i]->name()), inputs_[i]));
      for (Node* const control : controls_) graph_->AddControlEdge(control, passed_[i]);
    }
    return passed_[i];
  }
  // What the nodes of the function read as argument i.
  StatusOr<OutputRef> Argument(size_t i) {
    const OutputRef& input = inputs_[i];
    const bool plain = controls_.empty() && !IsRef(input.node->output_type(input.index));
    if (plain && passed_[i] == nullptr) return input;
    MR_ASSIGN_OR_RETURN(Node * node, Passed(i));
    return OutputRef{node, 0};
  }

  // What nodes wait for that must not run before the call, or when it is dead.
  Status MakeStart() {
    if (!conditional_ && (effects_.empty() || (inputs_.empty() && controls_.empty()))) {
      return absl::OkStatus();
    }
    MR_ASSIGN_OR_RETURN(start_, AddNoOp(absl::StrCat(name_, "/start")));
    for (Node* const control : controls_) graph_->AddControlEdge(control, start_);
    for (size_t i = 0; i < inputs_.size(); ++i) {
      MR_ASSIGN_OR_RETURN(Node * passed, Passed(i));
      graph_->AddControlEdge(passed, start_);
    }
    return absl::OkStatus();
  }

  Status ConnectArguments() {
    for (size_t i = 0; i < inputs_.size(); ++i) {
      for (const Edge& edge : body_->arguments[i]->out_edges()) {
        Node* const reader = CopyOf(edge.dst);
        if (reader == nullptr) continue;
        if (edge.is_control()) {
          MR_ASSIGN_OR_RETURN(Node * passed, Passed(i));
          graph_->AddControlEdge(passed, reader);
        } else {
          MR_ASSIGN_OR_RETURN(const OutputRef argument, Argument(i));
          MR_RETURN_IF_ERROR(
              graph_->AddEdge(argument.node, argument.index, reader, edge.dst_input));
        }
      }
    }
    return absl::OkStatus();
  }

  void AnchorNodes() {
    if (start_ == nullptr) return;
    for (Node* const effect : effects_) graph_->AddControlEdge(start_, effect);
    if (!conditional_) return;
    for (Node* const copy : copies_) {
      if (copy != nullptr && copy->num_inputs() == 0 && copy->control_inputs().empty()) {
        graph_->AddControlEdge(start_, copy);
      }
    }
  }

  // Comes after all effects. An effect in a branch that is not taken does not make it dead: that
  // is why it is a Merge then, of a value that is as alive as the call.
  StatusOr<Node*> AfterEffects() {
    const std::string name = absl::StrCat(name_, "/effects");
    Node* after = nullptr;
    if (dead_inside_) {
      const auto constant = NewMessage<NodeDef>(), merge = NewMessage<NodeDef>();
      constant->set_op("Const");
      SetAttr(DT_BOOL, &(*constant->mutable_attr())["dtype"]);
      SetAttr(Tensor::Scalar(true), &(*constant->mutable_attr())["value"]);
      MR_ASSIGN_OR_RETURN(Node * alive, AddNode(constant.get(), absl::StrCat(name_, "/alive")));
      if (start_ != nullptr) graph_->AddControlEdge(start_, alive);
      merge->set_op("Merge");
      SetAttr(DT_BOOL, &(*merge->mutable_attr())["T"]);
      SetAttr(static_cast<int64_t>(1), &(*merge->mutable_attr())["N"]);
      MR_ASSIGN_OR_RETURN(after, AddNode(merge.get(), name));
      MR_RETURN_IF_ERROR(graph_->AddEdge(alive, 0, after, 0));
    } else {
      MR_ASSIGN_OR_RETURN(after, AddNoOp(name));
    }
    for (Node* const effect : effects_) graph_->AddControlEdge(effect, after);
    return after;
  }

  Status MakeResults() {
    Node* gate = conditional_ ? start_ : nullptr;
    if (!effects_.empty() && !body_->results.empty()) {
      MR_ASSIGN_OR_RETURN(gate, AfterEffects());
    }
    for (const Node* const result : body_->results) {
      const OutputRef& source = result->input(0);
      OutputRef value;
      if (source.node->is_arg()) {
        const auto argument =
            std::find(body_->arguments.begin(), body_->arguments.end(), source.node);
        MR_ASSIGN_OR_RETURN(value,
                            Argument(static_cast<size_t>(argument - body_->arguments.begin())));
      } else {
        value = {CopyOf(source.node), source.index};
      }
      // A reference is read when the call ends, and a control edge tells nothing of one output of
      // a Switch.
      if (gate != nullptr || IsRef(value.node->output_type(value.index)) ||
          LeavesOutputsDead(*value.node)) {
        MR_ASSIGN_OR_RETURN(Node * node,
                            AddIdentity(absl::StrCat(name_, "/", result->name()), value));
        if (gate != nullptr) graph_->AddControlEdge(gate, node);
        value = {node, 0};
      }
      results_.push_back(value);
    }
    return absl::OkStatus();
  }

  Status MakeEnd(const std::string& name) {
    MR_ASSIGN_OR_RETURN(end_, AddNoOp(name));
    for (const OutputRef& result : results_) graph_->AddControlEdge(result.node, end_);
    if (results_.empty() && dead_inside_ && !effects_.empty()) {
      MR_ASSIGN_OR_RETURN(Node * after, AfterEffects());
      graph_->AddControlEdge(after, end_);
    } else if (results_.empty()) {  // else these wait for them
      for (Node* const effect : effects_) graph_->AddControlEdge(effect, end_);
    }
    if (start_ != nullptr) {
      graph_->AddControlEdge(start_, end_);
    } else {
      for (Node* const control : controls_) graph_->AddControlEdge(control, end_);
    }
    return absl::OkStatus();
  }

  Status MakeResultsNode(const std::string& name) {
    const auto def = NewMessage<NodeDef>();
    def->set_op("IdentityN");
    SetAttr(body_->result_types, &(*def->mutable_attr())["T"]);
    MR_ASSIGN_OR_RETURN(end_, AddNode(def.get(), name));
    for (size_t i = 0; i < results_.size(); ++i) {
      const int index = static_cast<int>(i);
      MR_RETURN_IF_ERROR(graph_->AddEdge(results_[i].node, results_[i].index, end_, index));
      results_[i] = {end_, index};
    }
    return absl::OkStatus();
  }

  Status HandOn() {
    for (const Edge& edge : reading_) {
      const OutputRef& result = results_[static_cast<size_t>(edge.src_output)];
      MR_RETURN_IF_ERROR(graph_->AddEdge(result.node, result.index, edge.dst, edge.dst_input));
    }
    for (const Edge& edge : waiting_) graph_->AddControlEdge(end_, edge.dst);
    return absl::OkStatus();
  }

  Graph* const graph_;
  const std::string name_, device_, built_at_;
  const std::shared_ptr<const FunctionBody> body_;
  const bool conditional_;  // the call may be dead, or in a loop
  const bool dead_inside_;  // so may be nodes of the function when the call is not
  const std::vector<OutputRef> inputs_;
  std::vector<Node*> controls_;
  std::vector<Edge> reading_, waiting_;  // that leave the call
  std::vector<Node*> copies_, effects_;
  std::vector<Node*> passed_;  // by argument; null while the input itself will do
  Node* start_ = nullptr;
  Node* end_ = nullptr;
  std::vector<OutputRef> results_;
};

// One call of PrepareCalls.
class Preparation {
 public:
  // Of a run graph, or (`run` is null) of a graph that nobody runs, whose nodes `keep` keep their
  // names.
  Preparation(Graph* graph, RunGraph* run, absl::Span<const std::string> keep,
              const CallOptions& options)
      : run_(run),
        graph_(graph),
        keep_(keep.begin(), keep.end()),
        options_(options),
        library_(graph_->shared_library()) {}

  Status Run() {
    FindConditional();
    depth_.assign(static_cast<size_t>(graph_->num_node_ids()), 0);
    // Nodes that come from calls are looked at in their turn.
    for (int id = 0; id < graph_->num_node_ids(); ++id) {
      Node* const node = graph_->nodes()[static_cast<size_t>(id)].get();
      if (node == nullptr) continue;
      if (node->body()->function() != nullptr) MR_RETURN_IF_ERROR(NameFunction(graph_, node));
      if (node->op() == "SymbolicGradient") MR_RETURN_IF_ERROR(CallGradient(node));
      if (options_.inline_calls && IsCall(*node)) MR_RETURN_IF_ERROR(MaybeInline(node));
    }
    return absl::OkStatus();
  }

 private:
  void FindConditional() {
    conditional_.assign(static_cast<size_t>(graph_->num_node_ids()), false);
    std::vector<const Node*> open;
    for (const auto& node : graph_->nodes()) {
      if (node != nullptr && MakesConditional(*node)) open.push_back(node.get());
    }
    while (!open.empty()) {
      const Node* const node = open.back();
      open.pop_back();
      for (const Edge& edge : node->out_edges()) {
        const size_t id = static_cast<size_t>(edge.dst->id());
        if (conditional_[id]) continue;
        conditional_[id] = true;
        open.push_back(edge.dst);
      }
    }
  }

  // SymbolicGradient: a call of the gradient of its function.
  Status CallGradient(Node* node) {
    const std::string where = absl::StrCat("SymbolicGradient '", node->name(), "'");
    MR_ASSIGN_OR_RETURN(const auto function, GetAttr<NameAttrList>(*node, "f"));
    StatusOr<std::string> gradient = DefineSymbolicGradient(function, graph_);
    if (!gradient.ok()) return Prefixed(where, gradient.status());
    library_ = graph_->shared_library();
    const auto def = NewMessage<NodeDef>();
    *def = node->def();
    def->set_name(node->name());
    def->set_op(library_->IsStateful(*library_->Find(*gradient)) ? "StatefulPartitionedCall"
                                                                 : "PartitionedCall");
    (*def->mutable_attr())["f"].mutable_func()->Clear();
    (*def->mutable_attr())["f"].mutable_func()->set_name(*gradient);
    std::shared_ptr<const NodeBody> body;
    MR_RETURN_IF_ERROR(NewBody(graph_, *def, &body));
    return Prefixed(where, graph_->ReplaceBody(node, std::move(body)));
  }

  Status MaybeInline(Node* call) {
    const size_t id = static_cast<size_t>(call->id());
    if (depth_[id] >= kMaxInlineDepth || (run_ != nullptr && HasTrueAttr(*call, "_noinline"))) {
      return absl::OkStatus();
    }
    MR_ASSIGN_OR_RETURN(const auto function, GetAttr<NameAttrList>(*call, "f"));
    const std::string where = absl::StrCat(call->op(), " '", call->name(), "'");
    StatusOr<std::shared_ptr<const FunctionBody>> made = library_->Body(function);
    if (!made.ok()) return Prefixed(where, made.status());
    const FunctionBody& body = **made;
    const int size = body.graph->num_nodes();
    // What happens in a loop of the function cannot be waited for from outside of the loop.
    if ((body.graph->has_loops() && !body.effects.empty()) ||
        (run_ != nullptr && body.function->is_no_inline()) || size > kMaxInlinedNodes - inlined_ ||
        call->input_types() != absl::MakeConstSpan(body.argument_types) ||
        call->output_types() != absl::MakeConstSpan(body.result_types)) {
      return absl::OkStatus();  // the kernel says what does not fit
    }
    inlined_ += size;
    const int depth = depth_[id] + 1;
    const bool conditional = conditional_[id];
    Inlining inlining(graph_, call, *made, conditional);
    if (run_ == nullptr) {
      const Inlining::End end =
          keep_.contains(call->name()) ? Inlining::End::kResults : Inlining::End::kIfAwaited;
      if (Status s = inlining.Run(call, /*runs=*/false, end); !s.ok()) return Prefixed(where, s);
    } else {
      std::vector<Node*>& targets = run_->signature.target_nodes;
      const auto target = std::find(targets.begin(), targets.end(), call);
      const bool is_target = target != targets.end();
      const Inlining::End end = is_target ? Inlining::End::kNode : Inlining::End::kIfAwaited;
      if (Status s = inlining.Run(call, /*runs=*/true, end); !s.ok()) return Prefixed(where, s);
      if (is_target) *target = inlining.end();
    }
    depth_.resize(static_cast<size_t>(graph_->num_node_ids()), depth);
    conditional_.resize(depth_.size(), conditional || HasConditional(*body.graph));
    return absl::OkStatus();
  }

  RunGraph* const run_;
  Graph* const graph_;
  const HashSet<std::string> keep_;
  const CallOptions options_;
  std::shared_ptr<const FunctionLibrary> library_;
  int inlined_ = 0;
  std::vector<int> depth_;         // by node id: how many calls it came from
  std::vector<bool> conditional_;  // by node id: it may be dead, or in a loop
};

}  // namespace

CallOptions CallOptionsFor(const tensorflow::GraphOptions& options) {
  const tensorflow::OptimizerOptions& optimizer = options.optimizer_options();
  const RewriterConfig& config = options.rewrite_options();
  CallOptions result;
  if (config.optimizers_size() > 0) {
    result.inline_calls = std::find(config.optimizers().begin(), config.optimizers().end(),
                                    "function") != config.optimizers().end();
  } else if (config.disable_meta_optimizer() ||
             config.function_optimization() == RewriterConfig::OFF) {
    result.inline_calls = false;
  } else {
    result.inline_calls = optimizer.opt_level() >= tensorflow::OptimizerOptions::L1 ||
                          optimizer.do_function_inlining() ||
                          config.function_optimization() != RewriterConfig::DEFAULT;
  }
  return result;
}

Status PrepareCalls(RunGraph* run, const CallOptions& options) {
  if (run->graph->library().empty()) return absl::OkStatus();
  return Preparation(run->graph.get(), run, {}, options).Run();
}

Status InlineAllCalls(Graph* graph, absl::Span<const std::string> keep) {
  if (graph->library().empty()) return absl::OkStatus();
  MR_RETURN_IF_ERROR(Preparation(graph, nullptr, keep, CallOptions()).Run());
  for (const auto& node : graph->nodes()) {
    if (node == nullptr || !IsCall(*node)) continue;
    return absl::ResourceExhaustedError(absl::StrCat(
        node->op(), " '", node->name(), "': calls must be at most ", kMaxInlineDepth,
        " deep and have at most ", kMaxInlinedNodes,
        " nodes in all to be put into the graph, and fit their functions; got another"));
  }
  graph->set_library(graph->library().ReachableFrom(*graph));
  return absl::OkStatus();
}

}  // namespace millrace
