// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_GRAPH_FRAMES_H_
#define MILLRACE_GRAPH_FRAMES_H_

// Frames: which loop each node of a graph runs in.
//
// A frame is a loop; frame 0, the root, is the graph outside of loops. Enter leads into a frame,
// Exit out of it, NextIteration on to its next iteration:
//
//   Enter (runs in the parent) ─> Merge ─> Switch ─> ... ─> NextIteration ─> the Merge again
//                                            └─> Exit (runs in the frame) ─> the parent
//
// What holds of a graph whose frames were found:
//   * all inputs of a node come from one frame, the one in which it runs; its outputs are in the
//     same frame, those of an Enter in the frame that it leads into, those of an Exit in the
//     parent;
//   * the Enters of one frame name run in one frame and agree in parallel_iterations, which is at
//     least 1; a frame has at most one LoopCond;
//   * frames are nested at most kMaxFrameDepth deep;
//   * a parent comes before its children.
//
// Verification, partitioning and plans look here, and nowhere else.
//
// Thread-safety: a value. Lifetime: names are copied, nodes are numbers (ids of a Graph).
// Failure: InvalidArgument with the nodes that disagree.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/status.h"
#include "graph/graph.h"

namespace millrace {

inline constexpr int kMaxFrameDepth = 100;

// What is looked at of a node, wherever it comes from. `def` has the attrs of an Enter.
struct FlowNode {
  absl::string_view name;
  absl::string_view op;  // "" for a number that stands for no node
  const tensorflow::NodeDef* def = nullptr;
};

// A NextIteration and the Merge that it feeds, which Dependencies leave out.
struct BackEdge {
  int next_iteration;
  int merge;
};

class Frames {
 public:
  struct Frame {
    std::string name;  // attr frame_name; "" for the root
    int parent = -1;
    int depth = 0;
    int64_t parallel_iterations = 1;
    int first_enter = -1;  // a node that leads into it
    int loop_cond = -1;    // its LoopCond; -1: none
  };

  // InvalidArgument also for an illegal cycle.
  static StatusOr<Frames> Of(const Graph& graph);
  // The same of numbered nodes: `order` as Dependencies::Order gives it.
  static StatusOr<Frames> Of(absl::Span<const int> order, const Dependencies& dependencies,
                             absl::Span<const BackEdge> back_edges,
                             absl::FunctionRef<FlowNode(int)> node_at);

  int num_frames() const { return static_cast<int>(frames_.size()); }
  const Frame& frame(int i) const { return frames_[static_cast<size_t>(i)]; }
  // The frame in which a node runs, and the one in which its outputs are.
  int FrameOf(int node) const { return places_[static_cast<size_t>(node)].runs_in; }
  int OutputFrameOf(int node) const { return places_[static_cast<size_t>(node)].leads_to; }

 private:
  struct Place {
    int runs_in = 0;
    int leads_to = 0;
  };
  std::vector<Frame> frames_;
  std::vector<Place> places_;  // by node
};

}  // namespace millrace

#endif  // MILLRACE_GRAPH_FRAMES_H_
