// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_GRAPH_REWRITE_DEAD_BRANCHES_H_
#define MILLRACE_GRAPH_REWRITE_DEAD_BRANCHES_H_

// dead_branches: a Switch whose predicate is constant passes its data on, what hangs on its other
// output goes, and a Merge that is left with one input passes that on.
//
// What would be dead in every step is removed, whatever it is; what only it read stays and runs. A
// dead node that is kept (its fetch fails in the step) keeps what makes it dead. Graphs with loops
// are left alone: an iteration decides there what is dead.

#include "core/status.h"
#include "graph/rewrite/context.h"

namespace millrace {

// How many nodes changed.
StatusOr<int> RemoveDeadBranches(RewriteContext* context);

}  // namespace millrace

#endif  // MILLRACE_GRAPH_REWRITE_DEAD_BRANCHES_H_
