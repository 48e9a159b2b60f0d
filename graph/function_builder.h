// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_GRAPH_FUNCTION_BUILDER_H_
#define MILLRACE_GRAPH_FUNCTION_BUILDER_H_

// Functions built in C++: a piece of graph with a name, that nodes call.
//
//   const DefinedFunction square = DefineFunction(scope, "square", {DT_FLOAT},
//       [](const Scope& s, const std::vector<Output>& x) { return std::vector{Mul(s, x[0], x[0])};
//       });
//   const Output y = Call(scope, square, {x})[0];
//
// The body is called once, with a scope of a graph of its own and its arguments. It may use tensors
// of the program around it, also of a function around it: each becomes a further argument, named
// after the tensor (a variable's handle is passed, not its value), which Call passes by itself.
// Nodes with effects (assignments, assertions) run in every call.
//
// The function is in the library of the scope's graph; what is exported has it. Who names it in an
// attr (If, While) passes `captures` behind the other inputs.
//
// Failure: an error of the body, a name that is not legal and results that are no tensors of the
// program go into the scope; the function is then invalid, and so is what Call returns.

#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/dtype.h"
#include "core/shape.h"
#include "graph/scope.h"

namespace millrace {

struct DefinedFunction {
  std::string name;              // in the library; empty: invalid
  std::vector<DType> arguments;  // that a caller gives; those of `captures` come behind
  std::vector<DType> results;
  std::vector<Output> captures;
  bool has_effects = false;
};

struct FunctionOptions {
  std::vector<std::string> argument_names = {};  // arg0, arg1, ... where there are none
  std::vector<PartialShape> shapes = {};         // what the body may assume of its arguments
  // Calls stay calls: for what is called often and need not be mixed with what is around it.
  bool no_inline = false;
};

using FunctionCode =
    absl::FunctionRef<std::vector<Output>(const Scope&, const std::vector<Output>&)>;

// `name` is made unique among the functions of the graph.
DefinedFunction DefineFunction(ScopeAt at, absl::string_view name,
                               const std::vector<DType>& arguments, FunctionCode code,
                               const FunctionOptions& options = {});

// A call of the function; its results.
std::vector<Output> Call(ScopeAt at, const DefinedFunction& function,
                         absl::Span<const Output> arguments);
// The operation of the call, for functions without results. WithName names it.
Operation CallOperation(ScopeAt at, const DefinedFunction& function,
                        absl::Span<const Output> arguments);

}  // namespace millrace

#endif  // MILLRACE_GRAPH_FUNCTION_BUILDER_H_
