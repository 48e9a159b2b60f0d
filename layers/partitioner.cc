// SPDX-License-Identifier: Apache-2.0
#include "layers/partitioner.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "layers/initializers.h"
#include "ops/array/concat.h"
#include "ops/array/constant.h"
#include "ops/array/identity.h"

namespace millrace {

Partitioner FixedSizePartitioner(int num_parts) {
  return [num_parts](const Shape& shape, DType) {
    return shape.is_scalar() ? 1 : static_cast<int>(std::min<int64_t>(num_parts, shape.dim(0)));
  };
}

Partitioner MinMaxPartitioner(int max_parts, int64_t min_slice_bytes) {
  return [max_parts, min_slice_bytes](const Shape& shape, DType dtype) {
    if (shape.is_scalar()) return 1;
    const double bytes =
        static_cast<double>(shape.num_elements()) * static_cast<double>(DTypeSize(dtype));
    const double parts =
        std::ceil(bytes / static_cast<double>(std::max<int64_t>(min_slice_bytes, 1)));
    const int64_t most = std::min<int64_t>(max_parts, shape.dim(0));
    return static_cast<int>(std::max<int64_t>(
        1, parts < static_cast<double>(most) ? static_cast<int64_t>(parts) : most));
  };
}

PartitionedVariable MakeVariableInParts(ScopeAt at, const Shape& shape, DType dtype,
                                        const Partitioner& partitioner,
                                        const Initializer& initializer,
                                        const VariableAttrs& attrs) {
  if (partitioner) {
    return MakePartitionedVariable(at, shape, dtype, partitioner(shape, dtype), initializer, attrs);
  }
  const Variable whole = MakeVariable(at, shape, dtype, initializer, attrs);
  return {.name = whole.name, .parts = {whole}, .full_shape = shape};
}

Output WholeValue(ScopeAt at, const PartitionedVariable& variable) {
  if (variable.parts.empty() || !variable.parts.back().valid()) return Output();
  if (variable.parts[0].slice.full_name.empty()) return variable.parts[0].value;
  // The name is that of the parts' scope; the node that stands for them takes it, too.
  const Scope root = at.scope.WithRootPrefix().WithoutControlDependencies();
  const bool taken = root.graph()->FindNode(variable.name) != nullptr;
  const std::string name = taken ? root.UniqueName(variable.name) : variable.name;
  const Scope named_scope = root.WithName(name + "/");
  const ScopeAt named(named_scope, at.where);
  if (variable.parts.size() == 1) return Identity(named, variable.parts[0].value);
  std::vector<Output> parts;
  for (const Variable& part : variable.parts) parts.push_back(part.value);
  const Scope inner = root.WithSubScope(name + "/ConcatPartitions/");
  const Output axis = Const({inner.WithName("concat/axis"), at.where}, int32_t{0});
  return Identity(named, ConcatV2({inner.WithName("concat"), at.where}, parts, axis));
}

}  // namespace millrace
