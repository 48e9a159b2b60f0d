// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_GRAPH_COPY_H_
#define MILLRACE_GRAPH_COPY_H_

// Copies of graphs and of single nodes between graphs.
//
// A copied node shares the body (op, attrs, value) of the original and keeps its name, requested
// and assigned device and the line that built it; node ids of a copy are dense in the order of the
// original's. No attr is copied or validated again.
//
// Thread-safety: the source is only read; the target belongs to one thread. Failure: the errors of
// Graph::AddNode and Graph::AddEdge (a name that the target has already, for one).

#include <memory>

#include "core/status.h"
#include "graph/graph.h"

namespace millrace {

// Adds `node` of another graph to `to` without its edges.
StatusOr<Node*> CopyNode(const Node& node, Graph* to);

// All nodes and edges, versions and library.
StatusOr<std::unique_ptr<Graph>> CopyGraph(const Graph& graph);

}  // namespace millrace

#endif  // MILLRACE_GRAPH_COPY_H_
