// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_GRAPH_REWRITE_CONTEXT_H_
#define MILLRACE_GRAPH_REWRITE_CONTEXT_H_

// RewriteContext: what a rewrite pass works on and how it may change it.
//
// A pass walks Order() once, looks at nodes and their inputs, and edits through Bypass and Replace,
// which keep the promises of graph/rewrite/rewrite.h about control inputs, devices and names.
// Removal is left to Sweep, which takes what nothing reads and what cannot fail.
//
// Invariants: an edit never makes a node read what comes after it in Order(); so the order stays
// right for the nodes that are left. Nothing here recurses; each call is linear in the edges that
// it touches.
//
// Thread-safety: thread-compatible. Failure: Internal, from the graph.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "core/hash_table.h"
#include "core/shape.h"
#include "core/status.h"
#include "core/tensor.h"
#include "graph/graph.h"
#include "graph/shape_inference.h"

namespace millrace {

class RewriteContext {
 public:
  // All pointers outlive the context; `evaluator` may be null.
  RewriteContext(Graph* graph, absl::Span<Node* const> keep, ConstantEvaluator* evaluator,
                 int64_t max_folded_bytes);
  ~RewriteContext();

  Graph* graph() const { return graph_; }
  ConstantEvaluator* evaluator() const { return evaluator_; }
  int64_t max_folded_bytes() const { return max_folded_bytes_; }

  // Forgets marks and what was inferred of the graph; finds its order again if nodes were added.
  Status BeginPass();
  // Ids of all nodes, sources first (the back edges of loops aside), the same for the same graph.
  // Those removed since BeginPass have no node any more.
  absl::Span<const int> Order() const { return order_; }
  // Null for one that was removed.
  Node* node(int id) const { return graph_->nodes()[static_cast<size_t>(id)].get(); }

  // A feed, fetch or target: it stays as it is, but what it reads may change.
  bool IsKept(const Node& node) const { return kept_.contains(&node); }
  // Kept, and without inputs: a value that the caller feeds. It is never dead and cannot fail.
  bool IsFeed(const Node& node) const { return IsKept(node) && node.num_inputs() == 0; }

  // The shape of a tensor as far as kernels enforce it. Infers what comes before it, once.
  PartialShape ShapeOf(const OutputRef& tensor);
  // False when the shape function of `node` refuses its inputs (it will fail in the step), or when
  // its shapes cannot be trusted.
  bool ShapesAreKnownOf(const Node& node);

  // What has to come before a node that does without input `source`: nothing for a feed, the
  // control inputs of a constant (or the constant itself when it has many), else the source. False
  // when that cannot be said by control edges (an output of a Switch).
  bool AppendOrderAfter(const OutputRef& source, std::vector<Node*>* controls) const;

  // Makes the readers of `node`, which has one output equal to `source`, read `source`, and run
  // after `controls`; the node is removed. False, and nothing is changed, when the node is kept,
  // when devices or types differ, or when it would take more edges than there are.
  StatusOr<bool> Bypass(Node* node, OutputRef source, absl::Span<Node* const> controls);

  // Puts a node of another op in the place of `node`: same name (`*def` gets it), devices and line.
  // Readers of output `output` read output 0 of it, control edges that leave `node` leave it; other
  // readers lose their input. `node` is removed. `value`: of a Const that shares it
  // (Graph::AddConst).
  StatusOr<Node*> Replace(Node* node, int output, tensorflow::NodeDef* def,
                          absl::Span<const OutputRef> inputs, absl::Span<Node* const> controls,
                          const Tensor* value = nullptr);
  // Puts constants in the place of outputs of `node`; `values` without a value are of outputs that
  // nobody reads. The constant of a node with one output has its name.
  Status ReplaceByConstants(Node* node, absl::Span<const Tensor> values,
                            absl::Span<Node* const> controls);

  // `node` was shown not to fail, or not to be worth keeping, once nothing reads it.
  void MarkUnneeded(const Node& node) { unneeded_.insert(&node); }
  // Removes what nothing reads and what was marked in this pass or cannot fail.
  Status Sweep();

 private:
  struct Shapes;

  Status FindOrder();

  Graph* const graph_;
  ConstantEvaluator* const evaluator_;
  const int64_t max_folded_bytes_;
  HashSet<const Node*> kept_;
  std::vector<int> order_;
  int order_ids_ = -1;  // num_node_ids when order_ was found
  HashSet<const Node*> unneeded_;
  std::unique_ptr<Shapes> shapes_;
};

// `controls` without doubles, in order of first appearance.
void RemoveDoubles(std::vector<Node*>* controls);

bool IsConst(const Node& node);
// Elements of a Const; -1 when it has no value that reads well.
int64_t ConstElements(const Node& node);
// The value, shared. NotFound unless `node` is a Const whose value reads well.
StatusOr<Tensor> ConstValue(const Node& node);
// Passes its first input on and can do nothing else: Identity, StopGradient, PreventGradient.
bool IsIdentity(const Node& node);

}  // namespace millrace

#endif  // MILLRACE_GRAPH_REWRITE_CONTEXT_H_
