// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_GRAPH_REWRITE_SHAPES_H_
#define MILLRACE_GRAPH_REWRITE_SHAPES_H_

// shapes: Shape, Size, Rank and what is computed of them become constants where shape inference
// knows them, also single elements: x.shape[1] of [?,784] is 784.
//
// The constant runs after what the node read, so that this still runs, may fail and may be dead.

#include "core/status.h"
#include "graph/rewrite/context.h"

namespace millrace {

// How many nodes changed.
StatusOr<int> MaterializeShapes(RewriteContext* context);

}  // namespace millrace

#endif  // MILLRACE_GRAPH_REWRITE_SHAPES_H_
