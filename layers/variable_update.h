// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_LAYERS_VARIABLE_UPDATE_H_
#define MILLRACE_LAYERS_VARIABLE_UPDATE_H_

// What reads and changes a Variable, whichever kind it is: the ops on resources (AssignVariableOp,
// ResourceScatterAdd, ...) for a handle, those on references (Assign, ScatterAdd, ...) for a
// reference. TensorFlow's methods of tf.Variable: read_value, assign, assign_add, assign_sub,
// scatter_add, scatter_sub, scatter_update.
//
// Each makes one op, in the scope as it is: on its device, after its control dependencies. Values
// have the variable's dtype and shape; rows are int32 or int64 indices of its first dimension.
// Errors: those of the ops, in the scope; an invalid result for an invalid variable.

#include "graph/scope.h"
#include "layers/variable.h"

namespace millrace {

// The value when the op runs. (`variable.value` is one read that all share.)
Output ReadVariable(ScopeAt at, const Variable& variable);

Operation AssignVariable(ScopeAt at, const Variable& variable, const Output& value);
Operation AssignAddVariable(ScopeAt at, const Variable& variable, const Output& value);
Operation AssignSubVariable(ScopeAt at, const Variable& variable, const Output& value);

// Row rows[i] of the variable changes by updates[i], or by a scalar. Rows may repeat.
Operation ScatterAddVariable(ScopeAt at, const Variable& variable, const Output& rows,
                             const Output& updates);
Operation ScatterSubVariable(ScopeAt at, const Variable& variable, const Output& rows,
                             const Output& updates);
// Row rows[i] becomes updates[i]. Of rows that repeat one stays.
Operation ScatterUpdateVariable(ScopeAt at, const Variable& variable, const Output& rows,
                                const Output& updates);

}  // namespace millrace

#endif  // MILLRACE_LAYERS_VARIABLE_UPDATE_H_
