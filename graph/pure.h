// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_GRAPH_PURE_H_
#define MILLRACE_GRAPH_PURE_H_

// Which nodes are functions: equal inputs give equal outputs, and nothing else happens.
//
// Only such nodes may be computed before a step, or once instead of twice.
//
// Pure function; any thread.

#include "core/status.h"
#include "graph/graph.h"

namespace millrace {

// Unimplemented with the reason when `node` is stateful or control flow, sends or receives, handles
// references, resources or variants, reads files, has no output, stands for a value that a caller
// feeds, or is of an op kind that is not registered.
Status CheckIsPure(const Node& node);

// A node whose outputs may be dead although it ran: of a control edge that leaves it nothing can be
// told about one of its outputs.
inline bool LeavesOutputsDead(const Node& node) { return node.is_switch() || node.is_recv(); }

// A node that runs whether its inputs are dead or not, and is never dead itself.
inline bool IsTrigger(const Node& node) { return node.traits().is_trigger; }

// A node that also runs when some of its inputs are dead.
inline bool RunsOnDeadInputs(const Node& node) { return node.is_merge() || IsTrigger(node); }

}  // namespace millrace

#endif  // MILLRACE_GRAPH_PURE_H_
