// SPDX-License-Identifier: Apache-2.0
#include "graph/place/control_loops.h"

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/dtype.h"
#include "core/new_message.h"
#include "core/tensor.h"
#include "graph/attr.h"
#include "proto/attr_value.pb.h"
#include "proto/node_def.pb.h"

namespace millrace {
namespace {

constexpr char kPrefix[] = "_cloop";

bool IsControlLoop(const Node& node) { return absl::StartsWith(node.name(), kPrefix); }

// For nodes that need both.
Presence Both(Presence a, Presence b) {
  if (a == Presence::kEvery) return b;
  return b == Presence::kEvery || a == b ? a : Presence::kNever;
}
// For nodes that take either.
Presence Either(Presence a, Presence b) {
  if (a == Presence::kNever) return b;
  return b == Presence::kNever || a == b ? a : Presence::kEvery;
}

bool IsConstant(const Node& enter) {
  const StatusOr<bool> constant = GetAttr<bool>(enter, "is_constant");
  return constant.ok() && *constant;
}

class Adder {
 public:
  Adder(Graph* graph, Frames frames) : graph_(graph), frames_(std::move(frames)) {}

  Status Run() {
    MR_RETURN_IF_ERROR(DoubleWhatLeavesIterations());
    MR_ASSIGN_OR_RETURN(frames_, Frames::Of(*graph_));
    MR_ASSIGN_OR_RETURN(presence_, FindPresence(*graph_, frames_));
    for (int i = 0; i < frames_.num_frames(); ++i) {
      frame_presence_.push_back(i == 0 ? Presence::kEvery : RunPresence(frames_.frame(i)));
    }
    // What is added below needs no gate of this kind.
    const int num_ids = graph_->num_node_ids();
    for (int id = 0; id < num_ids; ++id) {
      Node* const node = graph_->nodes()[static_cast<size_t>(id)].get();
      if (node == nullptr) continue;
      // Those of before: a gate has no presence.
      const std::vector<Node*> controls(node->control_inputs().begin(),
                                        node->control_inputs().end());
      for (int i = 0; i < node->num_inputs(); ++i) {
        if (node->input(i).node != nullptr) MR_RETURN_IF_ERROR(AddGate(*node->input(i).node, node));
      }
      for (const Node* control : controls) MR_RETURN_IF_ERROR(AddGate(*control, node));
    }
    return absl::OkStatus();
  }

 private:
  struct ControlLoop {
    Node* enter = nullptr;
    Node* merge = nullptr;
    Node* next = nullptr;
    Node* gate(Presence presence) const {
      return presence == Presence::kEvery ? merge : presence == Presence::kFirst ? enter : next;
    }
  };

  static bool IsElsewhere(const Node& a, const Node& b) {
    return a.assigned_device() != b.assigned_device();
  }

  Status DoubleWhatLeavesIterations() {
    const int num_ids = graph_->num_node_ids();
    for (int id = 0; id < num_ids; ++id) {
      Node* const node = graph_->nodes()[static_cast<size_t>(id)].get();
      if (node == nullptr || !(node->is_enter() || node->is_next_iteration())) continue;
      if (IsRef(node->output_type(0)) || node->input(0).node == nullptr) continue;
      std::map<std::string, Node*> doubles;  // by device
      const std::vector<Edge> edges(node->out_edges().begin(), node->out_edges().end());
      for (const Edge& edge : edges) {
        if (!IsElsewhere(*node, *edge.dst)) continue;
        Node*& there = doubles[edge.dst->assigned_device()];
        if (there == nullptr) {
          MR_ASSIGN_OR_RETURN(there, Double(*node, *edge.dst));
        }
        if (edge.is_control()) {
          graph_->RemoveControlEdge(node, edge.dst);
          graph_->AddControlEdge(there, edge.dst);
        } else {
          MR_RETURN_IF_ERROR(graph_->UpdateInput(edge.dst, edge.dst_input, there, 0));
        }
      }
      if (!edges.empty() && node->out_edges().empty()) graph_->RemoveNode(node);
    }
    return absl::OkStatus();
  }

  StatusOr<Node*> Double(const Node& node, const Node& near) {
    MR_ASSIGN_OR_RETURN(Node * made,
                        graph_->AddNode(FreeName(absl::StrCat(node.name(), "/_at")), node.body()));
    made->set_requested_device(node.requested_device());
    made->set_assigned_device(near.assigned_device());
    made->set_built_at(node.built_at());
    MR_RETURN_IF_ERROR(graph_->AddEdge(node.input(0).node, node.input(0).index, made, 0));
    const std::vector<Node*> controls(node.control_inputs().begin(), node.control_inputs().end());
    for (Node* control : controls) graph_->AddControlEdge(control, made);
    return made;
  }

