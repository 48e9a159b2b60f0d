// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/straight_loop.h"

#include <functional>
#include <memory>
#include <queue>
#include <typeinfo>
#include <utility>

#include "absl/types/span.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

bool IsData(const Plan::Edge& edge) { return (edge.flags & Plan::kControl) == 0; }

class Finder {
 public:
  Finder(const Plan& plan, const Plan::Frame& frame)
      : plan_(plan),
        frame_(frame),
        frame_nodes_(plan.nodes().subspan(frame.first_node, frame.num_nodes)),
        from_enter_(frame.num_nodes, 0),
        from_next_(frame.num_nodes, 0),
        missing_(frame.num_nodes, 0),
        found_(std::make_unique<StraightLoop>()) {}

  std::unique_ptr<const StraightLoop> Find() {
    if (frame_.num_async > 0 || frame_.has_transfers || frame_.num_children > 0) return nullptr;
    if (frame_.num_next_iterations == 0 || !SeeEnters() || !SeeEdges() || !SeeMerges()) {
      return nullptr;
    }
    if (!Order()) return nullptr;
    found_->initially_dead.resize(frame_.num_nodes);
    for (const uint32_t index : order_) Add(index);
    found_->num_next_iterations = frame_.num_next_iterations;
    return std::move(found_);
  }

 private:
  uint32_t IndexOf(const Plan::Edge& edge) const { return edge.dst - frame_.first_node; }
  absl::Span<const Plan::Edge> EdgesOf(const Plan::Node& node) const {
    return plan_.edges().subspan(node.first_edge, node.num_edges);
  }

  bool SeeEnters() {
    found_->constant_of_slot.assign(frame_.num_slots, StraightLoop::kNone);
    for (const Plan::Node& node : plan_.nodes()) {
      if ((node.flags & Plan::kEnter) == 0 || &plan_.frames()[node.flow] != &frame_) continue;
      const bool constant = (node.flags & Plan::kConstant) != 0;
      for (const Plan::Edge& edge : EdgesOf(node)) {
        const bool to_merge = (edge.flags & Plan::kToMerge) != 0;
        if (!constant) {
          if (!IsData(edge) || !to_merge) return false;
          ++from_enter_[IndexOf(edge)];
        } else if (IsData(edge)) {
          if (to_merge) return false;
          const uint32_t slot = edge.slot - frame_.first_slot;
          found_->constant_of_slot[slot] = node.constant;
          found_->constants.push_back(
              {slot, node.constant, IsPred(edge) ? IndexOf(edge) : StraightLoop::kNone});
        }
      }
    }
    return true;
  }

  bool SeeEdges() {
    for (const Plan::Node& node : frame_nodes_) {
      const bool leaves = (node.flags & Plan::kLeavesIteration) != 0;
      if (leaves && (node.flags & Plan::kRefInputs) != 0) return false;
      if ((node.flags & Plan::kExit) != 0) continue;
      if ((node.flags & Plan::kNextIteration) != 0) {
        if (node.num_edges != 1) return false;
        const Plan::Edge& edge = EdgesOf(node)[0];
        if (!IsData(edge) || (edge.flags & Plan::kToMerge) == 0) return false;
        ++from_next_[IndexOf(edge)];
        continue;
      }
      for (const Plan::Edge& edge : EdgesOf(node)) ++missing_[IndexOf(edge)];
    }
    return true;
  }

  bool SeeMerges() {
    for (uint32_t i = 0; i < frame_.num_nodes; ++i) {
      if (from_enter_[i] == 0 && from_next_[i] == 0) continue;
      const bool comes_round = from_enter_[i] == 1 && from_next_[i] == 1 && missing_[i] == 0 &&
                               frame_nodes_[i].num_inputs == 2;
      if (!comes_round) return false;
      order_.push_back(i);
    }
    found_->num_loop_merges = static_cast<uint32_t>(order_.size());
    return true;
  }

