// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_GRAPH_GRAPH_EXTENSION_H_
#define MILLRACE_GRAPH_GRAPH_EXTENSION_H_

// Graph extension: the graph of a session only grows, whichever client extends it.
//
// Several clients may bring overlapping graphs (TensorFlow's own send the whole graph again), so a
// node whose name is there already must be the same node: equal but for the order of attrs and of
// control inputs, defaults that are written out or not, "x" for "x:0" and debug information. All
// others are added; their inputs may come from old and new nodes. Only they are verified: extending
// a large graph by a few nodes costs as much as these (except that a graph with loops has its
// frames checked whole).
//
// A graph in memory is taken as it is: its nodes' bodies are shared, not copied and not validated
// again, except where an attr was edited since, where a constant is none, and where the op kind has
// become known since. What the owner does to it afterwards changes nothing here: bodies are
// immutable, an edit gives a node another one.
//
// Thread-safety: the caller guards the graph.
// Failure: InvalidArgument for another node under a known name, and as ImportGraphDef says; the
// graph is then as it was.

#include "core/status.h"
#include "graph/graph.h"
#include "proto/graph.pb.h"

namespace millrace {

Status ExtendGraph(const tensorflow::GraphDef& def, Graph* graph);
// Attrs are moved out of `def`; see ImportGraphDef.
Status ExtendGraph(tensorflow::GraphDef&& def, Graph* graph);
// The nodes of `from` from id `first_id` on, with its functions; those before may be inputs, by
// their names. Requested devices come along, assigned ones and building lines do not.
Status ExtendGraph(const Graph& from, int first_id, Graph* graph);

}  // namespace millrace

#endif  // MILLRACE_GRAPH_GRAPH_EXTENSION_H_
