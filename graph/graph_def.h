// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_GRAPH_GRAPH_DEF_H_
#define MILLRACE_GRAPH_GRAPH_DEF_H_

// GraphDefs as messages, for programs that look at a model or change it without building its graph:
// no op need be known.
//
// Thread-safety: pure functions of their arguments. Failure: NotFound for a name that the message
// does not have, with the nearest one that it has.

#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "core/status.h"
#include "proto/graph.pb.h"

namespace millrace {

// Calls fn(node) for every node of the graph and of its functions, until one fails.
Status ForEachNode(tensorflow::GraphDef* def, absl::FunctionRef<Status(tensorflow::NodeDef*)> fn);

// Of every node: the graph runs wherever there is room.
void ClearDevices(tensorflow::GraphDef* def);

// Positions of the nodes that a step runs for `fetches` (nodes "x" or tensors "x:1") when the
// tensors `feeds` are given to it, ascending. An input that no node has is passed over:
// verification names it.
StatusOr<std::vector<int>> NeededNodes(const tensorflow::GraphDef& def,
                                       absl::Span<const std::string> fetches,
                                       absl::Span<const std::string> feeds = {});

// The nodes that `outputs` need, in their order, with the message's functions and versions.
// Colocation with nodes that are not among them is removed.
StatusOr<tensorflow::GraphDef> PrunedGraphDef(const tensorflow::GraphDef& def,
                                              absl::Span<const std::string> outputs);

}  // namespace millrace

#endif  // MILLRACE_GRAPH_GRAPH_DEF_H_
