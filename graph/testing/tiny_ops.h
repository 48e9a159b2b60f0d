// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_GRAPH_TESTING_TINY_OPS_H_
#define MILLRACE_GRAPH_TESTING_TINY_OPS_H_

// Some thirty op kinds with TensorFlow's names and signatures, registered for tests of graph that
// must not depend on op families: no kernels, shapes as far as the tests need them. Besides:
//   Opaque      float -> float, no gradient registered
//   Floor       float -> float, not differentiable
//   TwoOutputs  x -> (x, 2x), differentiable in both
// A program that links these cannot link //ops.

#include <initializer_list>
#include <string>

#include "absl/strings/string_view.h"
#include "core/tensor.h"
#include "graph/node_builder.h"

namespace millrace::testing {

inline Output Call(const Scope& scope, absl::string_view op, std::initializer_list<Output> inputs,
                   int output = 0) {
  NodeBuilder builder(scope, op);
  for (const Output& input : inputs) builder.Input(input);
  return builder.Finish().output(output);
}

inline Output Constant(const Scope& scope, const Tensor& value) {
  return NodeBuilder(scope, "Const")
      .Attr("dtype", value.dtype())
      .Attr("value", value)
      .Finish()
      .output(0);
}

inline Output Input(const Scope& scope, DType dtype, const PartialShape& shape) {
  return NodeBuilder(scope, "Placeholder")
      .Attr("dtype", dtype)
      .Attr("shape", shape)
      .Finish()
      .output(0);
}

// The handle of a variable.
inline Output Variable(const Scope& scope, DType dtype, const PartialShape& shape) {
  return NodeBuilder(scope, "VarHandleOp")
      .Attr("dtype", dtype)
      .Attr("shape", shape)
      .Finish()
      .output(0);
}

inline Output Read(const Scope& scope, Output handle, DType dtype) {
  return NodeBuilder(scope, "ReadVariableOp").Input(handle).Attr("dtype", dtype).Finish().output(0);
}

inline Operation NoOp(const Scope& scope) {
  return NodeBuilder(scope, "NoOp").Finish().operation();
}

}  // namespace millrace::testing

#endif  // MILLRACE_GRAPH_TESTING_TINY_OPS_H_
