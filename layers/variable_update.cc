// SPDX-License-Identifier: Apache-2.0
#include "layers/variable_update.h"

#include "ops/array/identity.h"
#include "ops/state/state.h"

namespace millrace {

Output ReadVariable(ScopeAt at, const Variable& variable) {
  if (!variable.valid()) return Output();
  if (variable.is_reference()) return Identity(at, variable.handle);
  return ReadVariableOp(at, variable.handle, variable.dtype);
}

Operation AssignVariable(ScopeAt at, const Variable& variable, const Output& value) {
  if (!variable.valid()) return Operation();
  if (variable.is_reference()) return Assign(at, variable.handle, value).op();
  return AssignVariableOp(at, variable.handle, value);
}

Operation AssignAddVariable(ScopeAt at, const Variable& variable, const Output& value) {
  if (!variable.valid()) return Operation();
  if (variable.is_reference()) return AssignAdd(at, variable.handle, value).op();
  return AssignAddVariableOp(at, variable.handle, value);
}

Operation AssignSubVariable(ScopeAt at, const Variable& variable, const Output& value) {
  if (!variable.valid()) return Operation();
  if (variable.is_reference()) return AssignSub(at, variable.handle, value).op();
  return AssignSubVariableOp(at, variable.handle, value);
}

Operation ScatterAddVariable(ScopeAt at, const Variable& variable, const Output& rows,
                             const Output& updates) {
  if (!variable.valid()) return Operation();
  if (variable.is_reference()) return ScatterAdd(at, variable.handle, rows, updates).op();
  return ResourceScatterAdd(at, variable.handle, rows, updates);
}

Operation ScatterSubVariable(ScopeAt at, const Variable& variable, const Output& rows,
                             const Output& updates) {
  if (!variable.valid()) return Operation();
  if (variable.is_reference()) return ScatterSub(at, variable.handle, rows, updates).op();
  return ResourceScatterSub(at, variable.handle, rows, updates);
}

Operation ScatterUpdateVariable(ScopeAt at, const Variable& variable, const Output& rows,
                                const Output& updates) {
  if (!variable.valid()) return Operation();
  if (variable.is_reference()) return ScatterUpdate(at, variable.handle, rows, updates).op();
  return ResourceScatterUpdate(at, variable.handle, rows, updates);
}

}  // namespace millrace
