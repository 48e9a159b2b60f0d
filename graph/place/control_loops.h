// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_GRAPH_PLACE_CONTROL_LOOPS_H_
#define MILLRACE_GRAPH_PLACE_CONTROL_LOOPS_H_

// Control loops: what a loop needs on each device that it spans.
//
// A _Recv has no inputs: in a loop something must say that there is another iteration in which to
// receive. So each device that receives something in a loop gets a small one, which is part of the
// same frame and goes on as long as the loop does:
//
//   Const ─> Enter ─> Merge ─> Switch ─> NextIteration ─> the Merge again
//                                └─ the loop's LoopCond, received in each iteration
//
// For a loop inside of another one the outer control loop stands in the place of the Const. Who
// reads what another device makes has a control edge from the Merge (the gate); the code that cuts
// the graph moves it to the _Recv. What has a value in the first iteration only (of an Enter that
// is not constant) has the Enter for its gate, what has none in the first the NextIteration.
//
// An Enter or NextIteration whose value is read on another device is doubled there, because what
// it gives belongs to no iteration of its own.
//
// All of this goes by devices, whatever the graph is cut into, and is done once: a task that cuts
// its part of a graph again finds control loops in it. Their nodes' names begin with "_cloop".
//
// Thread-safety: the graph belongs to the caller. Failure: InvalidArgument, with the loop: no
// LoopCond, or frames that do not fit (graph/frames.h). The graph is in no defined state then.

#include <vector>

#include "core/status.h"
#include "graph/frames.h"
#include "graph/graph.h"

namespace millrace {

// In which iterations of its frame a node's outputs have values, dead or alive.
enum class Presence { kEvery, kFirst, kLater, kNever };

// By node id.
StatusOr<std::vector<Presence>> FindPresence(const Graph& graph, const Frames& frames);

// Whether an edge inside of a loop goes from one device to another.
bool LoopsSpanDevices(const Graph& graph, const Frames& frames);

// Adds control loops and gates where they are needed. Nodes have their devices.
Status AddControlLoops(Graph* graph);

// The gate of `reader` for values of this presence; null when it has none.
Node* GateOf(const Node& reader, Presence presence);

}  // namespace millrace

#endif  // MILLRACE_GRAPH_PLACE_CONTROL_LOOPS_H_
