// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_GRAPH_LOOPS_H_
#define MILLRACE_GRAPH_LOOPS_H_

// Loops: the loops of a graph, variable by variable, and the conditions within them, as its nodes
// show them, whatever program built the graph or wrote its file.
//
// Thread-safety: a value, of a graph that it does not follow: nodes that are added later are not in
// it. Lifetime: nodes live as long as the graph.
// Failure: as Frames::Of (graph/frames.h).

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "core/status.h"
#include "graph/control_flow.h"
#include "graph/frames.h"
#include "graph/graph.h"
#include "graph/scope.h"

namespace millrace {

class Loops {
 public:
  // Enter ─> Merge ─> Switch ─> Exits; what comes back is the NextIteration's input.
  struct Variable {
    Node* enter = nullptr;
    Node* merge = nullptr;
    Node* branch = nullptr;  // the Switch on the LoopCond; null: there is none
    Node* next = nullptr;
    std::vector<Node*> exits;
  };
  struct Loop {
    int frame = 0;
    std::string name;
    Node* loop_cond = nullptr;
    std::vector<Node*> enters;  // all
    std::vector<Node*> exits;   // all
    std::vector<Variable> variables;
    bool has_pops = false;  // it takes from stacks: it is the gradient of another loop
  };
  // A tensor is alive when `pred` is `branch`.
  struct Condition {
    Output pred;
    bool branch = false;
    friend bool operator==(const Condition& a, const Condition& b) {
      return a.pred == b.pred && a.branch == b.branch;
    }
  };

  static StatusOr<std::unique_ptr<Loops>> Of(const Graph& graph);

  // The frame in which a tensor is; 0 outside of loops.
  int FrameOf(const Output& tensor) const { return OutputFrame(*tensor.node()); }
  // Is frame `outer` this one or one around it?
  bool IsAround(int outer, int frame) const {
    while (frame != outer && frame > 0) frame = frames_.frame(frame).parent;
    return frame == outer;
  }
  // The loop of a frame > 0.
  const Loop& loop(int frame) const { return loops_[static_cast<size_t>(frame)]; }
  // The loop that the Exit leads out of.
  const Loop& LoopOfExit(const Node& exit) const { return loop(frames_.FrameOf(exit.id())); }
  // Is it the Merge of a loop variable?
  static bool IsLoopMerge(const Node& node);
  // Is it the Switch that takes a loop variable into the body or to its Exit?
  static bool IsLoopSwitch(const Node& node);

  // Whether the iteration that a tensor is of computes it: all of these hold.
  std::vector<Condition> ConditionsOf(const Output& tensor) const;

  // The contexts of all loops of the graph: of those that the program has built, and new ones for
  // those that came in files.
  Status EnsureContexts(const Scope& scope) const;

 private:
  Loops(const Graph& graph, Frames frames) : graph_(graph), frames_(std::move(frames)) {}
  int OutputFrame(const Node& node) const {
    return node.id() < num_nodes_ ? frames_.OutputFrameOf(node.id()) : 0;
  }
  void FindLoops();
  void FindConditions(absl::Span<Node* const> order);
  // Sets of conditions by number; 0 is the empty one.
  int Extended(int set, Condition condition);
  int Union(int a, int b);
  int CommonPart(int a, int b);
  int SetOf(const OutputRef& ref) const;

  const Graph& graph_;
  const Frames frames_;
  int num_nodes_ = 0;
  std::vector<Loop> loops_;  // by frame
  std::vector<std::vector<Condition>> sets_;
  std::vector<int> set_of_;  // by node; of a Switch, without its own condition
  absl::flat_hash_map<std::pair<int, Output>, std::pair<int, int>> extended_;
};

}  // namespace millrace

#endif  // MILLRACE_GRAPH_LOOPS_H_
