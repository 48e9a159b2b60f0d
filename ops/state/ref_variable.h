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
  return BuildOp(at, "VariableV2", {}, "shape", shape, "dtype", dtype, "container", attrs.container,
                 "shared_name", attrs.shared_name);
}
// The oldest form; the same.
inline Output VariableV1(ScopeAt at, const PartialShape& shape, DType dtype,
                         const VariableV2Attrs& attrs = {}) {
  return BuildOp(at, "Variable", {}, "shape", shape, "dtype", dtype, "container", attrs.container,
                 "shared_name", attrs.shared_name);
}
// Bool scalar.
inline Output IsVariableInitialized(ScopeAt at, Output ref) {
  return BuildOp(at, "IsVariableInitialized", {ref});
}
struct AssignAttrs {
  bool validate_shape = true;
  bool use_locking = true;
};
// The variable with its new value. InvalidArgument "Assign requires shapes of both tensors to
// match".
inline Output Assign(ScopeAt at, Output ref, Output value, const AssignAttrs& attrs = {}) {
  return BuildOp(at, "Assign", {ref, value}, "validate_shape", attrs.validate_shape, "use_locking",
                 attrs.use_locking);
}
struct AssignUpdateAttrs {
  bool use_locking = false;
};
inline Output AssignAdd(ScopeAt at, Output ref, Output value, const AssignUpdateAttrs& attrs = {}) {
  return BuildOp(at, "AssignAdd", {ref, value}, "use_locking", attrs.use_locking);
}
inline Output AssignSub(ScopeAt at, Output ref, Output value, const AssignUpdateAttrs& attrs = {}) {
  return BuildOp(at, "AssignSub", {ref, value}, "use_locking", attrs.use_locking);
}
struct ScatterAttrs {
  bool use_locking = false;
};
inline Output ScatterAdd(ScopeAt at, Output ref, Output indices, Output updates,
                         const ScatterAttrs& attrs = {}) {
  return BuildOp(at, "ScatterAdd", {ref, indices, updates}, "use_locking", attrs.use_locking);
}
inline Output ScatterSub(ScopeAt at, Output ref, Output indices, Output updates,
                         const ScatterAttrs& attrs = {}) {
  return BuildOp(at, "ScatterSub", {ref, indices, updates}, "use_locking", attrs.use_locking);
}
struct ScatterUpdateAttrs {
  bool use_locking = true;
};
inline Output ScatterUpdate(ScopeAt at, Output ref, Output indices, Output updates,
                            const ScatterUpdateAttrs& attrs = {}) {
  return BuildOp(at, "ScatterUpdate", {ref, indices, updates}, "use_locking", attrs.use_locking);
}

}  // namespace millrace

#endif  // MILLRACE_OPS_STATE_REF_VARIABLE_H_
