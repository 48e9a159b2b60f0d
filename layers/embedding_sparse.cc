// SPDX-License-Identifier: Apache-2.0
#include "layers/embedding_sparse.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/shape.h"
#include "layers/part_lookup.h"
#include "layers/weight.h"
#include "ops/array/concat.h"
#include "ops/array/constant.h"
#include "ops/array/gather.h"
#include "ops/array/identity.h"
#include "ops/array/indices.h"
#include "ops/array/reshape.h"
#include "ops/array/slice.h"
#include "ops/array/tile.h"
#include "ops/math/cast.h"
#include "ops/math/cwise_binary.h"
#include "ops/math/cwise_unary.h"
#include "ops/math/reduction.h"
#include "ops/math/segment.h"
#include "ops/math/select.h"
#include "ops/sparse/sparse.h"

namespace millrace {
namespace {

constexpr char kLookup[] = "EmbeddingLookupSparse", kLookupName[] = "embedding_lookup_sparse";
constexpr char kSafe[] = "SafeEmbeddingLookupSparse", kSafeName[] = "embedding_lookup";

bool CheckInputs(const ScopeAt& at, const char* layer, const char* name,
                 const PartitionedVariable& table, const SparseTensor& ids) {
  if (table.parts.empty() || !std::all_of(table.parts.begin(), table.parts.end(),
                                          [](const Variable& part) { return part.valid(); })) {
    LayerError(at, layer, name, "the table must be a variable, got an invalid one");
    return false;
  }
  if (!ids.valid()) {
    LayerError(at, layer, name, "ids must be a sparse tensor, got an invalid one");
    return false;
  }
  const DType dtype = ids.values.dtype();
  if (dtype == DT_INT32 || dtype == DT_INT64) return true;
  LayerError(at, layer, name, "ids must be int32 or int64, got ", dtype, " from '",
             ids.values.name(), "'");
  return false;
}

// vector[i:j].
Output Part(const ScopeAt& in, const Output& vector, int32_t begin, int32_t size) {
  return Slice(in, vector, Const<int32_t>(in, {begin}), Const<int32_t>(in, {size}));
}

// Rows [n, ...] that are longer than max_norm cut to it (tf.clip_by_norm).
Output ClipRows(const ScopeAt& at, const Output& rows, const PartialShape& row, double max_norm) {
  const Scope scope = at.scope.WithSubScope("clip_by_norm");
  const ScopeAt in(scope, at.where);
  std::vector<int32_t> axes;
  for (int i = 1; i <= row.rank(); ++i) axes.push_back(i);
  const Output limit = Cast(in, Const(in, max_norm), rows.dtype());
  const Output squares =
      Sum(in, Mul(in, rows, rows), ConstVector<int32_t>(in, axes), {.keep_dims = true});
  const Output positive = Greater(in, squares, ZerosLike(in, squares));
  const Output safe = Select(in, positive, squares, OnesLike(in, squares));
  const Output length = Select(in, positive, Sqrt(in, safe), squares);
  return RealDiv(in, Mul(in, rows, limit), Maximum(in, length, limit));
}

// Adds up rows by segment, divided by what the combiner says.
Output Combine(const ScopeAt& in, const Scope& named, const Output& rows, const Output& weights,
               const Output& segments, Combiner combiner) {
  const ScopeAt result(named, in.where);
  if (combiner == Combiner::kSum) return SegmentSum(result, rows, segments);
  const Output sum = SegmentSum(in, rows, segments);
  if (combiner == Combiner::kMean) {
    return RealDiv(result, sum, SegmentSum(in, weights, segments));
  }
  const Output squares = Mul(in, weights, weights);
  return RealDiv(result, sum, Sqrt(in, SegmentSum(in, squares, segments)));
}

// The same of what the parts of a table have added up; without weights. Rows between, which have no
// ids, are 0.
Output CombineSums(const ScopeAt& in, const Scope& named, const PartSums& sums,
                   const Output& segments, Combiner combiner) {
  const ScopeAt result(named, in.where);
  if (combiner == Combiner::kSum) return SegmentSum(result, sums.numbers, sums.examples);
  const Output sum = SegmentSum(in, sums.numbers, sums.examples);
  const Output ones = Cast(in, OnesLike(in, segments), sum.dtype());
  Output divisor = SegmentSum(in, ones, segments);
  if (combiner == Combiner::kSqrtN) divisor = Sqrt(in, divisor);
  return DivNoNan(result, sum, ExpandDims(in, divisor, Const(in, int32_t{-1})));
}

// The row of each value.
Output Segments(const ScopeAt& in, const SparseTensor& ids) {
  const Output rows = StridedSlice({in.scope.WithName("strided_slice"), in.where}, ids.indices,
                                   Const<int32_t>(in, {0, 0}), Const<int32_t>(in, {0, 1}),
                                   Const<int32_t>(in, {1, 1}),
                                   {.begin_mask = 1, .end_mask = 1, .shrink_axis_mask = 2});
  return Cast(in, rows, DT_INT32);
}

}  // namespace

Output EmbeddingLookupSparse(ScopeAt at, const PartitionedVariable& table, const SparseTensor& ids,
                             const SparseTensor& weights, const SparseLookupAttrs& attrs) {
  if (!CheckInputs(at, kLookup, kLookupName, table, ids)) return Output();
  // The result has the name of the scope of the other nodes.
  const std::string name = ReserveName(at.scope, kLookupName);
  const Scope scope = at.scope.WithSubScope(name + "/");
  const Scope named = at.scope.WithName(name + "/");
  const ScopeAt in(scope, at.where);
  const Output segments = Segments(in, ids);
  if (!attrs.portable && !weights.valid() && !attrs.max_norm) {
    const std::optional<PartSums> sums = SumsOfParts(in, table.parts, ids.values, segments);
    if (sums) return CombineSums(in, named, *sums, segments, attrs.combiner);
  }
  const UniqueOutputs unique = Unique(in, ids.values);
  Output found = EmbeddingLookup({scope.WithName("embedding_lookup"), at.where}, table, unique.y,
                                 {.portable = attrs.portable});
  const PartialShape row = [&] {
    const PartialShape& part = table.parts[0].shape;
    return part.has_rank() ? *PartialShape::Make(part.dims().subspan(1)) : PartialShape::Unknown();
  }();
  if (attrs.max_norm && row.has_rank()) found = ClipRows(in, found, row, *attrs.max_norm);
  if (!weights.valid()) {
    const SparseSegmentBuilder& combine = attrs.combiner == Combiner::kSum    ? SparseSegmentSum
                                          : attrs.combiner == Combiner::kMean ? SparseSegmentMean
                                                                              : SparseSegmentSqrtN;
    return combine({named, at.where}, found, unique.idx, segments);
  }
  Output factors = weights.values;
  if (factors.dtype() != found.dtype()) factors = Cast(in, factors, found.dtype());
  // As many dimensions as a row has behind the first: [n, 1...].
  const std::vector<int32_t> ones(static_cast<size_t>(row.has_rank() ? row.rank() : 0), 1);
  factors = Reshape(in, factors,
                    ConcatV2(in, {ShapeOf(in, ids.values), ConstVector<int32_t>(in, ones)},
                             Const(in, int32_t{0})));
  const Output rows = Mul(in, GatherV2(in, found, unique.idx, Const(in, int32_t{0})), factors);
  return Combine(in, named, rows, factors, segments, attrs.combiner);
}

Output SafeEmbeddingLookupSparse(ScopeAt at, const PartitionedVariable& table,
                                 const SparseTensor& ids, const SparseTensor& weights,
                                 const SparseLookupAttrs& attrs) {
  if (!CheckInputs(at, kSafe, kSafeName, table, ids)) return Output();
  const PartialShape rank_shape = at.scope.shape(ids.dense_shape);
  const int64_t rank = rank_shape.has_rank() && rank_shape.rank() == 1 ? rank_shape.dim(0) : -1;
  if (rank < 2) {
    LayerError(at, kSafe, kSafeName, "ids must have a known rank >= 2, got dense_shape of shape ",
               rank_shape, " from '", ids.dense_shape.name(), "'");
    return Output();
  }
  const std::string name = ReserveName(at.scope, kSafeName);
  const Scope scope = at.scope.WithSubScope(name + "/");
  const ScopeAt in(scope, at.where);
  const auto leading = static_cast<int32_t>(rank - 1);

  // Nodes have the names that TensorFlow 1.15 gives them.
  const auto named = [&](const char* node) { return scope.WithName(node); };

  // A matrix: everything but the last dimension is a row of its own.
  const Output rows = ReduceProd(in, Part(in, ids.dense_shape, 0, leading), {0});
  const Output length = GatherV2(in, ids.dense_shape, Const(in, leading), Const(in, int32_t{0}));
  const Output shape = Pack({named("Cast/x"), at.where}, {rows, length});
  SparseTensor matrix = SparseReshape(in, ids, shape);
  matrix.values = Identity({named("SparseReshape/Identity"), at.where}, matrix.values);
  SparseTensor factors;
  if (weights.valid()) factors = {matrix.indices, weights.values, matrix.dense_shape};

  const auto keep = [&](const Output& which) {
    const Output places = Reshape(in, Where(in, which), Const<int32_t>(in, {-1}));
    const auto chosen = [&](const Output& x) {
      return GatherV2(in, x, places, Const(in, int32_t{0}));
    };
    matrix.indices = chosen(matrix.indices);
    matrix.values = chosen(matrix.values);
    matrix.dense_shape = Identity(in, matrix.dense_shape);
    if (factors.valid()) factors = {matrix.indices, chosen(factors.values), matrix.dense_shape};
  };
  const Output zero =
      ids.values.dtype() == DT_INT64 ? Const(in, int64_t{0}) : Const(in, int32_t{0});
  keep(GreaterEqual(in, matrix.values, zero));
  if (factors.valid() && attrs.combiner != Combiner::kSum) {
    keep(Greater(in, factors.values, ZerosLike(in, factors.values)));
  }

  const SparseFillEmptyRowsOutputs filled = SparseFillEmptyRows(
      {named("SparseFillEmptyRows/SparseFillEmptyRows"), at.where}, matrix, zero);
  if (factors.valid()) {
    const Output one = Cast(in, Const(in, 1.0f), factors.values.dtype());
    factors = SparseFillEmptyRows({named("SparseFillEmptyRows_1/SparseFillEmptyRows"), at.where},
                                  factors, one)
                  .output;
  }
  const Output result = EmbeddingLookupSparse(in, table, filled.output, factors, attrs);

  const Output empty = Reshape(in, filled.empty_row_indicator, Const<int32_t>(in, {-1, 1}));
  const Output width =
      StridedSlice({named("strided_slice"), at.where}, ShapeOf(in, result), Const<int32_t>(in, {1}),
                   Const<int32_t>(in, {2}), Const<int32_t>(in, {1}), {.shrink_axis_mask = 1});
  const Output empties =
      Tile(in, empty, Pack({named("stack"), at.where}, {Const(in, int32_t{1}), width}));
  const Output zeros = ZerosLike({named("zeros_like"), at.where}, result);
  const Output safe = Select({at.scope.WithName(name + "/"), at.where}, empties, zeros, result);
  const Output leading_dims =
      Part(in, Cast({named("Cast_1"), at.where}, ids.dense_shape, DT_INT32), 0, leading);
  const Output row_dims = Part(in, ShapeOf(in, safe), 1, -1);
  const Output final_shape =
      ConcatV2({named("concat"), at.where}, {leading_dims, row_dims}, Const(in, int32_t{0}));
  return Reshape(in, safe, final_shape);
}

}  // namespace millrace
