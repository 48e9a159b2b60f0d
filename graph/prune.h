// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_GRAPH_PRUNE_H_
#define MILLRACE_GRAPH_PRUNE_H_

// Pruning: the part of a graph that one Run needs, with its feeds and fetches as nodes.
//
// A fed tensor is replaced for all of its consumers by a feed node; a fetched one gets a fetch
// node. In one process these are _Arg ("_arg_<node>_<output>_<i>") and _Retval; between a client
// and a cluster they are client-terminated _Recv ("_recv_<node>_<output>") and _Send, whose
// tensor_name is the name exactly as the client wrote it. What remains is everything from which a
// fetch or a target can be reached; a node whose outputs are all fed is not needed by its
// consumers. Control edges that leave a fed Placeholder leave its feed node instead; those of other
// fed nodes stay, so that such a node may still run.
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

namespace millrace {

// Removes the nodes from which no target can be reached along data and control edges.
Status PruneForTargets(Graph* graph, absl::Span<Node* const> targets);

// What one Run asks for, by name: feeds and fetches are tensors ("x" or "x:0"), targets nodes.
struct RunSignature {
  std::vector<std::string> feeds;
  std::vector<std::string> fetches;
  std::vector<std::string> targets;
};

// A list of names as part of a key. Names are a caller's text and may hold any separator, so each
// list begins with its size and each name with its length.
template <typename Names, typename NameOf>
void AppendNames(const Names& names, const NameOf& name_of, std::string* key) {
  const auto append_size = [key](size_t size) {
    key->append(reinterpret_cast<const char*>(&size), sizeof(size));
  };
  append_size(names.size());
  for (const auto& item : names) {
    const std::string& name = name_of(item);
    append_size(name.size());
    key->append(name);
  }
}
// Equal for equal signatures only: the names of feeds, fetches and targets, in this order.
std::string SignatureKey(const RunSignature& signature);

struct RunGraphOptions {
  // Client-terminated _Recv and _Send instead of _Arg and _Retval.
  bool client_terminated = false;
  // Feed and fetch nodes are requested and assigned here: the full name of the CPU of the task that
  // talks to the client. May be empty for _Arg and _Retval; then the placer chooses.
  std::string device = "";
  // Of `device`, for client-terminated nodes.
  uint64_t incarnation = 0;
};

// How feeds and fetches became nodes of a run graph; in the order of the RunSignature.
struct RewrittenSignature {
  std::vector<DType> feed_types;
  std::vector<DType> fetch_types;
  // Null for a feed that nothing needed.
  std::vector<Node*> feed_nodes;
  // A tensor that is fetched twice has one _Send, but a _Retval for each time.
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
