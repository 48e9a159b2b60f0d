// SPDX-License-Identifier: Apache-2.0
#include "train/beside_variable.h"

#include "graph/node_builder.h"
#include "ops/array/constant.h"

namespace millrace {

Output ScalarLike(const Scope& scope, const Variable& variable, double value) {
  if (variable.dtype == DT_DOUBLE) return Const(scope, value);
  const Output single = Const(scope, static_cast<float>(value));
  if (variable.dtype == DT_FLOAT) return single;
  return NodeBuilder(scope, "Cast").Input(single).Attr("DstT", variable.dtype).Finish().output(0);
}

Output CastTo(const Scope& scope, const Variable& variable, const Variable& from) {
  if (from.dtype == variable.dtype) return from.value;
  return NodeBuilder(scope, "Cast")
      .Input(from.value)
      .Attr("DstT", variable.dtype)
      .Finish()
      .output(0);
}

Scope NextTo(const Scope& scope, const Variable& variable) {
  return scope.ColocatedWith(variable.handle.op());
}

}  // namespace millrace
