// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_GRAPH_REWRITE_CONSTANT_FOLDING_H_
#define MILLRACE_GRAPH_REWRITE_CONSTANT_FOLDING_H_

// constant_folding: pure nodes whose inputs are all constant are computed now, by the kernels that
// a step would use.
//
// A node that the evaluator refuses stays, and says in the step what is wrong. Neither a constant
// that is read nor one that is made has more than RewriteContext::max_folded_bytes, and no more
// than kMaxHeldBytes are held at once. Only the last constant of a chain becomes a node. The
// constants run after the control inputs of what was computed.

#include <cstdint>

#include "core/status.h"
#include "graph/rewrite/context.h"

namespace millrace {

// Values of a graph that are held while it is folded. Many small constants may stand for much data
// (Fill): without a bound a file of a megabyte could take all memory.
inline constexpr int64_t kMaxHeldBytes = int64_t{256} << 20;

// How many nodes changed.
StatusOr<int> FoldConstants(RewriteContext* context);

}  // namespace millrace

#endif  // MILLRACE_GRAPH_REWRITE_CONSTANT_FOLDING_H_
