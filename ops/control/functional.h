// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_CONTROL_FUNCTIONAL_H_
#define MILLRACE_OPS_CONTROL_FUNCTIONAL_H_

// Calls of functions of the graph's library, and control flow made of them: If, Case, While, For.
//
// Functions are named by attrs. They must be in the graph's library when the node is built, and
// take and give the types that the node has (InvalidArgument otherwise). `tout` are the types of
// the results.

#include <string>
#include <vector>

#include "graph/attr.h"
#include "graph/node_builder.h"

namespace millrace {

// All results of `f` called with `args`: for functions without effects.
inline BuiltNode PartitionedCall(ScopeAt at, absl::Span<const Output> args,
                                 const std::vector<DType>& tout, const FunctionName& f) {
  return BuildOp(at, "PartitionedCall", {args}, "Tout", tout, "f", f);
}
// The same for functions that change or keep state: runs in each step that needs the node, whether
// a result is needed or not.
inline BuiltNode StatefulPartitionedCall(ScopeAt at, absl::Span<const Output> args,
                                         const std::vector<DType>& tout, const FunctionName& f) {
  return BuildOp(at, "StatefulPartitionedCall", {args}, "Tout", tout, "f", f);
}

// The gradients of f(x1, ..., xn) with respect to each x; `input` are the xs and, for each result
// of f, the gradient that comes back to it. `tout` are the types of the xs. f must be without
// effects: it is computed once more.
inline BuiltNode SymbolicGradient(ScopeAt at, absl::Span<const Output> input,
                                  const std::vector<DType>& tout, const FunctionName& f) {
  return BuildOp(at, "SymbolicGradient", {input}, "Tout", tout, "f", f);
}

// TensorFlow's call on the device that `target` names. It is not run here: the kernel is
// Unimplemented.
inline BuiltNode RemoteCall(ScopeAt at, Output target, absl::Span<const Output> args,
                            const std::vector<DType>& tout, const FunctionName& f) {
  return BuildOp(at, "RemoteCall", {target, args}, "Tout", tout, "f", f);
}

struct IfAttrs {
  std::vector<PartialShape> output_shapes = {};  // of the results, where they are known
};
// then_branch(input) if `cond` holds, else else_branch(input). A scalar holds when it is true, not
// zero or not empty; any other tensor when it has elements.
inline BuiltNode If(ScopeAt at, Output cond, absl::Span<const Output> input,
                    const std::vector<DType>& tout, const FunctionName& then_branch,
                    const FunctionName& else_branch, const IfAttrs& attrs = {}) {
  return BuildOp(at, "If", {cond, input}, "Tout", tout, "then_branch", then_branch, "else_branch",
                 else_branch, "output_shapes", attrs.output_shapes);
}
// The same for branches without effects.
inline BuiltNode StatelessIf(ScopeAt at, Output cond, absl::Span<const Output> input,
                             const std::vector<DType>& tout, const FunctionName& then_branch,
                             const FunctionName& else_branch, const IfAttrs& attrs = {}) {
  return BuildOp(at, "StatelessIf", {cond, input}, "Tout", tout, "then_branch", then_branch,
                 "else_branch", else_branch, "output_shapes", attrs.output_shapes);
}

// branches[branch_index](input); the last of them for an index out of range. `branch_index`: int32
// scalar.
inline BuiltNode Case(ScopeAt at, Output branch_index, absl::Span<const Output> input,
                      const std::vector<DType>& tout, const std::vector<FunctionName>& branches,
                      const IfAttrs& attrs = {}) {
  return BuildOp(at, "Case", {branch_index, input}, "Tout", tout, "branches", branches,
                 "output_shapes", attrs.output_shapes);
}

struct WhileAttrs {
  std::vector<PartialShape> output_shapes = {};
  int64_t parallel_iterations = 10;  // without meaning here
};
// input = body(input) as long as cond(input) holds (as in If).
inline BuiltNode While(ScopeAt at, absl::Span<const Output> input, const FunctionName& cond,
                       const FunctionName& body, const WhileAttrs& attrs = {}) {
  return BuildOp(at, "While", {input}, "cond", cond, "body", body, "output_shapes",
                 attrs.output_shapes, "parallel_iterations", attrs.parallel_iterations);
}
// The same for functions without effects.
inline BuiltNode StatelessWhile(ScopeAt at, absl::Span<const Output> input,
                                const FunctionName& cond, const FunctionName& body,
                                const WhileAttrs& attrs = {}) {
  return BuildOp(at, "StatelessWhile", {input}, "cond", cond, "body", body, "output_shapes",
                 attrs.output_shapes, "parallel_iterations", attrs.parallel_iterations);
}

// input = body(i, input) for i = start, start + delta, ... before `limit`; the three are int32
// scalars. InvalidArgument for a delta that never gets there.
inline BuiltNode For(ScopeAt at, Output start, Output limit, Output delta,
                     absl::Span<const Output> input, const FunctionName& body) {
  return BuildOp(at, "For", {start, limit, delta, input}, "body", body);
}

// A tensor that nobody reads, of dtype and shape (unknown dimensions are 0): what a branch gives
// where only the other one has a result.
inline Output FakeParam(ScopeAt at, DType dtype, const PartialShape& shape) {
  return BuildOp(at, "FakeParam", {}, "dtype", dtype, "shape", shape);
}

}  // namespace millrace

#endif  // MILLRACE_OPS_CONTROL_FUNCTIONAL_H_
