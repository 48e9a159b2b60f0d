// SPDX-License-Identifier: Apache-2.0
#include "layers/part_lookup.h"

#include <algorithm>

#include "core/dtype.h"
#include "core/shape.h"
#include "graph/graph.h"
#include "layers/crosses_tasks.h"
#include "ops/array/concat.h"
#include "ops/array/constant.h"
#include "ops/array/dynamic_partition.h"
#include "ops/array/gather.h"
#include "ops/state/part_rows.h"
#include "ops/state/state.h"

namespace millrace {
namespace {

// Of parts that are matrices of one width: that of a row; else nothing.
std::optional<int64_t> RowBytes(const std::vector<Variable>& parts) {
  const auto width = [](const Variable& part) {
    const PartialShape& shape = part.shape;
    return shape.has_rank() && shape.rank() == 2 ? shape.dim(1) : -1;
  };
  const int64_t first = width(parts[0]);
  for (const Variable& part : parts) {
    if (first < 1 || width(part) != first || part.dtype != parts[0].dtype) return std::nullopt;
  }
  const StatusOr<int64_t> bytes =
      CheckedProduct(first, static_cast<int64_t>(DTypeSize(parts[0].dtype)));
  return bytes.ok() ? std::optional<int64_t>(*bytes) : std::nullopt;
}

}  // namespace

Output GatherRows(const ScopeAt& at, const Variable& part, const Output& ids) {
  const Scope there = at.scope.ColocatedWith(part.handle.op());
  const ScopeAt here(there, at.where);
  if (part.is_reference()) {
    const Output axis = Const({there.WithName("axis"), at.where}, int32_t{0});
    return GatherV2(here, part.value, ids, axis);
  }
  return ResourceGather(here, part.handle, ids, part.dtype);
}

bool CrossTasks(const std::vector<Variable>& parts, const Output& beside) {
  return std::any_of(parts.begin(), parts.end(), [&](const Variable& part) {
    return part.handle.valid() && CrossesTasks(part.handle.node()->requested_device(), beside);
  });
}

std::optional<std::vector<int64_t>> RowEnds(const std::vector<Variable>& parts) {
  std::vector<int64_t> ends;
  int64_t end = 0;
  for (const Variable& part : parts) {
    const PartialShape& shape = part.shape;
    if (!shape.has_rank() || shape.rank() < 1 || shape.dim(0) < 0) return std::nullopt;
    end += shape.dim(0);
    ends.push_back(end);
  }
  return ends;
}

Output LookUpInParts(const ScopeAt& at, const std::vector<Variable>& parts, const Output& ids,
                     const std::vector<int64_t>& ends) {
  const Scope named = at.scope.WithName("part_rows");
  const PartRowsOutputs divided =
      PartRows({named, at.where}, ids, static_cast<int>(parts.size()), ends);
  if (!at.scope.ok()) return Output();
  std::vector<Output> found;
  for (size_t i = 0; i < parts.size(); ++i) {
    found.push_back(GatherRows(at, parts[i], divided.rows[i]));
  }
  return ParallelDynamicStitch(at, divided.places, found);
}

std::optional<PartSums> SumsOfParts(const ScopeAt& at, const std::vector<Variable>& parts,
                                    const Output& ids, const Output& examples) {
  if (parts.size() < 2 || CutDimension(parts) != 0 || !CrossTasks(parts, ids)) return std::nullopt;
  const DType dtype = parts[0].dtype;
  if (dtype != DT_FLOAT && dtype != DT_DOUBLE) return std::nullopt;
  const bool has_reference = std::any_of(parts.begin(), parts.end(),
                                         [](const Variable& part) { return part.is_reference(); });
  const std::optional<std::vector<int64_t>> ends = RowEnds(parts);
  const std::optional<int64_t> row_bytes = RowBytes(parts);
  if (has_reference || !ends || !row_bytes) return std::nullopt;

  const Scope named = at.scope.WithName("part_lists");
  const PartListsOutputs lists = PartLists({named, at.where}, ids, examples, *ends, *row_bytes);
  if (!at.scope.ok()) return PartSums();
  std::vector<Output> sums;
  for (size_t i = 0; i < parts.size(); ++i) {
    const Scope there = at.scope.ColocatedWith(parts[i].handle.op()).WithName("part_sums");
    sums.push_back(
        RowSums({there, at.where}, parts[i].handle, lists.rows[i], lists.sums[i], dtype));
  }
  const Output axis = Const(at, int32_t{0});
  return PartSums{GatherV2(at, ConcatV2(at, sums, axis), lists.picks, axis), lists.examples};
}

}  // namespace millrace
