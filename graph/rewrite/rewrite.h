// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_GRAPH_REWRITE_REWRITE_H_
#define MILLRACE_GRAPH_REWRITE_REWRITE_H_

// Rewrites: passes over a pruned and placed graph that leave its results as they are, bit for bit,
// and give the step less to do.
//
// The passes, in order (graph/rewrite/<pass>.h): shapes, constant_folding, dead_branches,
// arithmetic, redundant, identities, common_subexpressions. They run in rounds until nothing
// changes, at most twice.
//
// What holds for every pass:
//   * a node that the caller keeps (feeds, fetches, targets), and one that is not pure
//     (graph/pure.h), is neither merged nor removed; only inside a branch that a constant predicate
//     rules out do such nodes go, for they never run;
//   * what would fail still fails, at a node of the same name: a node is removed when it cannot
//     fail, when its value was computed, when an equal one stays or when it could never run; what
//     merely is not needed any more stays and runs;
//   * what ran after something still runs after it: the control inputs of a node that goes pass to
//     those that read it, and a constant that replaces a value waits for what made it;
//   * nodes of different devices are not merged, and no edge comes to cross devices that did not;
//   * shapes count as known only as far as a kernel enforces them (variables may be assigned
//     another shape under their declared one).
//
// Thread-safety: thread-compatible. Failure: Internal for what is our bug; the graph is then in no
// defined state. What a kernel or a shape function says while a constant is computed is no failure:
// the node stays and says it in the step.

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/status.h"
#include "graph/graph.h"
#include "graph/prune.h"
#include "graph/shape_inference.h"

namespace tensorflow {
class GraphOptions;
}

namespace millrace {

class RewriteContext;  // graph/rewrite/context.h

struct RewritePass {
  absl::string_view name;
  // How many nodes it changed.
  StatusOr<int> (*run)(RewriteContext* context);
};

// All passes, in order.
absl::Span<const RewritePass> RewritePasses();

struct RewriteOptions {
  // Names of the passes that run, in this order.
  std::vector<std::string> passes = {};
  int max_rounds = 2;
  // Largest tensor that becomes a constant; TensorFlow's bound.
  int64_t max_folded_bytes = int64_t{10} << 20;
  // After which passes the graph is dumped; "all" is each of them and "place" is before the first.
  std::vector<std::string> dump_after = {};
  // Gets the stable text of graph/print.h; stderr when empty.
  std::function<void(absl::string_view pass, const std::string& text)> dump = nullptr;
};

// What ConfigProto.graph_options asks for:
//   optimizer_options.opt_level L1 (the default): every pass. L0: none, but constant_folding with
//     do_constant_folding and common_subexpressions with do_common_subexpression_elimination;
//   optimizer_options.max_folded_constant_in_bytes;
//   rewrite_options: the toggles constant_folding, shape_optimization (shapes),
//     arithmetic_optimization (arithmetic, redundant), dependency_optimization (identities) and
//     loop_optimization (dead_branches), where ON and OFF win over the level;
//     disable_meta_optimizer is OFF for all five; meta_optimizer_iterations; `optimizers`, if any,
//     are exactly the passes that run, by our names or TensorFlow's.
// dump_after is taken from the environment: MILLRACE_DUMP_GRAPH_AFTER=pass,pass.
// InvalidArgument for a name in `optimizers` or MILLRACE_DUMP_GRAPH_AFTER that nobody knows.
StatusOr<RewriteOptions> RewriteOptionsFor(const tensorflow::GraphOptions& options);

struct RewriteReport {
  int nodes_before = 0;
  int nodes_after = 0;
  // Changes by pass, all rounds together, in the order of RewriteOptions.
  std::vector<std::pair<std::string, int>> changes;
};

// Rewrites `graph`, whose nodes have their devices. Null entries of `keep` are passed over.
// `evaluator` may be null: then nothing is folded. Both it and `keep` are used during the call
// only.
StatusOr<RewriteReport> RunRewrites(Graph* graph, absl::Span<Node* const> keep,
                                    ConstantEvaluator* evaluator, const RewriteOptions& options);

// The same for the placed graph of one signature: its feeds, fetches and targets are kept.
StatusOr<RewriteReport> RewriteRunGraph(RunGraph* run, ConstantEvaluator* evaluator,
                                        const tensorflow::GraphOptions& options);

}  // namespace millrace

#endif  // MILLRACE_GRAPH_REWRITE_REWRITE_H_
