// SPDX-License-Identifier: Apache-2.0
#include "graph/loops.h"

#include <algorithm>

#include "absl/container/flat_hash_set.h"
#include "graph/attr.h"
#include "graph/control_flow_context.h"
#include "graph/node_builder.h"
#include "graph/pure.h"
#include "proto/control_flow.pb.h"
#include "proto/meta_graph.pb.h"

namespace millrace {

bool Loops::IsLoopMerge(const Node& node) {
  if (!node.is_merge()) return false;
  for (const OutputRef& input : node.inputs()) {
    if (input.node != nullptr && input.node->is_next_iteration()) return true;
  }
  return false;
}

bool Loops::IsLoopSwitch(const Node& node) {
  return node.is_switch() && node.num_inputs() == 2 && node.input(1).node != nullptr &&
         node.input(1).node->is_loop_cond();
}

StatusOr<std::unique_ptr<Loops>> Loops::Of(const Graph& graph) {
  MR_ASSIGN_OR_RETURN(Frames frames, Frames::Of(graph));
  MR_ASSIGN_OR_RETURN(const std::vector<Node*> order, TopologicalOrder(graph));
  std::unique_ptr<Loops> loops(new Loops(graph, std::move(frames)));
  loops->FindLoops();
  loops->FindConditions(order);
  return loops;
}

void Loops::FindLoops() {
  num_nodes_ = graph_.num_node_ids();
  loops_.resize(static_cast<size_t>(frames_.num_frames()));
  for (int f = 0; f < frames_.num_frames(); ++f) {
    loops_[static_cast<size_t>(f)].frame = f;
    loops_[static_cast<size_t>(f)].name = frames_.frame(f).name;
  }
  for (const auto& owned : graph_.nodes()) {
    Node* const node = owned.get();
    if (node == nullptr) continue;
    const size_t runs_in = static_cast<size_t>(frames_.FrameOf(node->id()));
    if (node->is_enter()) loops_[static_cast<size_t>(OutputFrame(*node))].enters.push_back(node);
    if (node->is_exit()) loops_[runs_in].exits.push_back(node);
    if (node->is_loop_cond()) loops_[runs_in].loop_cond = node;
    if (node->op() == "StackPopV2" || node->op() == "StackPop") loops_[runs_in].has_pops = true;
    if (!IsLoopMerge(*node)) continue;
    Variable variable;
    variable.merge = node;
    for (const OutputRef& input : node->inputs()) {
      if (input.node == nullptr) continue;
      if (input.node->is_enter()) variable.enter = input.node;
      if (input.node->is_next_iteration()) variable.next = input.node;
    }
    for (const Edge& edge : node->out_edges()) {
      if (!edge.is_control() && edge.dst_input == 0 && IsLoopSwitch(*edge.dst)) {
        variable.branch = edge.dst;
      }
    }
    if (variable.branch != nullptr) {
      for (const Edge& edge : variable.branch->out_edges()) {
        if (!edge.is_control() && edge.src_output == 0 && edge.dst->is_exit()) {
          variable.exits.push_back(edge.dst);
        }
      }
    }
    loops_[runs_in].variables.push_back(std::move(variable));
  }
}

// --- Conditions ----------------------------------------------------------------------------------

int Loops::Extended(int set, Condition condition) {
  const std::vector<Condition>& old = sets_[static_cast<size_t>(set)];
  if (std::find(old.begin(), old.end(), condition) != old.end()) return set;
  std::pair<int, int>& known = extended_[{set, condition.pred}];
  int& extended = condition.branch ? known.second : known.first;
  if (extended == 0) {
    std::vector<Condition> more = old;
    more.push_back(std::move(condition));
    extended = static_cast<int>(sets_.size());
    sets_.push_back(std::move(more));
  }
  return extended;
}

int Loops::Union(int a, int b) {
  if (a == b || b == 0) return a;
  if (a == 0) return b;
  if (sets_[static_cast<size_t>(a)].size() < sets_[static_cast<size_t>(b)].size()) std::swap(a, b);
  const std::vector<Condition> more = sets_[static_cast<size_t>(b)];
  for (const Condition& condition : more) a = Extended(a, condition);
  return a;
}

int Loops::CommonPart(int a, int b) {
  if (a == b) return a;
  int common = 0;
  const std::vector<Condition> first = sets_[static_cast<size_t>(a)];
  for (const Condition& condition : first) {
    const std::vector<Condition>& second = sets_[static_cast<size_t>(b)];
    if (std::find(second.begin(), second.end(), condition) != second.end()) {
      common = Extended(common, condition);
    }
  }
  return common;
}

int Loops::SetOf(const OutputRef& ref) const {
  return ref.node == nullptr || ref.node->id() >= num_nodes_
             ? 0
             : set_of_[static_cast<size_t>(ref.node->id())];
}

void Loops::FindConditions(absl::Span<Node* const> order) {
  sets_.emplace_back();
  set_of_.assign(static_cast<size_t>(num_nodes_), 0);
  // Of one output: that of a Switch has its condition, too.
  const auto set_of_output = [&](const OutputRef& ref) {
    const int set = SetOf(ref);
    if (ref.node == nullptr || !ref.node->is_switch() || IsLoopSwitch(*ref.node)) return set;
    const OutputRef& pred = ref.node->input(1);
    return Extended(set, {Output(pred.node, pred.index), ref.index == 1});
  };
  for (const Node* node : order) {
    // Outside of loops nobody asks.
    if (OutputFrame(*node) == 0 && frames_.FrameOf(node->id()) == 0) continue;
    if (node->is_enter() || IsLoopMerge(*node) || IsTrigger(*node)) continue;
    int set = 0;
    if (node->is_exit()) {
      for (const Node* enter : loop(frames_.FrameOf(node->id())).enters) {
        set = Union(set, set_of_output(enter->input(0)));
      }
    } else if (node->is_merge()) {
      for (int i = 0; i < node->num_inputs(); ++i) {
        const int input = set_of_output(node->input(i));
        set = i == 0 ? input : CommonPart(set, input);
      }
    } else {
      for (const OutputRef& input : node->inputs()) set = Union(set, set_of_output(input));
      for (const Node* before : node->control_inputs()) {
        if (OutputFrame(*before) == OutputFrame(*node))
          set = Union(set, set_of_[static_cast<size_t>(before->id())]);
      }
    }
    set_of_[static_cast<size_t>(node->id())] = set;
  }
}

std::vector<Loops::Condition> Loops::ConditionsOf(const Output& tensor) const {
  std::vector<Condition> all;
  const auto add = [&all](const Condition& condition) {
    if (std::find(all.begin(), all.end(), condition) == all.end()) all.push_back(condition);
  };
  // What was added since hangs on nodes that were there, of the same iteration.
  std::vector<OutputRef> queue = {{tensor.node(), tensor.index()}};
  absl::flat_hash_set<Output> seen;
  while (!queue.empty()) {
    const OutputRef ref = queue.back();
    queue.pop_back();
    if (ref.node == nullptr || !seen.insert(Output(ref.node, ref.index)).second) continue;
    if (ref.node->is_switch() && !IsLoopSwitch(*ref.node)) {
      const OutputRef& pred = ref.node->input(1);
      add({Output(pred.node, pred.index), ref.index == 1});
    }
    if (ref.node->id() < num_nodes_) {
      for (const Condition& condition : sets_[static_cast<size_t>(SetOf(ref))]) add(condition);
    } else if (ref.node->is_exit()) {
      // Of a loop that was there: its switch is on that loop's LoopCond.
      const OutputRef& pred = ref.node->input(0).node->input(1);
      for (const Node* enter : loop(frames_.FrameOf(pred.node->id())).enters) {
        queue.push_back(enter->input(0));
      }
    } else if (!ref.node->is_enter() && !IsLoopMerge(*ref.node)) {
      for (const OutputRef& input : ref.node->inputs()) queue.push_back(input);
      for (Node* before : ref.node->control_inputs()) queue.push_back({before, 0});
    }
  }
  return all;
}

// --- Contexts ------------------------------------------------------------------------------------

Status Loops::EnsureContexts(const Scope& scope) const {
  std::vector<ControlFlowContext*> contexts(loops_.size(), nullptr);
  absl::flat_hash_map<std::string, bool> back_prop;  // of loops that came with their contexts
  const auto* const collections = scope.collections();
  if (const auto found = collections->find("while_context"); found != collections->end()) {
    for (const std::string& bytes : found->second.bytes_list().value()) {
      tensorflow::WhileContextDef def;
      if (def.ParseFromString(bytes)) back_prop[def.context_name()] = def.back_prop();
    }
  }
  bool is_new = false;
  for (size_t f = 1; f < loops_.size(); ++f) {  // a parent comes before its children
    const Loop& loop = loops_[f];
    if (loop.enters.empty()) continue;
    if (ControlFlowContext* const known = scope.ContextOf(*loop.enters[0]); known != nullptr) {
      contexts[f] = known;
      continue;
    }
    is_new = true;
    const Frames::Frame& frame = frames_.frame(static_cast<int>(f));
    WhileContextOptions options;
    options.parallel_iterations = frame.parallel_iterations;
    if (const auto it = back_prop.find(loop.name); it != back_prop.end()) {
      options.back_prop = it->second;
    }
    WhileContext* const context = scope.AddContext(std::make_unique<WhileContext>(
        loop.name, contexts[static_cast<size_t>(frame.parent)], options));
    contexts[f] = context;
    if (loop.loop_cond != nullptr) context->set_pivot(Output(loop.loop_cond, 0));
    for (Node* enter : loop.enters) {
      const Output inside(enter, 0);
      const OutputRef& from = enter->input(0);
      if (from.node != nullptr && WhileContext::IsInvariant(inside) && !IsRef(inside.dtype())) {
        context->Remember(Output(from.node, from.index), inside);
      }
    }
  }
  if (!is_new) return absl::OkStatus();
  for (const auto& node : graph_.nodes()) {
    if (node == nullptr || node->id() >= num_nodes_) continue;
    ControlFlowContext* const context = contexts[static_cast<size_t>(OutputFrame(*node))];
    if (context != nullptr && scope.ContextOf(*node) == nullptr) {
      scope.SetContextOf(*node, context);
    }
  }
  // What a body begins with, for nodes that have to wait for it.
  for (size_t f = 1; f < loops_.size(); ++f) {
    WhileContext* const context = LoopOf(contexts[f]);
    if (context == nullptr || context->pivot().valid()) continue;
    for (const Variable& variable : loops_[f].variables) {
      if (variable.branch == nullptr) continue;
      const Scope inside = scope.InContext(context).WithoutControlDependencies();
      const Output pivot = NodeBuilder(inside.WithName("body_pivot"), "Identity")
                               .Input(Output(variable.branch, 1))
                               .Finish()
                               .output(0);
      MR_RETURN_IF_ERROR(scope.status());
      context->set_pivot_for_body(pivot);
      break;
    }
  }
  return absl::OkStatus();
}

}  // namespace millrace
