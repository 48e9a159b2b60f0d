// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_GRAPH_REWRITE_IDENTITIES_H_
#define MILLRACE_GRAPH_REWRITE_IDENTITIES_H_

// identities: readers of an Identity (StopGradient, PreventGradient) read its input, and a NoOp
// between control edges goes, where that takes no more edges than there are.
//
// What an Identity of an output of a Switch is for stays: control edges from one branch. So does
// the reading of a reference, which has its moment.

#include "core/status.h"
#include "graph/rewrite/context.h"

namespace millrace {

// How many nodes changed.
StatusOr<int> RemoveIdentities(RewriteContext* context);

}  // namespace millrace

#endif  // MILLRACE_GRAPH_REWRITE_IDENTITIES_H_
