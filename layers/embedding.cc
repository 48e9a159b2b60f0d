// SPDX-License-Identifier: Apache-2.0
#include "layers/embedding.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/dtype.h"
#include "core/shape.h"
#include "core/status.h"
#include "graph/graph.h"
#include "graph/partial_value.h"
#include "layers/part_lookup.h"
#include "ops/array/concat.h"
#include "ops/array/constant.h"
#include "ops/array/distinct.h"
#include "ops/array/dynamic_partition.h"
#include "ops/array/gather.h"
#include "ops/array/indices.h"
#include "ops/array/reshape.h"
#include "ops/array/slice.h"
#include "ops/math/cast.h"
#include "ops/math/cwise_binary.h"
#include "ops/math/cwise_unary.h"
#include "ops/math/segment.h"
#include "ops/math/select.h"
#include "ops/nn/bias.h"
#include "ops/state/state.h"

namespace millrace {
namespace {

Output Fail(const ScopeAt& at, const std::string& text) {
  at.scope.UpdateStatus(absl::InvalidArgumentError(absl::StrCat("EmbeddingLookup: ", text)),
                        at.where);
  return Output();
}

// Scalar arithmetic on ids: op(x, constant of x's dtype).
Output WithNumber(const ScopeAt& at, const BinaryBuilder& op, Output x, int64_t number) {
  const Output constant =
      x.dtype() == DT_INT64 ? Const(at, number) : Const(at, static_cast<int32_t>(number));
  return op(at, x, constant);
}

// For each id its part (int32) and its row there.
struct Places {
  Output part, row;
};
Places ModPlaces(const ScopeAt& at, Output ids, int64_t n) {
  return {WithNumber(at, FloorMod, ids, n), WithNumber(at, FloorDiv, ids, n)};
}
// The first `larger` parts have small + 1 rows, the others `small` (>= 1).
Places DivPlaces(const ScopeAt& at, Output ids, int64_t small, int64_t larger) {
  const Output behind = WithNumber(at, Sub, ids, larger);
  const Output first = WithNumber(at, FloorDiv, ids, small + 1);
  const Output second = WithNumber(at, FloorDiv, behind, small);
  const Output part = Maximum(at, first, second);
  const Output is_larger = WithNumber(at, Less, part, larger);
  const Output row_of_larger = WithNumber(at, FloorMod, ids, small + 1);
  const Output row_of_smaller = WithNumber(at, FloorMod, behind, small);
  const Output row = Select(at, is_larger, row_of_larger, row_of_smaller);
  return {part, row};
}

// That the parts are all columns of one table, in their order.
bool CheckColumns(const ScopeAt& at, const std::vector<Variable>& parts, int cut) {
  const auto d = static_cast<size_t>(cut);
  const VariableSlice& first = parts[0].slice;
  int64_t begin = 0;
  for (const Variable& part : parts) {
    const VariableSlice& slice = part.slice;
    // Slices may come from a file.
    const bool has_place = slice.var_offset.size() > d && slice.var_shape.size() > d;
    if (!has_place || slice.var_offset[d] != begin || slice.full_name != first.full_name ||
        slice.full_shape != first.full_shape) {
      Fail(at,
           absl::StrCat("part '", part.name, "' must begin at ", begin, " of dimension ", cut,
                        ", along which the table is cut, got ",
                        has_place ? absl::StrCat(slice.var_offset[d], " of '", slice.full_name, "'")
                                  : std::string("no slice")));
      return false;
    }
    begin += slice.var_shape[d];
  }
  if (first.full_shape.size() > d && begin == first.full_shape[d]) return true;
  Fail(at, absl::StrCat("the parts of '", first.full_name, "' must be all of its dimension ", cut,
                        ", got ", begin, " of [", absl::StrJoin(first.full_shape, ","), "]"));
  return false;
}

// That the parts have the rows of kDiv; `rows`: of all of them, or -1.
bool CheckConsecutive(const ScopeAt& at, const std::vector<Variable>& parts, int64_t rows) {
  const int64_t n = static_cast<int64_t>(parts.size());
  if (rows < n) {
    Fail(at, rows == -1 ? std::string("the number of rows of each part must be known")
                        : absl::StrCat("the table must have >= ", n, " rows, got ", rows));
    return false;
  }
  const int64_t small = rows / n, larger = rows % n;
  for (int64_t i = 0; i < n; ++i) {
    const Variable& part = parts[static_cast<size_t>(i)];
    const int64_t want = small + (i < larger ? 1 : 0);
    if (part.shape.dim(0) == want) continue;
    Fail(at, absl::StrCat("part '", part.name, "' must have ", want, " of the ", rows,
                          " rows, got ", part.shape.dim(0)));
    return false;
  }
  return true;
}

// Of each part some columns of the rows.
Output LookUpColumns(const ScopeAt& at, const std::vector<Variable>& parts, int cut,
                     const Output& ids) {
  const Scope scope = at.scope.CompositeScope("embedding_lookup");
  const ScopeAt here(scope, at.where);
  std::vector<Output> found;
  for (const Variable& part : parts) found.push_back(GatherRows(here, part, ids));
  // From behind: whatever dimensions the ids have stand before those of a row.
  return ConcatV2(here, found, Const(here, int32_t{cut - parts[0].shape.rank()}));
}

// Each different id once, and its row as often as it is asked for.
Output LookUpOnce(const ScopeAt& at, const std::vector<Variable>& parts, const Output& ids,
                  const EmbeddingLookupAttrs& attrs) {
  const Scope scope = at.scope.CompositeScope("embedding_lookup");
  const ScopeAt in(scope, at.where);
  const PartialShape shape = scope.shape(ids);
  const bool is_vector = shape.has_rank() && shape.rank() == 1;
  const UniqueOutputs unique =
      Unique(in, is_vector ? ids : Reshape(in, ids, Const<int32_t>(in, {-1})));
  const Output rows = EmbeddingLookup(in, parts, unique.y, attrs);
  const Output places = is_vector ? unique.idx : Reshape(in, unique.idx, ShapeOf(in, ids));
  return GatherV2(in, rows, places, Const(in, int32_t{0}));
}

}  // namespace

Output EmbeddingLookup(ScopeAt at, const std::vector<Variable>& parts, Output ids,
                       const EmbeddingLookupAttrs& attrs) {
  if (parts.empty()) return Fail(at, "the table must have >= 1 part, got 0");
  const int cut = CutDimension(parts);
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
    if (cut > 0) continue;
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
  if (cut > 0 && !CheckColumns(at, parts, cut)) return Output();
  const bool crosses = ids.valid() && CrossTasks(parts, ids);
  if (crosses && !IsDistinct(ids)) return LookUpOnce(at, parts, ids, attrs);
  if (parts.size() == 1) return GatherRows(at, parts[0], ids);
  if (cut > 0) return LookUpColumns(at, parts, cut, ids);

  const Scope scope = at.scope.CompositeScope("embedding_lookup");
  const ScopeAt here(scope, at.where);
  const int64_t n = static_cast<int64_t>(parts.size());
  const bool by_turns = attrs.strategy == PartitionStrategy::kMod;
  if (!by_turns && !CheckConsecutive(at, parts, rows)) return Output();
  // Different ids, which are a vector.
  if (crosses && !attrs.portable) {
    return LookUpInParts(here, parts, ids, by_turns ? std::vector<int64_t>() : *RowEnds(parts));
  }
  Output flat = Reshape(here, ids, Const<int32_t>(here, {-1}));
  // What ids are divided by may be larger than the ids.
  if (rows > std::numeric_limits<int32_t>::max() && flat.dtype() == DT_INT32) {
    flat = Cast(here, flat, DT_INT64);
  }
  Places places;
  if (by_turns) {
    places = ModPlaces(here, flat, n);
  } else {
    places = DivPlaces(here, flat, rows / n, rows % n);
  }
  Output number = places.part;
  if (number.dtype() != DT_INT32) {
    number = Cast(here, number, DT_INT32);
  }
  const std::vector<Output> local_ids =
      DynamicPartition(here, places.row, number, static_cast<int>(n));
  const Output positions =
      Range(here, Const(here, int32_t{0}), Size(here, flat), Const(here, int32_t{1}));
  const std::vector<Output> where = DynamicPartition(here, positions, number, static_cast<int>(n));
  std::vector<Output> found;
  for (size_t i = 0; i < parts.size(); ++i) {
    found.push_back(GatherRows(here, parts[i], local_ids[i]));
  }
  const Output stitched = ParallelDynamicStitch(here, where, found);
  Output row_shape;
  if (row.IsFullyDefined()) {
    row_shape = ConstVector<int64_t>(here, row.dims());
  } else {
    const Output shape = ShapeOf(here, found[0], {.out_type = DT_INT64});
    const Output begin = Const<int32_t>(here, {1});
    const Output end = Const<int32_t>(here, {1});
    const Output strides = Const<int32_t>(here, {1});
    row_shape = StridedSlice(here, shape, begin, end, strides, {.end_mask = 1});
  }
  const Output shape = ConcatV2(here, {ShapeOf(here, ids, {.out_type = DT_INT64}), row_shape},
                                Const(here, int32_t{0}));
  return Reshape(here, stitched, shape);
}

Output EmbeddingLookup(ScopeAt at, const PartitionedVariable& table, Output ids,
                       const EmbeddingLookupAttrs& attrs) {
  return EmbeddingLookup(at, table.parts, ids,
                         {.strategy = PartitionStrategy::kDiv, .portable = attrs.portable});
}

// --- Several ids per example -------------------------------------------------------------------

namespace {

constexpr char kSparse[] = "EmbeddingLookupSparse", kSparseName[] = "embedding_lookup_sparse";

bool CheckIds(const ScopeAt& at, const char* layer, const char* default_name, const Output& ids,
              int max_rank, const char* name) {
  if (!CheckLayerTensor(at, layer, default_name, ids, max_rank == 1 ? 1 : 0, max_rank, name)) {
    return false;
  }
  if (IsIndexType(ids.dtype())) return true;
  LayerError(at, layer, default_name, name, " must be int32 or int64, got ", ids.dtype(), " from '",
             ids.name(), "'");
  return false;
}

bool CheckLists(const ScopeAt& at, const char* layer, const char* default_name,
                const IdLists& lists, DType dtype) {
  if (!CheckIds(at, layer, default_name, lists.ids, 1, "ids") ||
      !CheckIds(at, layer, default_name, lists.rows, 1, "rows")) {
    return false;
  }
  // The sums would take any number of them.
  PartialShape length = at.scope.shape(lists.ids);
  const auto same_length = [&](const Output& other, const char* name) {
    const StatusOr<PartialShape> merged = length.MergeWith(at.scope.shape(other));
    if (!merged.ok()) {
      LayerError(at, layer, default_name, name, " must be as long as ids, got shape ",
                 at.scope.shape(other), " for ", at.scope.shape(lists.ids));
      return false;
    }
    length = *merged;
    return true;
  };
  if (!same_length(lists.rows, "rows")) return false;
  if (lists.num_rows.valid()) {
    if (!CheckLayerTensor(at, layer, default_name, lists.num_rows, 0, 0, "num_rows")) return false;
    if (!IsIndexType(lists.num_rows.dtype())) {
      LayerError(at, layer, default_name, "num_rows must be int32 or int64, got ",
                 lists.num_rows.dtype(), " from '", lists.num_rows.name(), "'");
      return false;
    }
  }
  if (!lists.weights.valid()) return true;
  if (!CheckLayerTensor(at, layer, default_name, lists.weights, 1, 1, "weights")) return false;
  if (lists.weights.dtype() != dtype) {
    LayerError(at, layer, default_name, "weights must have the table's dtype ", dtype, ", got ",
               lists.weights.dtype(), " from '", lists.weights.name(), "'");
    return false;
  }
  return same_length(lists.weights, "weights");
}

// `numbers` [n, ...] added up by example; `rows`: that of each.
Output SumByRow(const ScopeAt& in, const Output& numbers, const Output& rows,
                const IdLists& lists) {
  if (!lists.num_rows.valid()) return SegmentSum(in, numbers, rows);
  return UnsortedSegmentSum(in, numbers, rows, lists.num_rows);
}
Output SumByRow(const ScopeAt& in, const Output& per_id, const IdLists& lists) {
  return SumByRow(in, per_id, lists.rows, lists);
}

// The sum of each example's rows, with weights where there are some.
Output SumOfRows(const ScopeAt& in, const PartitionedVariable& table, const IdLists& lists) {
  if (!lists.weights.valid()) {
    const std::optional<PartSums> sums = SumsOfParts(in, table.parts, lists.ids, lists.rows);
    if (sums) return SumByRow(in, sums->numbers, sums->examples, lists);
  }
  const UniqueOutputs unique = Unique(in, lists.ids);
  const Output found = EmbeddingLookup(in, table, unique.y);
  Output rows = GatherV2(in, found, unique.idx, Const(in, int32_t{0}));
  if (lists.weights.valid()) {
    // In the step another number of weights than of ids is an error, also one alone.
    const Output weights = Reshape(in, lists.weights, ShapeOf(in, lists.ids));
    rows = Mul(in, rows, ExpandDims(in, weights, Const(in, int32_t{-1})));
  }
  return SumByRow(in, rows, lists);
}

// What the sum of each example's rows is divided by; invalid for kSum.
Output Divisor(const ScopeAt& in, const IdLists& lists, DType dtype, Combiner combiner) {
  if (combiner == Combiner::kSum) return Output();
  const bool mean = combiner == Combiner::kMean;
  if (!lists.weights.valid()) {
    const Output count = SumByRow(in, Cast(in, OnesLike(in, lists.ids), dtype), lists);
    return mean ? count : Sqrt(in, count);
  }
  if (mean) return SumByRow(in, lists.weights, lists);
  return Sqrt(in, SumByRow(in, Square(in, lists.weights), lists));
}

}  // namespace

Output EmbeddingLookupSparse(ScopeAt at, const PartitionedVariable& table, const IdLists& lists,
                             Combiner combiner) {
  if (table.parts.empty() || !std::all_of(table.parts.begin(), table.parts.end(),
                                          [](const Variable& part) { return part.valid(); })) {
    LayerError(at, kSparse, kSparseName, "the table must be a variable, got an invalid one");
    return Output();
  }
  const DType dtype = table.parts[0].dtype;
  const PartialShape& part = table.parts[0].shape;
  if (!CheckLists(at, kSparse, kSparseName, lists, dtype)) return Output();
  if (!part.has_rank() || part.rank() != 2) {
    LayerError(at, kSparse, kSparseName, "the table must be a matrix, got shape ", part, " for '",
               table.parts[0].name, "'");
    return Output();
  }
  const Scope scope = at.scope.CompositeScope(kSparseName);
  const ScopeAt in(scope, at.where);
  const Output sum = SumOfRows(in, table, lists);
  const Output divisor = Divisor(in, lists, dtype, combiner);
  if (!divisor.valid()) return sum;
  return DivNoNan(in, sum, ExpandDims(in, divisor, Const(in, int32_t{-1})));
}

// --- Layers --------------------------------------------------------------------------------------

namespace {

// A table of rows by id, whole or in parts.
PartitionedVariable MakeTable(const ScopeAt& at, const std::string& name, const Shape& shape,
                              DType dtype, const Partitioner& partitioner,
                              const WeightAttrs& attrs) {
  const Scope scope = at.scope.WithName(name);
  PartitionedVariable table =
      MakeVariableInParts({scope, at.where}, shape, dtype, partitioner, attrs.initializer,
                          {.trainable = attrs.trainable});
  for (const Variable& part : table.parts) AddRegularizationLoss(at, part, attrs.regularizer);
  return table;
}

// The shape of a table; none after an error.
std::optional<Shape> TableShape(const ScopeAt& at, const char* layer, const char* name,
                                int64_t num_ids, const char* columns_name, int64_t columns) {
  if (num_ids < 1 || columns < 1) {
    LayerError(at, layer, name, "num_ids and ", columns_name, " must be >= 1, got ", num_ids,
               " and ", columns);
    return std::nullopt;
  }
  const StatusOr<Shape> shape = Shape::Make({num_ids, columns});
  if (shape.ok()) return *shape;
  LayerError(at, layer, name, shape.status().message());
  return std::nullopt;
}

constexpr char kEmbedding[] = "Embedding", kEmbeddingName[] = "embedding";

template <typename Lookup>
EmbeddingLayer MakeEmbedding(const ScopeAt& at, int64_t num_ids, int64_t dimension,
                             const EmbeddingAttrs& attrs, Lookup lookup) {
  const std::optional<Shape> shape =
      TableShape(at, kEmbedding, kEmbeddingName, num_ids, "dimension", dimension);
  if (!shape) return {};
  const Scope scope = at.scope.CompositeScope(kEmbeddingName);
  const ScopeAt in(scope, at.where);
  EmbeddingLayer layer;
  layer.table = MakeTable(in, "embeddings", *shape, attrs.dtype, attrs.partitioner,
                          {attrs.initializer, attrs.regularizer, attrs.trainable});
  if (!at.scope.ok()) return {};
  static_cast<Output&>(layer) = lookup(in, layer.table);
  return layer;
}

}  // namespace

EmbeddingLayer Embedding(ScopeAt at, const Output& ids, int64_t num_ids, int64_t dimension,
                         const EmbeddingAttrs& attrs) {
  if (!CheckIds(at, kEmbedding, kEmbeddingName, ids, Shape::kMaxRank - 1, "ids")) return {};
  return MakeEmbedding(at, num_ids, dimension, attrs,
                       [&](const ScopeAt& in, const PartitionedVariable& table) {
                         return EmbeddingLookup(in, table, ids);
                       });
}

EmbeddingLayer Embedding(ScopeAt at, const IdLists& lists, int64_t num_ids, int64_t dimension,
                         const EmbeddingAttrs& attrs) {
  if (!CheckLists(at, kEmbedding, kEmbeddingName, lists, attrs.dtype)) return {};
  return MakeEmbedding(at, num_ids, dimension, attrs,
                       [&](const ScopeAt& in, const PartitionedVariable& table) {
                         return EmbeddingLookupSparse(in, table, lists, attrs.combiner);
                       });
}

LinearLayer Linear(ScopeAt at, const IdLists& lists, int64_t num_ids, const LinearAttrs& attrs) {
  constexpr char kLayer[] = "Linear", kName[] = "linear";
  if (!CheckLists(at, kLayer, kName, lists, attrs.dtype)) return {};
  const std::optional<Shape> shape = TableShape(at, kLayer, kName, num_ids, "units", attrs.units);
  if (!shape) return {};
  const Scope scope = at.scope.CompositeScope(kName);
  const ScopeAt in(scope, at.where);
  LinearLayer layer;
  layer.weights =
      MakeTable(in, "weights", *shape, attrs.dtype, attrs.partitioner,
                {attrs.weights_initializer, attrs.weights_regularizer, attrs.trainable});
  if (attrs.use_bias) {
    layer.bias = MakeWeight(in, "bias", {attrs.units}, attrs.dtype,
                            {attrs.bias_initializer, {}, attrs.trainable});
  }
  if (!at.scope.ok()) return {};
  Output sum = EmbeddingLookupSparse(in, layer.weights, lists, attrs.combiner);
  if (attrs.use_bias) sum = BiasAdd(in, sum, layer.bias.value);
  static_cast<Output&>(layer) = sum;
  return layer;
}

}  // namespace millrace
