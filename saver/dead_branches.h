// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SAVER_DEAD_BRANCHES_H_
#define MILLRACE_SAVER_DEAD_BRANCHES_H_

// Dead branches: what the conditionals of a graph (Switch, Merge) never run, as their predicates
// are known before any step: constants, what passes them on (Identity, Enter, Switch), and
// LogicalNot, LogicalAnd and LogicalOr of them. A branch of a loop is dead only where the whole
// loop is: its own predicate counts as unknown.
//
// Thread-safety: pure functions of messages.

#include <string>

#include "absl/types/span.h"
#include "core/hash_table.h"
#include "core/status.h"
#include "proto/graph.pb.h"

namespace millrace {

// Removes what constant predicates never let run from a graph that is for `outputs` ("y", "y:0"):
// the nodes of such branches, and what only they need. A Switch with a constant predicate, and a
// Merge of one branch that is left, become Identity under their names; a RefSwitch or RefMerge
// is passed over: its reader reads the variable. The graph stays as it is where one of the outputs
// would not run, or is an output of a node that goes.
//
// The error of PrunedGraphDef (graph/graph_def.h).
Status RemoveDeadBranches(absl::Span<const std::string> outputs, tensorflow::GraphDef* graph);

// The names of the nodes that do not run in a step that feeds no PlaceholderWithDefault.
HashSet<std::string> NodesOffByDefault(const tensorflow::GraphDef& graph);

}  // namespace millrace

#endif  // MILLRACE_SAVER_DEAD_BRANCHES_H_
