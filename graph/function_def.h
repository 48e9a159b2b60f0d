// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_GRAPH_FUNCTION_DEF_H_
#define MILLRACE_GRAPH_FUNCTION_DEF_H_

// A graph as a FunctionDef: the reverse of FunctionBody.
//
// Written are the nodes that results and effects need, with their names; arguments are tensors (of
// _Arg nodes, or of any that are left out), whose nodes' names become those of the signature (in
// TensorFlow's form: lower case, letters, digits and '_'). Effects are control outputs.
//
// Pure functions. Failure: InvalidArgument for a node of an op kind that nobody knows, whose
// outputs have no names, and for one that is needed and must not be written.

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/hash_table.h"
#include "core/status.h"
#include "graph/graph.h"

namespace tensorflow {
class FunctionDef;
}

namespace millrace {

struct FunctionDefParts {
  std::vector<OutputRef> arguments;  // by position
  std::vector<OutputRef> results;
  // Nodes that run in every call.
  std::vector<const Node*> effects;
  // The nodes that may be written; null: all. Control edges from others are left out.
  const HashSet<const Node*>* nodes = nullptr;
};

// The nodes of `graph` that HasEffect.
std::vector<const Node*> EffectsOf(const Graph& graph);

StatusOr<std::shared_ptr<tensorflow::FunctionDef>> FunctionDefOf(const Graph& graph,
                                                                 absl::string_view name,
                                                                 const FunctionDefParts& parts);

}  // namespace millrace

#endif  // MILLRACE_GRAPH_FUNCTION_DEF_H_
