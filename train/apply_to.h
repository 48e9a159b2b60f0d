// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_APPLY_TO_H_
#define MILLRACE_TRAIN_APPLY_TO_H_

// ApplyTo: one update of a variable by the op of its kind (ops/training): `on_handle` for a
// resource variable, `on_reference` for a reference variable. Both are builders with the same
// inputs and attrs after the variable; slots are of the variable's kind.

#include "graph/scope.h"
#include "layers/variable.h"

namespace millrace {

template <typename OnHandle, typename OnReference, typename... Inputs>
Operation ApplyTo(const Variable& variable, OnHandle on_handle, OnReference on_reference,
                  const Scope& scope, const Inputs&... inputs) {
  if (!variable.is_reference()) return on_handle(scope, variable.handle, inputs...);
  return on_reference(scope, variable.handle, inputs...).op();
}

}  // namespace millrace

#endif  // MILLRACE_TRAIN_APPLY_TO_H_
