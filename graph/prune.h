// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_GRAPH_PRUNE_H_
#define MILLRACE_GRAPH_PRUNE_H_

// Pruning: the part of a graph that one Run needs, with its feeds and fetches as nodes.
//
// A fed tensor is replaced for all of its consumers by an _Arg ("_arg_<node>_<output>_<i>"); a
// fetched one gets a _Retval. Their attr "index" is the position in the signature: a step knows no
// names. What remains is everything from which a fetch or a target can be reached; a node whose
// outputs are all fed is not needed by its consumers. Control edges that leave a fed Placeholder
// leave its _Arg instead; those of other fed nodes stay, so that such a node may still run.
//
// Thread-safety: the whole graph is only read; many threads may build run graphs of one graph.
// Failure: InvalidArgument and NotFound name the feed, fetch or target; nothing is made then.

#include <memory>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "core/dtype.h"
#include "core/status.h"
#include "graph/graph.h"
#include "graph/signature.h"

namespace millrace {

// Removes the nodes from which no target can be reached along data and control edges.
Status PruneForTargets(Graph* graph, absl::Span<Node* const> targets);

struct RunGraphOptions {
  // Each _Arg and _Retval is requested and assigned here: the full name of the CPU of the task that
  // talks to the client. When empty the placer chooses.
  std::string device = "";
};

// How feeds and fetches became nodes of a run graph; in the order of the RunSignature.
struct RewrittenSignature {
  std::vector<DType> feed_types;
  std::vector<DType> fetch_types;
  // Null for a feed that nothing needed.
  std::vector<Node*> feed_nodes;
  std::vector<Node*> fetch_nodes;
  std::vector<Node*> target_nodes;
};

struct RunGraph {
  std::unique_ptr<Graph> graph;
  RewrittenSignature signature;
};

// A new graph with the nodes of `graph` that `signature` needs. The op kinds of internal_ops must
// be linked into the program.
//   InvalidArgument: nothing to fetch or execute; a tensor fed twice, or fed and fetched; an output
//     that the node does not have; a fetch of a node without outputs; malformed names; a consumer
//     that needs a reference to the fed tensor.
//   NotFound: a feed, fetch or target that is not in the graph.
//   Unimplemented: a fetch from a node of an op kind that this program does not know.
StatusOr<RunGraph> BuildRunGraph(const Graph& graph, const RunSignature& signature,
                                 const RunGraphOptions& options = {});

}  // namespace millrace

#endif  // MILLRACE_GRAPH_PRUNE_H_
