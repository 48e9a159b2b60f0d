// SPDX-License-Identifier: Apache-2.0
#include "train/beside_variable.h"

#include "graph/node_builder.h"

namespace millrace {

Output ScalarLike(const Scope& scope, const Variable& variable, const NumberOrOutput& value) {
  return ScalarIn(scope, value, variable.value);
}

Output CastTo(const Scope& scope, const Variable& variable, const Variable& from) {
  if (from.dtype == variable.dtype) return from.value;
  return NodeBuilder(scope, "Cast")
      .Input(from.value)
      .Attr("DstT", variable.dtype)
      .Finish()
      .output(0);
}

bool IsMade(const Variable& slot, const Variable& variable) {
  return slot.valid() && slot.handle.node()->graph() == variable.handle.node()->graph();
}

Scope NextTo(const Scope& scope, const Variable& variable) {
  return scope.ColocatedWith(variable.handle.op());
}

}  // namespace millrace
