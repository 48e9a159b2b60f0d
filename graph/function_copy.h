// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_GRAPH_FUNCTION_COPY_H_
#define MILLRACE_GRAPH_FUNCTION_COPY_H_

// What a call of a function runs, copied into a graph: of its own, or that of the caller.
//
// Copied are the nodes that results and effects (FunctionBody::effects) need. They share the bodies
// of the originals, except for what belongs to the place of the call: stateful nodes get their
// identity (kIdentityAttr), loops a frame of their own, `_class` the names of the copies.
//
// Thread-safety: the body is only read. Failure: a device name of the body that is none; of the
// graph's.

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/status.h"
#include "graph/function_body.h"
#include "graph/graph.h"

namespace millrace {

struct FunctionCopyOptions {
  std::string prefix = "";  // put before the names of nodes: "call/"
  std::string site = "";    // identity of the call (IdentityOf); empty: nobody runs the graph
  // Of the call: fields that a node of the body does not ask for.
  absl::string_view device = "";
  absl::string_view built_at = "";
  // Also the nodes of arguments that are needed, and of results.
  bool boundary = false;
};

// The copies, by id of the original; null for nodes that were left out. A copy whose input is an
// argument has none there when the boundary is left out.
StatusOr<std::vector<Node*>> CopyFunctionNodes(const FunctionBody& body,
                                               const FunctionCopyOptions& options, Graph* to);

}  // namespace millrace

#endif  // MILLRACE_GRAPH_FUNCTION_COPY_H_
