// SPDX-License-Identifier: Apache-2.0
#include "graph/frames.h"

#include "absl/strings/strip.h"
#include "core/hash_table.h"
#include "graph/attr.h"
#include "proto/node_def.pb.h"

namespace millrace {
namespace {

// TensorFlow's default, for messages that leave it out.
constexpr int64_t kDefaultParallelIterations = 10;

bool IsOneOf(absl::string_view op, absl::string_view kind) {
  return op == kind || (absl::ConsumePrefix(&op, "Ref") && op == kind);
}

StatusOr<int64_t> ParallelIterations(const FlowNode& enter) {
  if (!HasAttr(*enter.def, "parallel_iterations")) return kDefaultParallelIterations;
  MR_ASSIGN_OR_RETURN(const int64_t n, GetAttr<int64_t>(*enter.def, "parallel_iterations"));
  if (n >= 1) return n;
  return InvalidArgument(enter.op, " '", enter.name,
                         "': attr 'parallel_iterations' must be >= 1, got ", n);
}

}  // namespace

StatusOr<Frames> Frames::Of(absl::Span<const int> order, const Dependencies& dependencies,
                            absl::Span<const BackEdge> back_edges,
                            absl::FunctionRef<FlowNode(int)> node_at) {
  Frames result;
  std::vector<Frame>& frames = result.frames_;
  frames.emplace_back();
  result.places_.resize(static_cast<size_t>(dependencies.num_nodes()));
  HashMap<std::string, int> by_name;
  const auto differ = [&](int node, int first, int frame, int other, int from) {
    return InvalidArgument("node '", node_at(node).name,
                           "': all inputs must come from one frame, got '", node_at(first).name,
                           "' in frame '", result.frame(frame).name, "' and '", node_at(other).name,
                           "' in frame '", result.frame(from).name, "'");
  };
  for (const int i : order) {
    Place& place = result.places_[static_cast<size_t>(i)];
    const absl::Span<const int> inputs = dependencies.inputs(i);
    int frame = 0;
    for (size_t k = 0; k < inputs.size(); ++k) {
      const int from = result.OutputFrameOf(inputs[k]);
      if (k == 0) frame = from;
      if (from != frame) return differ(i, inputs[0], frame, inputs[k], from);
    }
    place = {frame, frame};
    const FlowNode node = node_at(i);
    const bool is_enter = IsOneOf(node.op, "Enter"), is_exit = IsOneOf(node.op, "Exit");
    const bool is_cond = node.op == "LoopCond";
    if (is_enter) {
      StatusOr<std::string> name = GetAttr<std::string>(*node.def, "frame_name");
      if (!name.ok()) return name.status();
      if (name->empty()) {
        return InvalidArgument(node.op, " '", node.name,
                               "': attr 'frame_name' must name a loop, got ''");
      }
      MR_ASSIGN_OR_RETURN(const int64_t parallel, ParallelIterations(node));
      const auto [it, is_new] = by_name.try_emplace(*name, result.num_frames());
      place.leads_to = it->second;
      if (is_new) {
        const int depth = result.frame(frame).depth + 1;
        if (depth > kMaxFrameDepth) {
          return InvalidArgument(node.op, " '", node.name, "': loops must be nested at most ",
                                 kMaxFrameDepth, " deep, got more at loop '", *name, "'");
        }
        frames.push_back({*std::move(name), frame, depth, parallel, i});
        continue;
      }
      const Frame& known = result.frame(it->second);
      if (known.parent != frame) {
        return InvalidArgument(node.op, " '", node.name, "': all that lead into loop '", *name,
                               "' must come from one frame, got '", node_at(known.first_enter).name,
                               "' in frame '", result.frame(known.parent).name, "' and '",
                               node.name, "' in frame '", result.frame(frame).name, "'");
      }
      if (known.parallel_iterations != parallel) {
        return InvalidArgument(node.op, " '", node.name, "': all that lead into loop '", *name,
                               "' must have equal parallel_iterations, got ",
                               known.parallel_iterations, " of '", node_at(known.first_enter).name,
                               "' and ", parallel, " of '", node.name, "'");
      }
    } else if (frame == 0 && (is_exit || is_cond || IsOneOf(node.op, "NextIteration"))) {
      return InvalidArgument(node.op, " '", node.name,
                             "': must be inside a loop that begins with Enter, got ",
                             "no Enter before it");
    } else if (is_exit) {
      place.leads_to = result.frame(frame).parent;
    } else if (is_cond) {
      int& cond = frames[static_cast<size_t>(frame)].loop_cond;
      if (cond >= 0) {
        return InvalidArgument("LoopCond '", node.name, "': loop '", result.frame(frame).name,
                               "' must have one LoopCond, got '", node_at(cond).name, "', too");
      }
      cond = i;
    }
  }
  for (const BackEdge& edge : back_edges) {
    const int from = result.OutputFrameOf(edge.next_iteration);
    const int frame = result.FrameOf(edge.merge);
    if (from == frame) continue;
    const absl::Span<const int> inputs = dependencies.inputs(edge.merge);
    return differ(edge.merge, inputs.empty() ? edge.merge : inputs[0], frame, edge.next_iteration,
                  from);
  }
  return result;
}

StatusOr<Frames> Frames::Of(const Graph& graph) {
  Dependencies dependencies;
  std::vector<BackEdge> back_edges;
  for (const auto& node : graph.nodes()) {
    if (node != nullptr) {
      for (const OutputRef& input : node->inputs()) {
        if (input.node == nullptr) continue;
        if (input.node->is_next_iteration() && node->is_merge()) {
          back_edges.push_back({input.node->id(), node->id()});
        } else {
          dependencies.AddInput(input.node->id());
        }
      }
      for (const Node* src : node->control_inputs()) dependencies.AddInput(src->id());
    }
    dependencies.EndNode();
  }
  const auto node_of = [&](int id) { return graph.nodes()[static_cast<size_t>(id)].get(); };
  MR_ASSIGN_OR_RETURN(const std::vector<int> order,
                      dependencies.Order([&](int id) { return node_of(id)->name(); }));
  return Of(order, dependencies, back_edges, [&](int id) {
    const Node* const node = node_of(id);
    return node == nullptr ? FlowNode{} : FlowNode{node->name(), node->op(), &node->def()};
  });
}

}  // namespace millrace
