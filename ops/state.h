// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_STATE_H_
#define MILLRACE_OPS_STATE_H_

// Operations on variables: resource variables (handles) and the reference variables
// of old graphs. Users make variables with ops/variable.h; these are the single ops.
//
// Errors: FailedPrecondition for a variable without value ("... uninitialized ..."),
// InvalidArgument for another dtype or shape, or an index outside of the table.

#include <string>

#include "graph/node_builder.h"

namespace millrace {

// --- Resource variables
// ----------------------------------------------------------------------------

struct VarHandleOpAttrs {
  std::string container = "";
  std::string shared_name = "";  // the node's name when empty
};
// A handle to the variable of this name; sessions on one server share it.
inline Output VarHandleOp(ScopeAt at, DType dtype, const PartialShape& shape,
                          const VarHandleOpAttrs& attrs = {}) {
  return NodeBuilder(at, "VarHandleOp")
      .Attr("container", attrs.container)
      .Attr("shared_name", attrs.shared_name)
      .Attr("dtype", dtype)
      .Attr("shape", shape)
      .Finish()
      .output(0);
}
// Bool scalar.
inline Output VarIsInitializedOp(ScopeAt at, Output resource) {
  return NodeBuilder(at, "VarIsInitializedOp").Input(resource).Finish().output(0);
}
// A snapshot of the value; it does not change when the variable does.
inline Output ReadVariableOp(ScopeAt at, Output resource, DType dtype) {
  return NodeBuilder(at, "ReadVariableOp").Input(resource).Attr("dtype", dtype).Finish().output(0);
}
// The variable's new value.
inline Operation AssignVariableOp(ScopeAt at, Output resource, Output value) {
  return NodeBuilder(at, "AssignVariableOp").Input(resource).Input(value).Finish().operation();
}
inline Operation AssignAddVariableOp(ScopeAt at, Output resource, Output value) {
  return NodeBuilder(at, "AssignAddVariableOp").Input(resource).Input(value).Finish().operation();
}
inline Operation AssignSubVariableOp(ScopeAt at, Output resource, Output value) {
  return NodeBuilder(at, "AssignSubVariableOp").Input(resource).Input(value).Finish().operation();
}
// The value's shape as an int32 (or int64) vector.
struct VariableShapeAttrs {
  DType out_type = DT_INT32;
};
inline Output VariableShape(ScopeAt at, Output input, const VariableShapeAttrs& attrs = {}) {
  return NodeBuilder(at, "VariableShape")
      .Input(input)
      .Attr("out_type", attrs.out_type)
      .Finish()
      .output(0);
}
// Forgets the resource. With ignore_lookup_error = false, NotFound when there is none.
struct DestroyResourceOpAttrs {
  bool ignore_lookup_error = true;
};
inline Operation DestroyResourceOp(ScopeAt at, Output resource,
                                   const DestroyResourceOpAttrs& attrs = {}) {
  return NodeBuilder(at, "DestroyResourceOp")
      .Input(resource)
      .Attr("ignore_lookup_error", attrs.ignore_lookup_error)
      .Finish()
      .operation();
}

// Rows `indices` (int32 or int64, any shape) of the variable: [indices..., row...]. No row is torn.
inline Output ResourceGather(ScopeAt at, Output resource, Output indices, DType dtype) {
  return NodeBuilder(at, "ResourceGather")
      .Input(resource)
      .Input(indices)
      .Attr("dtype", dtype)
      .Finish()
      .output(0);
}
// Row indices[i] += (-=, =) updates[i]; updates: [indices..., row...] or a scalar. Repeated indices
// add up (for Update, one of them wins).
inline Operation ResourceScatterAdd(ScopeAt at, Output resource, Output indices, Output updates) {
  return NodeBuilder(at, "ResourceScatterAdd")
      .Input(resource)
      .Input(indices)
      .Input(updates)
      .Finish()
      .operation();
}
inline Operation ResourceScatterSub(ScopeAt at, Output resource, Output indices, Output updates) {
  return NodeBuilder(at, "ResourceScatterSub")
      .Input(resource)
      .Input(indices)
      .Input(updates)
      .Finish()
      .operation();
}
inline Operation ResourceScatterUpdate(ScopeAt at, Output resource, Output indices,
                                       Output updates) {
  return NodeBuilder(at, "ResourceScatterUpdate")
      .Input(resource)
      .Input(indices)
      .Input(updates)
      .Finish()
      .operation();
}

// --- Reference variables
// ---------------------------------------------------------------------------

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

#endif  // MILLRACE_OPS_STATE_H_
