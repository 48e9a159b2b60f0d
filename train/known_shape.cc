// SPDX-License-Identifier: Apache-2.0
#include "train/known_shape.h"

#include "graph/graph.h"

namespace millrace {

StatusOr<Shape> KnownShape(const Variable& variable) {
  if (variable.shape.valid() && variable.shape.IsFullyDefined()) return Shape::Of(variable.shape);
  const bool is_oldest = variable.handle.valid() && variable.handle.node()->op() == "Variable";
  return InvalidArgument(
      "variable '", variable.name, "' must have a shape that is known whole, got ", variable.shape,
      is_oldest ? ", which is what an op Variable with the shape [] says" : "",
      "; tell the graph before VariablesOf, as for a scalar: scope.SetShape(*scope.Find(\"",
      variable.value.name(), "\"), PartialShape::Scalar())");
}

}  // namespace millrace
