// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_BESIDE_VARIABLE_H_
#define MILLRACE_TRAIN_BESIDE_VARIABLE_H_

// Nodes beside a variable, as optimizers make them: on its device, of its dtype.

#include "graph/scope.h"
#include "layers/variable.h"
#include "ops/array/number_or_output.h"

namespace millrace {

// A scalar of the variable's dtype: a constant, or the tensor, cast when it has another dtype.
Output ScalarLike(const Scope& scope, const Variable& variable, const NumberOrOutput& value);
// A value that lives with another variable, in the dtype of this one.
Output CastTo(const Scope& scope, const Variable& variable, const Variable& from);
// Is this a slot that an optimizer has made in the graph of the variable, by an earlier call?
bool IsMade(const Variable& slot, const Variable& variable);
// Collections and names of a colocated scope: nodes of one variable's update live next to it.
Scope NextTo(const Scope& scope, const Variable& variable);

}  // namespace millrace

#endif  // MILLRACE_TRAIN_BESIDE_VARIABLE_H_
