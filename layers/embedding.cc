// SPDX-License-Identifier: Apache-2.0
#include "layers/embedding.h"

#include <string>

#include "ops/array/concat.h"
#include "ops/array/constant.h"
#include "ops/array/dynamic_partition.h"
#include "ops/array/reshape.h"
#include "ops/state/state.h"

namespace millrace {
namespace {

Output Fail(const ScopeAt& at, const std::string& text) {
  at.scope.UpdateStatus(absl::InvalidArgumentError(absl::StrCat("EmbeddingLookup: ", text)),
                        at.where);
  return Output();
}

// Scalar arithmetic on ids: `op`(x, constant of x's dtype).
Output WithNumber(const ScopeAt& at, const char* op, Output x, int64_t number) {
  const Output constant =
      x.dtype() == DT_INT64 ? Const(at, number) : Const(at, static_cast<int32_t>(number));
  return NodeBuilder(at, op).Input(x).Input(constant).Finish().output(0);
}

// For each id its part (int32) and its row there.
struct Places {
  Output part, row;
};
Places ModPlaces(const ScopeAt& at, Output ids, int64_t n) {
  return {WithNumber(at, "FloorMod", ids, n), WithNumber(at, "FloorDiv", ids, n)};
}
// The first `larger` parts have small + 1 rows, the others `small` (>= 1).
Places DivPlaces(const ScopeAt& at, Output ids, int64_t small, int64_t larger) {
  const Output behind = WithNumber(at, "Sub", ids, larger);
  const Output part = NodeBuilder(at, "Maximum")
                          .Input(WithNumber(at, "FloorDiv", ids, small + 1))
                          .Input(WithNumber(at, "FloorDiv", behind, small))
                          .Finish()
                          .output(0);
  const Output row = NodeBuilder(at, "Select")
                         .Input(WithNumber(at, "Less", part, larger))
                         .Input(WithNumber(at, "FloorMod", ids, small + 1))
                         .Input(WithNumber(at, "FloorMod", behind, small))
                         .Finish()
                         .output(0);
  return {part, row};
}

}  // namespace

Output EmbeddingLookup(ScopeAt at, const std::vector<Variable>& parts, Output ids,
                       const EmbeddingLookupAttrs& attrs) {
  if (parts.empty()) return Fail(at, "the table must have >= 1 part, got 0");
  PartialShape row;
  int64_t rows = 0;
  for (const Variable& part : parts) {
    if (!part.valid()) return Output();
    if (part.dtype != parts[0].dtype) {
      return Fail(at, absl::StrCat("all parts must have dtype ", DTypeName(parts[0].dtype),
                                   ", got ", DTypeName(part.dtype), " for '", part.name, "'"));
    }
    if (!part.shape.has_rank() || part.shape.rank() < 1) {
      return Fail(at, absl::StrCat("a part must have rank >= 1, got shape ", part.shape.ToString(),
                                   " for '", part.name, "'"));
    }
    const StatusOr<PartialShape> own = PartialShape::Make(part.shape.dims().subspan(1));
    const StatusOr<PartialShape> merged = own.ok() ? row.MergeWith(*own) : own;
    if (!merged.ok()) {
      return Fail(at,
                  absl::StrCat("all parts must have rows of shape ", row.ToString(), ", got shape ",
                               part.shape.ToString(), " for '", part.name, "'"));
    }
    row = *merged;
    rows = rows == -1 || part.shape.dim(0) == -1 ? -1 : rows + part.shape.dim(0);
  }
  const auto gather = [&](const Variable& part, Output local_ids) {
    const Scope there = at.scope.ColocatedWith(part.handle.op());
    return ResourceGather(ScopeAt(there, at.where), part.handle, local_ids, part.dtype);
  };
  if (parts.size() == 1) return gather(parts[0], ids);

  const Scope scope = at.scope.CompositeScope("embedding_lookup");
  const ScopeAt here(scope, at.where);
  const int64_t n = static_cast<int64_t>(parts.size());
  const Output flat = Reshape(here, ids, Const<int32_t>(here, {-1}));
  Places places;
  if (attrs.strategy == PartitionStrategy::kMod) {
    places = ModPlaces(here, flat, n);
  } else {
    if (rows < n) {
      return Fail(at, rows == -1 ? std::string("the number of rows of each part must be known")
                                 : absl::StrCat("the table must have >= ", n, " rows, got ", rows));
    }
    const int64_t small = rows / n, larger = rows % n;
    for (int64_t i = 0; i < n; ++i) {
      const Variable& part = parts[static_cast<size_t>(i)];
      const int64_t want = small + (i < larger ? 1 : 0);
      if (part.shape.dim(0) != want) {
        return Fail(at, absl::StrCat("part '", part.name, "' must have ", want, " of the ", rows,
                                     " rows, got ", part.shape.dim(0)));
      }
    }
    places = DivPlaces(here, flat, small, larger);
  }
  Output number = places.part;
  if (number.dtype() != DT_INT32) {
    number = NodeBuilder(here, "Cast").Input(number).Attr("DstT", DT_INT32).Finish().output(0);
  }
  const std::vector<Output> local_ids =
      DynamicPartition(here, places.row, number, static_cast<int>(n));
  const Output positions =
      Range(here, Const(here, int32_t{0}), Size(here, flat), Const(here, int32_t{1}));
  const std::vector<Output> where = DynamicPartition(here, positions, number, static_cast<int>(n));
  std::vector<Output> found;
  for (size_t i = 0; i < parts.size(); ++i) {
    const Scope there = scope.ColocatedWith(parts[i].handle.op());
    found.push_back(
        ResourceGather(ScopeAt(there, at.where), parts[i].handle, local_ids[i], parts[i].dtype));
  }
  const Output stitched = ParallelDynamicStitch(here, where, found);
  Output row_shape;
  if (row.IsFullyDefined()) {
    row_shape = ConstVector<int64_t>(here, row.dims());
  } else {
    const Output shape = ShapeOf(here, found[0], {.out_type = DT_INT64});
    row_shape = NodeBuilder(here, "StridedSlice")
                    .Input(shape)
                    .Input(Const<int32_t>(here, {1}))
                    .Input(Const<int32_t>(here, {1}))
                    .Input(Const<int32_t>(here, {1}))
                    .Attr("end_mask", int64_t{1})
                    .Finish()
                    .output(0);
  }
  const Output shape = ConcatV2(here, {ShapeOf(here, ids, {.out_type = DT_INT64}), row_shape},
                                Const(here, int32_t{0}));
  return Reshape(here, stitched, shape);
}

Output EmbeddingLookup(ScopeAt at, const PartitionedVariable& table, Output ids) {
  return EmbeddingLookup(at, table.parts, ids, {.strategy = PartitionStrategy::kDiv});
}

}  // namespace millrace
