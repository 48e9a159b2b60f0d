// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_STATE_RESOURCE_VARIABLE_H_
#define MILLRACE_OPS_STATE_RESOURCE_VARIABLE_H_

// Resource variables: a handle names the variable, and ops on the handle read and change it. Users
// make variables with layers/variable.h; these are the single ops. Rows of a variable:
// resource_rows.h.
//
// Errors: FailedPrecondition for a variable without value ("... uninitialized ..."),
// InvalidArgument for another dtype or shape.

#include <string>

#include "graph/node_builder.h"

namespace millrace {

struct VarHandleOpAttrs {
  std::string container = "";
  std::string shared_name = "";  // the node's name when empty
};
// A handle to the variable of this name; sessions on one server share it.
inline Output VarHandleOp(ScopeAt at, DType dtype, const PartialShape& shape,
                          const VarHandleOpAttrs& attrs = {}) {
  return BuildOp(at, "VarHandleOp", {}, "container", attrs.container, "shared_name",
                 attrs.shared_name, "dtype", dtype, "shape", shape);
}
// Bool scalar.
inline Output VarIsInitializedOp(ScopeAt at, Output resource) {
  return BuildOp(at, "VarIsInitializedOp", {resource});
}
// A snapshot of the value; it does not change when the variable does.
inline Output ReadVariableOp(ScopeAt at, Output resource, DType dtype) {
  return BuildOp(at, "ReadVariableOp", {resource}, "dtype", dtype);
}
// The variable's new value.
inline Operation AssignVariableOp(ScopeAt at, Output resource, Output value) {
  return BuildOp(at, "AssignVariableOp", {resource, value});
}
inline Operation AssignAddVariableOp(ScopeAt at, Output resource, Output value) {
  return BuildOp(at, "AssignAddVariableOp", {resource, value});
}
inline Operation AssignSubVariableOp(ScopeAt at, Output resource, Output value) {
  return BuildOp(at, "AssignSubVariableOp", {resource, value});
}
// The value's shape as an int32 (or int64) vector.
struct VariableShapeAttrs {
  DType out_type = DT_INT32;
};
inline Output VariableShape(ScopeAt at, Output input, const VariableShapeAttrs& attrs = {}) {
  return BuildOp(at, "VariableShape", {input}, "out_type", attrs.out_type);
}
// Forgets the resource. With ignore_lookup_error = false, NotFound when there is none.
struct DestroyResourceOpAttrs {
  bool ignore_lookup_error = true;
};
inline Operation DestroyResourceOp(ScopeAt at, Output resource,
                                   const DestroyResourceOpAttrs& attrs = {}) {
  return BuildOp(at, "DestroyResourceOp", {resource}, "ignore_lookup_error",
                 attrs.ignore_lookup_error);
}

}  // namespace millrace

#endif  // MILLRACE_OPS_STATE_RESOURCE_VARIABLE_H_
