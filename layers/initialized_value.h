// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_LAYERS_INITIALIZED_VALUE_H_
#define MILLRACE_LAYERS_INITIALIZED_VALUE_H_

// Values of variables that may have none yet: what the initial value of another variable, or a
// moving average, begins with.
//
//   Variable a = MakeVariable(s.WithName("a"), {2}, DT_FLOAT, RandomUniformInitializer());
//   Variable b = MakeVariable(s.WithName("b"), Mul(s, a.value, two));  // b is exactly 2 a
//
// The initialisers of a model run in one step, in any order. There a plain read of another variable
// finds a value or none. InitializedValue is the variable's value where it has one, else its
// initial value: the tensor that its own initialiser assigns in this step, computed once.
// (TensorFlow's initialized_value().)

#include "absl/strings/string_view.h"
#include "graph/scope.h"
#include "layers/variable.h"

namespace millrace {

// Of the variable's dtype and shape, on its device. InvalidArgument for a variable that has no
// initial value (one that AdoptVariable made).
Output InitializedValue(ScopeAt at, const Variable& variable);

// `value`, computed of the InitializedValues of the variables that it reads (those that have an
// initial value); `value` itself where it reads none. What lies between such a read and the value
// is copied, outside of all branches and loops. MakeVariable does this for its initial value;
// `name` is the new variable's, for the copies' names. A value that comes out of a Cond or a loop
// which has read a variable, or is made of rows that were looked up in one, stays as it is: call
// InitializedValue there.
Output FromInitialValues(ScopeAt at, absl::string_view name, const Output& value);

}  // namespace millrace

#endif  // MILLRACE_LAYERS_INITIALIZED_VALUE_H_
