// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_GRAPH_MISSING_OPS_H_
#define MILLRACE_GRAPH_MISSING_OPS_H_

// Missing ops: the op kinds that a step of a graph needs and nobody has registered in this process,
// before a session compiles it. A session takes up a graph that has such nodes: other steps need
// them not.
//
// Thread-safety: pure functions; the registry may grow meanwhile.

#include <string>
#include <vector>

#include "absl/types/span.h"

namespace tensorflow {
class GraphDef;
}  // namespace tensorflow

namespace millrace {

// An op kind with the first node of it that was found.
struct MissingOp {
  std::string op;
  std::string node;
  std::string function;  // that has the node; "": the graph
};

// Of the step that fetches and feeds these nodes ("x") or tensors ("x:1"), and of the functions
// that it calls; sorted by op. A name that the graph does not have needs nothing: compiling the
// step says what is wrong with it.
std::vector<MissingOp> MissingOps(const tensorflow::GraphDef& graph,
                                  absl::Span<const std::string> fetches,
                                  absl::Span<const std::string> feeds);

// "got 'Gelu' of node 'h1', 'Shrink' of node 'y' in function 'f'". Not of none.
std::string MissingOpsText(absl::Span<const MissingOp> missing);

}  // namespace millrace

#endif  // MILLRACE_GRAPH_MISSING_OPS_H_
