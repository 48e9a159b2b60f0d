// SPDX-License-Identifier: Apache-2.0
#include "layers/initial_values.h"

#include <cmath>

#include "core/shape.h"
#include "core/status.h"
#include "ops/array/constant.h"
#include "ops/random/random.h"

namespace millrace {

Variable FilledVariable(const Scope& scope, const std::string& name,
                        const std::vector<int32_t>& shape, float value) {
  const Scope initializer = scope.WithSubScope(name + "/Initializer");
  return MakeVariable(
      scope.WithName(name),
      Fill(initializer, ConstVector<int32_t>(initializer, shape), Const(initializer, value)));
}

Variable TruncatedNormalVariable(const Scope& scope, const std::string& name,
                                 std::initializer_list<int64_t> shape, double stddev) {
  const StatusOr<Shape> made = Shape::Make(shape);
  if (!made.ok()) {
    scope.UpdateStatus(made.status(), std::source_location::current());
    return Variable();
  }
  return MakeVariable(scope.WithName(name), TruncatedNormal(scope.WithName(name + "/Initializer"),
                                                            *made, DT_FLOAT, 0, stddev));
}

Variable GlorotUniformVariable(const Scope& scope, const std::string& name, int64_t rows,
                               int64_t columns) {
  const double bound = std::sqrt(6.0 / static_cast<double>(rows + columns));
  const StatusOr<Shape> shape = Shape::Make({rows, columns});
  if (!shape.ok()) {
    scope.UpdateStatus(shape.status(), std::source_location::current());
    return Variable();
  }
  return MakeVariable(scope.WithName(name), RandomUniform(scope.WithName(name + "/Initializer"),
                                                          *shape, DT_FLOAT, -bound, bound));
}

}  // namespace millrace
