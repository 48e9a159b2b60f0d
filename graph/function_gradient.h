// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_GRAPH_FUNCTION_GRADIENT_H_
#define MILLRACE_GRAPH_FUNCTION_GRADIENT_H_

// Gradients of functions.
//
// The gradient of a call is a call. A function f(x) -> y is differentiated as a graph, and cut into
//
//   forward(x)           -> y, and what the gradient needs of f's inside
//   backward(x', inside, dy) -> dx
//
// Both go into the graph's library; the call becomes one of forward (its results keep their names,
// further ones come behind them), so that nothing of f runs twice: random numbers, variables and
// queues give the gradient what they gave the call. A graph that a session has already cannot be
// changed so: gradients come before.
//
// No dead tensor goes through a call. Of a tensor that a Switch inside of f may leave dead, forward
// gives (_Alive) a value, which is empty then, and whether it was alive; backward makes it dead
// again by a Switch.
//
// A GradientDef of the library wins: dx = g(x, dy), zeros for a dy that nobody has.
//
// The gradient of an If is an If, that of a Case a Case, of the gradients of their branches: each
// branch of the forward node gives what its own gradient needs, and empty tensors (FakeParam) in
// the places of the others.
//
// The gradient of a While is a While, and so is that of a For (function_loop_gradient.cc): the
// forward loop keeps in tensor lists what each iteration computes, and the gradient takes them
// apart from the end. n iterations take n times the memory of what the gradient of the body needs.
//
// SymbolicGradient, TensorFlow's node for the same, takes x and dy alone: f is computed again
// there.
//
// Thread-safety: as the graph. Failure: as AddGradients, with the function's name; InvalidArgument
// for calls that are kMaxDifferentiatedCalls deep in each other; Unimplemented for a gradient that
// goes through a loop of Switch and Merge inside of a function.

#include <string>

#include "core/status.h"
#include "graph/gradient.h"
#include "graph/graph.h"

namespace tensorflow {
class NameAttrList;
}

namespace millrace {

inline constexpr int kMaxDifferentiatedCalls = 64;

// For PartitionedCall, StatefulPartitionedCall, SymbolicGradient and nodes whose op is a function's
// name.
Status GradientOfCall(GradientContext* context);

// For If, StatelessIf and Case.
Status GradientOfBranches(GradientContext* context);

// For While, StatelessWhile and For. Unimplemented where a loop changes the handle of a variable.
Status GradientOfLoop(GradientContext* context);

// The function (x, dy) -> dx of SymbolicGradient's f = `call`, in the library of `graph`: of all
// arguments, zeros where no gradient flows. Its name is the same for the same call.
StatusOr<std::string> DefineSymbolicGradient(const tensorflow::NameAttrList& call, Graph* graph);

}  // namespace millrace

#endif  // MILLRACE_GRAPH_FUNCTION_GRADIENT_H_
