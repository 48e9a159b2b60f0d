// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_GRAPH_REWRITE_CALLS_H_
#define MILLRACE_GRAPH_REWRITE_CALLS_H_

// Calls of functions in a run graph, before it is placed.
//
//   F(x)                    -> PartitionedCall(x), f = F: what has a kernel
//   SymbolicGradient(x, dy) -> PartitionedCall(x, dy) of the gradient of its function
//   PartitionedCall(x)      -> the nodes of its function, named "<call>/<node>"
//
// A call is put into the caller's graph unless its function or the node has attr _noinline, the
// call is kMaxInlineDepth deep, or the graph has got kMaxInlinedNodes nodes so: then it stays a
// call. What holds of the nodes that take its place holds of a call:
//   * each reads what the call read, a reference once;
//   * those with effects (FunctionBody::effects) run after all inputs and control inputs of the
//     call, and before any of its results is there and what waits for the call;
//   * where the call may be dead, or in a loop, all of them are when it is;
//   * they ask for the devices that they asked for in the function, and for the rest of the call's.
// What is pure need not wait for inputs that it does not read.
//
// Thread-safety: thread-compatible. Failure: NotFound for functions that are not in the graph's
// library and where the ops of functional control flow are not linked; as FunctionLibrary::Body.
// The graph is then in no defined state.

#include <string>

#include "absl/types/span.h"
#include "core/status.h"
#include "graph/graph.h"
#include "graph/prune.h"

namespace tensorflow {
class GraphOptions;
}

namespace millrace {

// The names of nodes grow with it.
inline constexpr int kMaxInlineDepth = 64;
// Few calls may stand for many nodes: each function may call another twice.
inline constexpr int kMaxInlinedNodes = 200'000;

struct CallOptions {
  bool inline_calls = true;
};
// What ConfigProto.graph_options asks for: calls are put into the graph unless rewrite_options has
// function_optimization OFF or disable_meta_optimizer, has `optimizers` without "function", or
// optimizer_options.opt_level is L0 without do_function_inlining (and function_optimization is not
// ON).
CallOptions CallOptionsFor(const tensorflow::GraphOptions& options);

// Targets that were calls are nodes that end when the call ends.
Status PrepareCalls(RunGraph* run, const CallOptions& options);

// For tools: puts all calls of `graph` into it, also those of functions that are marked, and keeps
// the functions that are still needed. A call whose name is in `keep` becomes an IdentityN of its
// results (a NoOp where there are none). ResourceExhausted for calls beyond the limits.
Status InlineAllCalls(Graph* graph, absl::Span<const std::string> keep);

}  // namespace millrace

#endif  // MILLRACE_GRAPH_REWRITE_CALLS_H_
