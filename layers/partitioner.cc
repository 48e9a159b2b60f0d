// SPDX-License-Identifier: Apache-2.0
#include "layers/partitioner.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/dtype.h"
#include "core/shape.h"
#include "core/status.h"
#include "graph/graph.h"
#include "graph/table_parts.h"
#include "layers/initializers.h"
#include "ops/array/concat.h"
#include "ops/array/constant.h"
#include "ops/array/identity.h"

namespace millrace {
namespace {

using Partitions = StatusOr<std::vector<int64_t>>;

StatusOr<int> Dimension(const Shape& shape, int axis) {
  const int dim = axis < 0 ? axis + shape.rank() : axis;
  if (dim >= 0 && dim < shape.rank()) return dim;
  // TensorFlow's text.
  return InvalidArgument("Can not partition variable along axis ", axis, " when shape is only ",
                         shape);
}

std::vector<int64_t> CutAlong(const Shape& shape, int dim, int64_t num_parts) {
  std::vector<int64_t> partitions(static_cast<size_t>(shape.rank()), 1);
  partitions[static_cast<size_t>(dim)] = num_parts;
  return partitions;
}

double ElementBytes(DType dtype, int64_t bytes_per_string_element) {
  return dtype == DT_STRING ? static_cast<double>(bytes_per_string_element)
                            : static_cast<double>(DTypeSize(dtype));
}

// `count`, a whole number, or `most`, if that is less.
int64_t AtMost(double count, int64_t most) {
  return count < static_cast<double>(most) ? static_cast<int64_t>(count) : most;
}

// What the scope says of a variable of which nothing else is said.
Partitions DefaultPartitions(const Scope& scope, const Shape& shape, DType dtype,
                             const VariableAttrs& attrs) {
  if (shape.rank() < 2 || attrs.local) return std::vector<int64_t>();
  const TablesInParts tables = TablesInPartsOf(scope);
  if (tables.max_parts <= 1) return std::vector<int64_t>();
  return MinMaxVariablePartitioner(
      {.max_partitions = tables.max_parts, .min_slice_size = tables.min_part_bytes})(shape, dtype);
}

bool IsWhole(const std::vector<int64_t>& partitions) {
  return std::all_of(partitions.begin(), partitions.end(), [](int64_t n) { return n == 1; });
}

}  // namespace

Partitioner FixedSizePartitioner(int64_t num_shards, int axis) {
  return [num_shards, axis](const Shape& shape, DType) -> Partitions {
    MR_ASSIGN_OR_RETURN(const int dim, Dimension(shape, axis));
    return CutAlong(shape, dim, std::min(num_shards, shape.dim(dim)));
  };
}

Partitioner VariableAxisSizePartitioner(int64_t max_shard_bytes,
                                        const VariableAxisSizePartitionerAttrs& attrs) {
  return [max_shard_bytes, attrs](const Shape& shape, DType dtype) -> Partitions {
    if (max_shard_bytes < 1 || attrs.bytes_per_string_element < 1) {
      return InvalidArgument(
          "Both max_shard_bytes and bytes_per_string_element must be positive, got ",
          max_shard_bytes, " and ", attrs.bytes_per_string_element);
    }
    if (attrs.max_shards < 0) {
      return InvalidArgument("max_shards must be positive, got ", attrs.max_shards,
                             "; 0 sets no limit");
    }
    MR_ASSIGN_OR_RETURN(const int dim, Dimension(shape, attrs.axis));
    // In double, as TensorFlow divides.
    const double size = static_cast<double>(shape.dim(dim));
    const double bytes_per_slice = static_cast<double>(shape.num_elements()) / size *
                                   ElementBytes(dtype, attrs.bytes_per_string_element);
    // Where TensorFlow divides by 0: no elements, or those of a type without a size.
    if (!(bytes_per_slice > 0)) return CutAlong(shape, dim, 1);
    const double slices_per_shard =
        std::max(1.0, std::floor(static_cast<double>(max_shard_bytes) / bytes_per_slice));
    const int64_t shards = AtMost(std::ceil(size / slices_per_shard), shape.dim(dim));
    return CutAlong(shape, dim,
                    attrs.max_shards == 0 ? shards : std::min(attrs.max_shards, shards));
  };
}

Partitioner MinMaxVariablePartitioner(const MinMaxVariablePartitionerAttrs& attrs) {
  return [attrs](const Shape& shape, DType dtype) -> Partitions {
    if (attrs.min_slice_size < 1 || attrs.bytes_per_string_element < 1) {
      return InvalidArgument(
          "Both min_slice_size and bytes_per_string_element must be positive, got ",
          attrs.min_slice_size, " and ", attrs.bytes_per_string_element);
    }
    MR_ASSIGN_OR_RETURN(const int dim, Dimension(shape, attrs.axis));
    const double bytes = static_cast<double>(shape.num_elements()) *
                         ElementBytes(dtype, attrs.bytes_per_string_element);
    const double wanted = std::ceil(bytes / static_cast<double>(attrs.min_slice_size));
    const int64_t most = std::min(shape.dim(dim), attrs.max_partitions);
    return CutAlong(shape, dim, std::max<int64_t>(1, AtMost(wanted, most)));
  };
}

PartitionedVariable MakeVariableInParts(ScopeAt at, const Shape& shape, DType dtype,
                                        const Partitioner& partitioner,
                                        const Initializer& initializer,
                                        const VariableAttrs& attrs) {
  // A scalar has no dimension to ask about; MakePartitionedVariable refuses it.
  Partitions partitions = std::vector<int64_t>();
  if (!partitioner) {
    partitions = DefaultPartitions(at.scope, shape, dtype, attrs);
    if (partitions.ok() && IsWhole(*partitions)) {
      const Variable whole = MakeVariable(at, shape, dtype, initializer, attrs);
      return {.name = whole.name, .parts = {whole}, .full_shape = shape};
    }
  } else if (!shape.is_scalar()) {
    partitions = partitioner(shape, dtype);
  }
  if (!partitions.ok()) {
    at.scope.UpdateStatus(Prefixed(absl::StrCat("Variable '", at.scope.prefix(),
                                                at.scope.RequestedName("Variable"), "'"),
                                   partitions.status()),
                          at.where);
    return {};
  }
  return MakePartitionedVariable(at, shape, dtype, *partitions, initializer, attrs);
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
  const Output axis =
      Const({inner.WithName("concat/axis"), at.where}, int32_t{CutDimension(variable.parts)});
  return Identity(named, ConcatV2({inner.WithName("concat"), at.where}, parts, axis));
}

}  // namespace millrace
