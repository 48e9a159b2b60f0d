// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_ARRAY_IDENTITY_H_
#define MILLRACE_OPS_ARRAY_IDENTITY_H_

// Ops that pass values on unchanged, or do nothing: they shape a graph.
//
// All take any dtype and shape; outputs have the inputs' shapes. They never fail.

#include <string>
#include <vector>

#include "graph/node_builder.h"

namespace millrace {

// The input itself.
inline Output Identity(ScopeAt at, Output input) { return BuildOp(at, "Identity", {input}); }

// A list of tensors, passed on together: all are ready when one is.
inline std::vector<Output> IdentityN(ScopeAt at, absl::Span<const Output> inputs) {
  return BuildOp(at, "IdentityN", {inputs}).outputs(0, static_cast<int>(inputs.size()));
}

// The input; no gradient flows back through it.
inline Output StopGradient(ScopeAt at, Output input) {
  return BuildOp(at, "StopGradient", {input});
}

// The input; asking for a gradient through it is an error with this message.
struct PreventGradientAttrs {
  std::string message = "";
};
inline Output PreventGradient(ScopeAt at, Output input, const PreventGradientAttrs& attrs = {}) {
  return BuildOp(at, "PreventGradient", {input}, "message", attrs.message);
}

// Nothing; runs after its control inputs.
inline Operation NoOp(ScopeAt at) { return BuildOp(at, "NoOp", {}); }

// One operation that runs all of `operations`, wherever they are: TensorFlow's tf.group. Operations
// that ask for one and the same device (or for none) are waited for by a NoOp on it, which is the
// result. Where they ask for several, there is such a NoOp per device, `<name>/NoOp`, ..., and the
// result, on the scope's device, waits for these: one message from each device, and none from a
// device that is the scope's. The name is "group_deps" otherwise.
Operation Group(ScopeAt at, absl::Span<const Operation> operations);
inline Operation Group(ScopeAt at, std::initializer_list<Operation> operations) {
  return Group(at, absl::MakeConstSpan(operations.begin(), operations.size()));
}

// `input`, after all of `operations` have run.
inline Output WithDependencies(ScopeAt at, absl::Span<const Operation> operations, Output input) {
  NodeBuilder builder(at, "Identity");
  builder.Input(input);
  for (const Operation& operation : operations) builder.ControlInput(operation);
  return builder.Finish();
}

}  // namespace millrace

#endif  // MILLRACE_OPS_ARRAY_IDENTITY_H_