  Status AddGate(const Node& src, Node* dst) {
    const int frame = frames_.OutputFrameOf(src.id());
    if (frame == 0 || !IsElsewhere(src, *dst)) return absl::OkStatus();
    const Presence presence = presence_[static_cast<size_t>(src.id())];
    if (presence == Presence::kNever) {
      return InvalidArgument("Partition: what is sent from device to device inside of loop '",
                             frames_.frame(frame).name,
                             "' must have a value in its first iteration or in all others, got '",
                             src.name(), "' on ", src.assigned_device(), " feeding '", dst->name(),
                             "' on ", dst->assigned_device());
    }
    MR_ASSIGN_OR_RETURN(const ControlLoop* loop, LoopAt(frame, src, *dst));
    graph_->AddControlEdge(loop->gate(presence), dst);
    return absl::OkStatus();
  }

  // The control loop of `frame` on the device of `dst`, which reads `src`.
  StatusOr<const ControlLoop*> LoopAt(int frame, const Node& src, const Node& dst) {
    const auto [it, is_new] = loops_.try_emplace({frame, dst.assigned_device()});
    if (!is_new) return &it->second;
    const Frames::Frame& of = frames_.frame(frame);
    if (of.loop_cond < 0) {
      return InvalidArgument(
          "Partition: a loop on several devices must have a LoopCond, got none in loop '", of.name,
          "', where '", src.name(), "' on ", src.assigned_device(), " feeds '", dst.name(), "' on ",
          dst.assigned_device());
    }
    Node* start = nullptr;
    if (of.parent == 0) {
      MR_ASSIGN_OR_RETURN(const Tensor nothing, Tensor::Zeros(DT_FLOAT, Shape::Vector(0)));
      const auto def = NewMessage<tensorflow::NodeDef>();
      def->set_op("Const");
      SetAttr(DT_FLOAT, &(*def->mutable_attr())["dtype"]);
      SetAttr(nothing, &(*def->mutable_attr())["value"]);
      MR_ASSIGN_OR_RETURN(start, Add(def.get(), of, dst, {}));
    } else {
      MR_ASSIGN_OR_RETURN(const ControlLoop* outer, LoopAt(of.parent, src, dst));
      // The loop is there in those iterations of the outer one in which its Enters run.
      start = outer->gate(frame_presence_[static_cast<size_t>(frame)]);
    }
    ControlLoop& loop = it->second;  // a map's entries stay where they are
    const auto enter = NewMessage<tensorflow::NodeDef>();
    enter->set_op("Enter");
    SetAttr(of.name, &(*enter->mutable_attr())["frame_name"]);
    SetAttr(of.parallel_iterations, &(*enter->mutable_attr())["parallel_iterations"]);
    SetAttr(DT_FLOAT, &(*enter->mutable_attr())["T"]);
    MR_ASSIGN_OR_RETURN(loop.enter, Add(enter.get(), of, dst, {{start, 0}}));
    const auto merge = NewMessage<tensorflow::NodeDef>();
    merge->set_op("Merge");
    SetAttr(DT_FLOAT, &(*merge->mutable_attr())["T"]);
    SetAttr(int64_t{2}, &(*merge->mutable_attr())["N"]);
    MR_ASSIGN_OR_RETURN(loop.merge, Add(merge.get(), of, dst, {{loop.enter, 0}}));
    Node* const cond = graph_->nodes()[static_cast<size_t>(of.loop_cond)].get();
    MR_ASSIGN_OR_RETURN(Node * ways, Add(OneType("Switch").get(), of, dst, {{loop.merge, 0}}));
    MR_RETURN_IF_ERROR(graph_->AddEdge(cond, 0, ways, 1));
    if (IsElsewhere(*cond, *ways)) graph_->AddControlEdge(loop.merge, ways);
    MR_ASSIGN_OR_RETURN(loop.next, Add(OneType("NextIteration").get(), of, dst, {{ways, 1}}));
    MR_RETURN_IF_ERROR(graph_->AddEdge(loop.next, 0, loop.merge, 1));
    return &loop;
  }

  // In which iterations of its parent a loop runs: those in which an Enter of it does. (The others
  // do as well, or the loop never ends, here as on one device.)
  Presence RunPresence(const Frames::Frame& frame) const {
    Presence presence = Presence::kEvery;
    const Node& of = *graph_->nodes()[static_cast<size_t>(frame.first_enter)];
    for (const OutputRef& input : of.inputs()) {
      if (input.node != nullptr) {
        presence = Both(presence, presence_[static_cast<size_t>(input.node->id())]);
      }
    }
    for (const Node* control : of.control_inputs()) {
      presence = Both(presence, presence_[static_cast<size_t>(control->id())]);
    }
    return presence == Presence::kNever ? Presence::kEvery : presence;
  }

