// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_GRAPH_BACKPROP_H_
#define MILLRACE_GRAPH_BACKPROP_H_

// Backprop: one call of AddGradients (graph/gradient.h).
//
// The graph is differentiated region by region. A region is the graph outside of loops, or one
// iteration of a loop's body: an acyclic graph whose nodes give the gradients of their inputs once
// those of their outputs are complete. A loop inside of a region counts as one node, whose inputs
// are those of its Enters and whose outputs are its Exits; its gradient is another loop, made of
// the gradient of its body's region (backprop_loop.cc).
//
//   region ys ... <─ node <─ node <─ [loop] <─ node <─ xs
//                                      └─ region: one iteration of its body
//
// Thread-safety: as the Scope's.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "core/status.h"
#include "graph/control_flow.h"
#include "graph/gradient.h"
#include "graph/graph.h"
#include "graph/loops.h"
#include "graph/op_registry.h"
#include "graph/scope.h"

namespace millrace {

// Do gradients pass through outputs of this type? An op kind that is not known has outputs without
// type: passing them leads to the error that names it.
bool GradientFlows(const Node& node, int output);

class Backprop {
 public:
  // `source`: of the calculation that this one is a part of, a function's in that of its call; by
  // default a name of its own. It tells apart what both would keep, as gradients of a TensorArray.
  Backprop(const Scope& scope, const GradientOptions& options, bool gated,
           const std::string& source = "");

  StatusOr<std::vector<Gradient>> Run(absl::Span<const Output> ys, absl::Span<const Output> xs);

 private:
  struct Region {
    Region(const Scope& s, int f, bool base) : scope(s), frame(f), is_base(base) {}
    const Scope scope;   // where its gradient is built
    const int frame;     // that its tensors are in
    const bool is_base;  // not an iteration of a loop that is differentiated
    // Edges from a dependent output to a node between xs and ys whose gradient is still to come; a
    // loop is known by one of its Enters.
    absl::flat_hash_map<Node*, int> pending;
    absl::flat_hash_map<Output, std::vector<Gradient>> contributions;
    absl::flat_hash_map<Output, Gradient> sums;
  };

  void MarkDependents(absl::Span<const Output> xs);
  bool Depends(const OutputRef& ref) const {
    return ref.node != nullptr && dependents_.contains(Output(ref.node, ref.index));
  }
  // The node, or what stands for the loop that it leads out of.
  Node* UnitOf(Node* node) const;
  // The inputs of a unit of the region that depend on an x: from(i-th input of node).
  void ForEachDependence(const Region& region, Node* unit,
                         absl::FunctionRef<void(Node* node, int i)> from) const;
  bool Propagates(const Region& region, Node* unit) const;

  // From what was contributed to `ys` to all sums of the region.
  Status Propagate(Region* region, absl::Span<const Output> ys);
  void CountPending(Region* region, absl::Span<const Output> ys) const;
  // The sum of what was contributed to the output; none where nothing was, or the output is a stop.
  Gradient TakeSum(Region* region, const Output& output, const Scope& scope);
  Status PropagateThrough(Region* region, Node* node);
  Status PropagateThroughNode(Region* region, Node* node);
  Status CheckInputGradient(const Scope& scope, const Node& node, int i, const Gradient& gradient);
  // The gradient function of `node`; empty when no gradient flows.
  StatusOr<GradientFn> FunctionOf(const Node& node);
  Scope ScopeFor(const Region& region, Node* node) const;

  // --- Loops (backprop_loop.cc)

  // Given the gradients of the exits that have one: those of the inputs of the Enters.
  using EnterGradients = std::vector<std::pair<Node*, Gradient>>;
  StatusOr<EnterGradients> DifferentiateLoop(
      const Region& around, const Loops::Loop& loop,
      const absl::flat_hash_map<Node*, Gradient>& exit_gradients);
  // What the gradient of a variable of a loop begins with: the sum of those of its exits, or zeros.
  // `here`: around the gradient loop; `in_forward`: in the loop itself.
  StatusOr<Output> InitialGradient(const Scope& here, const Scope& in_forward,
                                   const Loops::Variable& variable,
                                   const absl::flat_hash_map<Node*, Gradient>& exit_gradients);
  // Sums up, along the gradient loop, the gradients of what is the same in each iteration.
  Status AddInvariantGradients(const Scope& here, const Loops::Loop& loop, const Region& body,
                               LoopBuilder* backward, EnterGradients* result);
  // Which variables' gradients are needed, by number, for those of the exits.
  std::vector<bool> NeededVariables(const Loops::Loop& loop,
                                    const absl::flat_hash_map<Node*, Gradient>& exits) const;

  const Scope& caller_;
  const Scope scope_;
  const std::string source_;
  const GradientOptions& options_;
  const bool gated_;
  absl::flat_hash_set<Output> stopped_;
  // The xs and every output that a change of an x reaches.
  absl::flat_hash_set<Output> dependents_;
  std::shared_ptr<const Loops> loops_;  // null for a graph without; contexts keep it, too
};

}  // namespace millrace

#endif  // MILLRACE_GRAPH_BACKPROP_H_
