// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_GRAPH_REWRITE_COMMON_SUBEXPRESSIONS_H_
#define MILLRACE_GRAPH_REWRITE_COMMON_SUBEXPRESSIONS_H_

// common_subexpressions: of pure nodes with equal op, attrs, device, inputs and control inputs the
// first in order stays and is read by all.
//
// Attrs are compared as bytes: 0.0 and -0.0 differ, and so do a + b and b + a (of two NaNs the
// first is the sum).

#include "core/status.h"
#include "graph/rewrite/context.h"

namespace millrace {

// How many nodes changed.
StatusOr<int> MergeCommonSubexpressions(RewriteContext* context);

}  // namespace millrace

#endif  // MILLRACE_GRAPH_REWRITE_COMMON_SUBEXPRESSIONS_H_
