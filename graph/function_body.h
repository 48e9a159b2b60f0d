// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_GRAPH_FUNCTION_BODY_H_
#define MILLRACE_GRAPH_FUNCTION_BODY_H_

// FunctionBody: a function as a graph: what a call of it with given attrs computes.
//
// Arguments are _Arg nodes named as in the signature ("x"; "xs_0", "xs_1" of a list), results
// _Retval nodes ("<output>_RetVal"); the other nodes have their names of the FunctionDef. Attrs
// that stood for one of the call ("$T") have its value.
//
// Always true of a body: every input has a source of the right type, a cycle goes through
// NextIteration into Merge only, no node but those of `arguments` and `results` is at the border
// of a step (_Arg, _Retval, _Send, _Recv).
//
// Thread-safety: immutable. Failure: see FunctionLibrary::Body.

#include <memory>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/status.h"
#include "graph/attr.h"
#include "graph/function_library.h"
#include "graph/graph.h"

namespace millrace {

struct FunctionBody {
  std::shared_ptr<const Function> function;
  // Without a library: the code that copies it gives the copy the one that it asked.
  std::unique_ptr<const Graph> graph;
  std::vector<const Node*> order;      // all nodes, sources first (TopologicalOrder)
  std::vector<const Node*> arguments;  // by position
  std::vector<const Node*> results;    // by position
  // What runs in every call, whether a result needs it or not: stateful nodes and those that the
  // function names as control outputs.
  std::vector<const Node*> effects;
  std::vector<DType> argument_types, result_types;
};

// Makes the body anew; FunctionLibrary::Body keeps what this makes.
StatusOr<std::shared_ptr<const FunctionBody>> MakeFunctionBody(
    const FunctionLibrary& library, const tensorflow::NameAttrList& call);

// The attr of a stateful node of a function, in the graph that runs it, that says what its
// state is kept under: where the function is called from, and the node's name there, joined by
// line ends. Of other nodes that is the name.
inline constexpr char kIdentityAttr[] = "_identity";
StatusOr<std::string> IdentityOf(const NodeAttrs& node);

// Whether a stateful node has an effect besides its outputs, or may fail: not for those that only
// name a resource.
bool HasEffect(const Node& node);

}  // namespace millrace

#endif  // MILLRACE_GRAPH_FUNCTION_BODY_H_