  static std::shared_ptr<tensorflow::NodeDef> OneType(const char* op) {
    auto def = NewMessage<tensorflow::NodeDef>();
    def->set_op(op);
    SetAttr(DT_FLOAT, &(*def->mutable_attr())["T"]);
    return def;
  }

  // Gives `*def` a name and the device of `near`.
  StatusOr<Node*> Add(tensorflow::NodeDef* def, const Frames::Frame& of, const Node& near,
                      std::initializer_list<OutputRef> inputs) {
    def->set_name(FreeName(absl::StrCat(kPrefix, "/", of.name, "/", def->op())));
    def->set_device(near.assigned_device());
    MR_ASSIGN_OR_RETURN(Node * node, graph_->AddNode(*def));
    node->set_assigned_device(near.assigned_device());
    int i = 0;
    for (const OutputRef& input : inputs) {
      MR_RETURN_IF_ERROR(graph_->AddEdge(input.node, input.index, node, i++));
    }
    return node;
  }
  std::string FreeName(const std::string& prefix) {
    std::string name;
    do {
      name = absl::StrCat(prefix, "_", next_name_++);
    } while (graph_->FindNode(name) != nullptr);
    return name;
  }

  Graph* const graph_;
  Frames frames_;
  std::vector<Presence> presence_;        // by node id, of nodes that were there
  std::vector<Presence> frame_presence_;  // by frame
  std::map<std::pair<int, std::string>, ControlLoop> loops_;  // by frame and device
  int next_name_ = 0;
};

}  // namespace

StatusOr<std::vector<Presence>> FindPresence(const Graph& graph, const Frames& frames) {
  MR_ASSIGN_OR_RETURN(const std::vector<Node*> order, TopologicalOrder(graph));
  std::vector<Presence> presence(static_cast<size_t>(graph.num_node_ids()), Presence::kEvery);
  // Of each frame, in its parent: where its Enters run.
  std::vector<Presence> of_frame(static_cast<size_t>(frames.num_frames()), Presence::kEvery);
  const auto of = [&](const Node* node) { return presence[static_cast<size_t>(node->id())]; };
  for (const Node* node : order) {
    Presence runs = Presence::kEvery;
    if (node->is_merge()) {
      Presence any = Presence::kNever;
      for (const OutputRef& input : node->inputs()) {
        if (input.node == nullptr) continue;
        // What goes round comes later, whatever that is.
        any = Either(any, input.node->is_next_iteration() ? Presence::kLater : of(input.node));
      }
      runs = any;
    } else {
      for (const OutputRef& input : node->inputs()) {
        if (input.node != nullptr) runs = Both(runs, of(input.node));
      }
    }
    for (const Node* control : node->control_inputs()) runs = Both(runs, of(control));
    Presence gives = runs;
    if (node->is_enter()) {
      Presence& frame = of_frame[static_cast<size_t>(frames.OutputFrameOf(node->id()))];
      frame = Both(frame, runs);
      gives = IsConstant(*node) ? Presence::kEvery : Presence::kFirst;
    } else if (node->is_exit()) {
      gives = of_frame[static_cast<size_t>(frames.FrameOf(node->id()))];
    } else if (node->is_next_iteration()) {
      gives = runs == Presence::kEvery ? Presence::kLater : Presence::kNever;
    }
    presence[static_cast<size_t>(node->id())] = gives;
  }
  return presence;
}

bool LoopsSpanDevices(const Graph& graph, const Frames& frames) {
  for (const auto& node : graph.nodes()) {
    if (node == nullptr || frames.OutputFrameOf(node->id()) == 0) continue;
    for (const Edge& edge : node->out_edges()) {
      if (edge.dst->assigned_device() != node->assigned_device()) return true;
    }
  }
  return false;
}

Status AddControlLoops(Graph* graph) {
  MR_ASSIGN_OR_RETURN(Frames frames, Frames::Of(*graph));
  return Adder(graph, std::move(frames)).Run();
}

Node* GateOf(const Node& reader, Presence presence) {
  for (Node* control : reader.control_inputs()) {
    if (!IsControlLoop(*control)) continue;
    const bool fits = presence == Presence::kEvery   ? control->is_merge()
                      : presence == Presence::kFirst ? control->is_enter()
                                                     : control->is_next_iteration();
    if (fits) return control;
  }
  return nullptr;
}

}  // namespace millrace
