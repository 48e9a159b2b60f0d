// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_STATE_REF_VARIABLE_H_
#define MILLRACE_OPS_STATE_REF_VARIABLE_H_

// Reference variables: what graphs before resource variables use. A reference output is the
// variable itself; an op that only reads gets its value when it starts.
//
// Errors: FailedPrecondition for a variable without value ("... uninitialized ..."),
// InvalidArgument for another dtype or shape, or an index outside of the table.

#include <string>

#include "graph/node_builder.h"

namespace millrace {

struct VariableV2Attrs {
  std::string container = "";
  std::string shared_name = "";
};
// A reference to the variable of this name.
inline Output VariableV2(ScopeAt at, const PartialShape& shape, DType dtype,
                         const VariableV2Attrs& attrs = {}) {
  return NodeBuilder(at, "VariableV2")
      .Attr("shape", shape)
      .Attr("dtype", dtype)
      .Attr("container", attrs.container)
      .Attr("shared_name", attrs.shared_name)
      .Finish()
      .output(0);
}
// The oldest form; the same.
inline Output VariableV1(ScopeAt at, const PartialShape& shape, DType dtype,
                         const VariableV2Attrs& attrs = {}) {
  return NodeBuilder(at, "Variable")
      .Attr("shape", shape)
      .Attr("dtype", dtype)
      .Attr("container", attrs.container)
      .Attr("shared_name", attrs.shared_name)
      .Finish()
      .output(0);
}
// Bool scalar.
inline Output IsVariableInitialized(ScopeAt at, Output ref) {
  return NodeBuilder(at, "IsVariableInitialized").Input(ref).Finish().output(0);
}
struct AssignAttrs {
  bool validate_shape = true;
  bool use_locking = true;
};
// The variable with its new value. InvalidArgument "Assign requires shapes of both tensors to
// match".
inline Output Assign(ScopeAt at, Output ref, Output value, const AssignAttrs& attrs = {}) {
  return NodeBuilder(at, "Assign")
      .Input(ref)
      .Input(value)
      .Attr("validate_shape", attrs.validate_shape)
      .Attr("use_locking", attrs.use_locking)
      .Finish()
      .output(0);
}
struct AssignUpdateAttrs {
  bool use_locking = false;
};
inline Output AssignAdd(ScopeAt at, Output ref, Output value, const AssignUpdateAttrs& attrs = {}) {
  return NodeBuilder(at, "AssignAdd")
      .Input(ref)
      .Input(value)
      .Attr("use_locking", attrs.use_locking)
      .Finish()
      .output(0);
}
inline Output AssignSub(ScopeAt at, Output ref, Output value, const AssignUpdateAttrs& attrs = {}) {
  return NodeBuilder(at, "AssignSub")
      .Input(ref)
      .Input(value)
      .Attr("use_locking", attrs.use_locking)
      .Finish()
      .output(0);
}
struct ScatterAttrs {
  bool use_locking = false;
};
inline Output ScatterAdd(ScopeAt at, Output ref, Output indices, Output updates,
                         const ScatterAttrs& attrs = {}) {
  return NodeBuilder(at, "ScatterAdd")
      .Input(ref)
      .Input(indices)
      .Input(updates)
      .Attr("use_locking", attrs.use_locking)
      .Finish()
      .output(0);
}
inline Output ScatterSub(ScopeAt at, Output ref, Output indices, Output updates,
                         const ScatterAttrs& attrs = {}) {
  return NodeBuilder(at, "ScatterSub")
      .Input(ref)
      .Input(indices)
      .Input(updates)
      .Attr("use_locking", attrs.use_locking)
      .Finish()
      .output(0);
}
struct ScatterUpdateAttrs {
  bool use_locking = true;
};
inline Output ScatterUpdate(ScopeAt at, Output ref, Output indices, Output updates,
                            const ScatterUpdateAttrs& attrs = {}) {
  return NodeBuilder(at, "ScatterUpdate")
      .Input(ref)
      .Input(indices)
      .Input(updates)
      .Attr("use_locking", attrs.use_locking)
      .Finish()
      .output(0);
}

}  // namespace millrace

#endif  // MILLRACE_OPS_STATE_REF_VARIABLE_H_
