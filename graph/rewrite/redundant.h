// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_GRAPH_REWRITE_REDUNDANT_H_
#define MILLRACE_GRAPH_REWRITE_REDUNDANT_H_

// redundant: casts, transposes and reshapes that give what there is already.
//
//   Cast to the same type, and back from an integer type that holds every value; Transpose in
//   order, and two that cancel; Reshape to the shape that the tensor has, and of a reshaped tensor.
//
// Only where shapes tell that the node that goes cannot fail.

#include "core/status.h"
#include "graph/rewrite/context.h"

namespace millrace {

// How many nodes changed.
StatusOr<int> RemoveRedundantMoves(RewriteContext* context);

}  // namespace millrace

#endif  // MILLRACE_GRAPH_REWRITE_REDUNDANT_H_