  // The Merges at which values come round, then the others, inputs first and else as in the plan.
  bool Order() {
    std::priority_queue<uint32_t, std::vector<uint32_t>, std::greater<uint32_t>> ready;
    for (uint32_t i = 0; i < frame_.num_nodes; ++i) {
      if (missing_[i] == 0 && from_next_[i] == 0) ready.push(i);
    }
    const auto pass = [&](uint32_t index) {
      const Plan::Node& node = frame_nodes_[index];
      if ((node.flags & Plan::kLeavesIteration) != 0) return;
      for (const Plan::Edge& edge : EdgesOf(node)) {
        if (--missing_[IndexOf(edge)] == 0) ready.push(IndexOf(edge));
      }
    };
    for (uint32_t i = 0; i < found_->num_loop_merges; ++i) pass(order_[i]);
    while (!ready.empty()) {
      const uint32_t index = ready.top();
      ready.pop();
      order_.push_back(index);
      pass(index);
    }
    return order_.size() == frame_.num_nodes;
  }

  StraightLoop::Way WayOf(const Plan::Node& node) const {
    using Way = StraightLoop::Way;
    // A reference may have to be read first.
    if ((node.flags & Plan::kRefInputs) != 0) return Way::kKernel;
    if ((node.flags & Plan::kNextIteration) != 0) return Way::kNextIteration;
    if ((node.flags & Plan::kExit) != 0) return Way::kExit;
    if ((node.flags & Plan::kSwitch) != 0) return Way::kSwitch;
    if ((node.flags & Plan::kMerge) != 0) {
      for (const Plan::Edge& edge : EdgesOf(node)) {
        if (IsData(edge) && edge.output != 0) return Way::kKernel;
      }
      return Way::kMerge;
    }
    return typeid(*node.kernel) == typeid(PassInputKernel) ? Way::kPass : Way::kKernel;
  }

  // Of a data edge: it leads to a Switch that the engine sees to, as its pred.
  bool IsPred(const Plan::Edge& edge) const {
    const Plan::Node& dst = frame_nodes_[IndexOf(edge)];
    return WayOf(dst) == StraightLoop::Way::kSwitch && edge.slot == dst.first_input + 1;
  }

  void Add(uint32_t index) {
    const Plan::Node& node = frame_nodes_[index];
    StraightLoop::Node item = {};
    item.node = &node;
    item.index = index;
    item.first_input = node.first_input - frame_.first_slot;
    item.first_edge = static_cast<uint32_t>(found_->edges.size());
    item.first_reader = static_cast<uint32_t>(found_->readers.size());
    item.way = WayOf(node);
    for (uint32_t i = 0; i < node.num_inputs; ++i) {
      const bool constant = found_->constant_of_slot[item.first_input + i] != StraightLoop::kNone;
      item.has_constants = item.has_constants || constant;
    }
    if ((node.flags & Plan::kExit) == 0) {
      for (const Plan::Edge& edge : EdgesOf(node)) {
        const bool to_merge = (edge.flags & Plan::kToMerge) != 0;
        // A Merge counts live values, a trigger runs in any case.
        const bool kills = !to_merge && (edge.flags & Plan::kToTrigger) == 0;
        if (IsData(edge)) {
          found_->edges.push_back({IndexOf(edge), edge.slot - frame_.first_slot, edge.output,
                                   (edge.flags & Plan::kMoves) != 0, to_merge, kills,
                                   IsPred(edge)});
        }
        if (kills && (node.flags & Plan::kNextIteration) == 0) {
          found_->readers.push_back(IndexOf(edge));
        }
      }
    }
    item.num_edges = static_cast<uint32_t>(found_->edges.size()) - item.first_edge;
    item.num_readers = static_cast<uint32_t>(found_->readers.size()) - item.first_reader;
    found_->nodes.push_back(item);
    const bool of_branches = (node.flags & Plan::kMerge) != 0 && from_next_[index] == 0;
    found_->initially_dead[index] = of_branches ? 1 : 0;
    if ((node.flags & Plan::kMayBeExpensive) != 0) found_->measured.push_back(index);
  }

  const Plan& plan_;
  const Plan::Frame& frame_;
  const absl::Span<const Plan::Node> frame_nodes_;
  // By node: edges from Enters that are not constant, from NextIterations, from inside.
  std::vector<uint32_t> from_enter_, from_next_, missing_;
  std::vector<uint32_t> order_;
  std::unique_ptr<StraightLoop> found_;
};

}  // namespace

std::unique_ptr<const StraightLoop> StraightLoop::Of(const Plan& plan, const Plan::Frame& frame) {
  return Finder(plan, frame).Find();
}

}  // namespace millrace
