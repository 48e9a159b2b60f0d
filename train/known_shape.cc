// SPDX-License-Identifier: Apache-2.0
#include "train/known_shape.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "graph/graph.h"

namespace millrace {

StatusOr<Shape> KnownShape(const Variable& variable) {
  if (variable.shape.valid() && variable.shape.IsFullyDefined()) return Shape::Of(variable.shape);
  std::string why;
  if (variable.handle.valid()) {
    const Node& node = *variable.handle.node();
    const StatusOr<PartialShape> attr = GetAttr<PartialShape>(node, "shape");
    if (attr.ok() && *attr == PartialShape::Scalar()) {
      why = absl::StrCat(", which is what an op ", node.op(), " with the shape [] says");
    }
  }
  return InvalidArgument(
      "variable '", variable.name, "' must have a shape that is known whole, got ", variable.shape,
      why, "; tell the graph before VariablesOf, as for a scalar: scope.SetShape(*scope.Find(\"",
      variable.value.name(), "\"), PartialShape::Scalar())");
}

}  // namespace millrace
