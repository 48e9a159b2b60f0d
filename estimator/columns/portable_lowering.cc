// SPDX-License-Identifier: Apache-2.0
#include "estimator/columns/portable_lowering.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/dtype.h"
#include "core/shape.h"
#include "core/status.h"
#include "core/tensor.h"
#include "estimator/columns/column_spec.h"
#include "estimator/columns/given_ids.h"
#include "layers/embedding_sparse.h"
#include "layers/lookup.h"
#include "layers/partitioner.h"
#include "ops/array/concat.h"
#include "ops/array/constant.h"
#include "ops/array/gather.h"
#include "ops/array/identity.h"
#include "ops/array/indices.h"
#include "ops/array/reshape.h"
#include "ops/array/slice.h"
#include "ops/array/tile.h"
#include "ops/array/transpose.h"
#include "ops/control/asserts.h"
#include "ops/linalg/matmul.h"
#include "ops/math/add_n.h"
#include "ops/math/bucketize.h"
#include "ops/math/cast.h"
#include "ops/math/cwise_binary.h"
#include "ops/math/cwise_unary.h"
#include "ops/math/reduction.h"
#include "ops/math/segment.h"
#include "ops/math/select.h"
#include "ops/nn/bias.h"
#include "ops/sparse/sparse.h"
#include "ops/strings/as_string.h"
#include "ops/strings/hash_bucket.h"

namespace millrace {
namespace {

using Kind = ConsumerPlan::Kind;

// --- Errors --------------------------------------------------------------------------------------

template <typename... Parts>
void Refuse(const ScopeAt& in, const ColumnSpec& column, const Parts&... rule) {
  in.scope.UpdateStatus(OfColumn(column, Prefixed(absl::StrCat("column '", column.name, "'"),
                                                  InvalidArgument(rule...))),
                        in.where);
}

std::string Given(const Features& features) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : features.map()) names.push_back(absl::StrCat("'", name, "'"));
  for (const auto& [name, tensor] : features.sparse_map()) {
    names.push_back(absl::StrCat("'", name, "'"));
  }
  return names.empty() ? "no features" : absl::StrJoin(names, ", ");
}

// --- Small graphs --------------------------------------------------------------------------------

ScopeAt Named(const Scope& scope, const ScopeAt& in) { return ScopeAt(scope, in.where); }

Output Ints(const ScopeAt& in, std::initializer_list<int32_t> values) {
  return Const<int32_t>(in, values);
}

// Element i of a vector, as a scalar.
Output Element(const ScopeAt& in, const Output& vector, int32_t i) {
  return StridedSlice(in, vector, Ints(in, {i}), Ints(in, {i + 1}), Ints(in, {1}),
                      {.shrink_axis_mask = 1});
}

// [x's first dimension, numbers], as tensors of an input layer are.
Output AsMatrix(const ScopeAt& in, const Output& x, int64_t numbers) {
  const Scope& scope = in.scope;
  const Output batch =
      StridedSlice(Named(scope.WithName("strided_slice"), in), ShapeOf(in, x), Ints(in, {0}),
                   Ints(in, {1}), Ints(in, {1}), {.shrink_axis_mask = 1});
  const Output shape = Pack(Named(scope.WithName("Reshape/shape"), in),
                            {batch, Const(in, static_cast<int32_t>(numbers))});
  return Reshape(in, x, shape);
}

// A dense tensor of a rank that is not known: what an example has, in a row. Rank 0 is an error of
// the step.
Output RowsOfUnknownRank(const ScopeAt& in, const Output& x) {
  const Output shape = ShapeOf(in, x);
  const Output rest =
      StridedSlice(in, shape, Ints(in, {1}), Ints(in, {0}), Ints(in, {1}), {.end_mask = 1});
  return Reshape(in, x, Pack(in, {Element(in, shape, 0), ReduceProd(in, rest, {0})}));
}

// How many dimensions a sparse tensor has, if that is known.
int RankOf(const ScopeAt& in, const SparseTensor& x) {
  const PartialShape shape = in.scope.shape(x.dense_shape);
  return shape.has_rank() && shape.rank() == 1 ? static_cast<int>(shape.dim(0)) : -1;
}

// The elements of a dense tensor that are there.
SparseTensor WithoutMissing(const ScopeAt& at, const Output& dense, const Output& missing) {
  const Scope scope = at.scope.WithSubScope("to_sparse_input");
  const ScopeAt in(scope, at.where);
  const Output there = NotEqual(in, dense, missing);
  const Output indices = Where(Named(scope.WithName("indices"), in), there);
  return {indices, GatherNd(Named(scope.WithName("values"), in), dense, indices),
          ShapeOf(Named(scope.WithName("dense_shape"), in), dense, {.out_type = DT_INT64})};
}

// What stands for a value that is missing: "" or -1, of weights 0.
Output MissingValue(const ScopeAt& in, DType dtype) {
  if (dtype == DT_STRING) return Const(in, "");
  const Output number = IsInteger(dtype) ? Const(in, -1) : Const(in, 0);
  return dtype == DT_INT32 ? number : Cast(in, number, dtype);
}

Output ToInt64(const ScopeAt& in, const Output& x) {
  return x.dtype() == DT_INT64 ? x : Cast(in, x, DT_INT64);
}

// A node's input list of one is the node.
Output SumOf(const ScopeAt& named, const std::vector<Output>& list) {
  return list.size() == 1 ? Identity(named, list[0]) : AddN(named, list);
}
Output ConcatOf(const ScopeAt& named, const ScopeAt& in, const std::vector<Output>& list,
                int32_t axis) {
  return list.size() == 1 ? Identity(named, list[0]) : ConcatV2(named, list, Const(in, axis));
}

// The first column whose number of examples is another than that of those before.
bool CheckBatchSizes(const ScopeAt& in, const LayerPlan& layer, const std::vector<Output>& list) {
  int64_t batch = -1;
  const ColumnSpec* first = nullptr;
  for (size_t i = 0; i < list.size(); ++i) {
    const PartialShape shape = in.scope.shape(list[i]);
    const int64_t own = shape.has_rank() && shape.rank() > 0 ? shape.dim(0) : -1;
    const ColumnSpec& column = *layer.consumers[i].column;
    if (own < 0) continue;
    if (batch >= 0 && own != batch) {
      Refuse(in, column, "features must have as many examples, got ", own, " here and ", batch,
             " of column '", first->name, "'");
      return false;
    }
    batch = own;
    first = &column;
  }
  return true;
}

// --- Ids of one kind -----------------------------------------------------------------------------

SparseTensor HashedIds(const ScopeAt& in, SparseTensor values, const HashBucketSpec& column) {
  if (values.dtype() != DT_STRING) values.values = AsString(in, values.values);
  values.values = StringToHashBucketFast(Named(in.scope.WithName("lookup"), in), values.values,
                                         column.num_buckets);
  return values;
}

SparseTensor VocabularyIds(const ScopeAt& in, SparseTensor values, const VocabularySpec& column) {
  if (column.dtype != DT_STRING) values.values = ToInt64(in, values.values);
  const Scope named = in.scope.WithName(absl::StrCat(column.key, "_lookup"));
  const IndexTable table = column.file.empty()
                               ? IndexTableFromTensor(Named(named, in), column.words,
                                                      {.num_oov_buckets = column.num_oov_buckets,
                                                       .default_value = column.default_value})
                               : IndexTableFromFile(Named(named, in), column.file,
                                                    {.vocab_size = column.size,
                                                     .num_oov_buckets = column.num_oov_buckets,
                                                     .default_value = column.default_value,
                                                     .key_dtype = column.dtype});
  values.values = table.valid() ? Lookup(in, table, values.values) : Output();
  return values;
}

SparseTensor IdentityIds(const ScopeAt& in, SparseTensor values, const IdentitySpec& column,
                         const std::string& name) {
  Output ids = ToInt64(in, values.values);
  const Output num_buckets = Const(in, column.num_buckets), zero = Const(in, int64_t{0});
  if (column.default_value) {
    const Output outside = LogicalOr(Named(in.scope.WithName("out_of_range"), in),
                                     Less(in, ids, zero), GreaterEqual(in, ids, num_buckets));
    const Output instead = Fill(Named(in.scope.WithName("default_values"), in), ShapeOf(in, ids),
                                Const(in, *column.default_value));
    values.values = Select(in, outside, instead, ids);
    return values;
  }
  // Without quotes, which Assert escapes.
  const Output rule =
      Const(in, absl::StrCat("CategoricalColumnWithIdentity ", name, ": ids must be in [0, ",
                             column.num_buckets, "), got"));
  const Output less = ReduceAll(in, Less(in, ids, num_buckets), {0});
  const Output not_negative = ReduceAll(in, GreaterEqual(in, ids, zero), {0});
  const Operation below =
      Assert(Named(in.scope.WithName("assert_less_than_num_buckets"), in), less, {rule, ids});
  const Operation above =
      Assert(Named(in.scope.WithName("assert_greater_or_equal_0"), in), not_negative, {rule, ids});
  values.values = WithDependencies(in, {below, above}, ids);
  return values;
}

// [batch] or [batch, 1], -1 for nothing.
SparseTensor SparseOfGiven(const ScopeAt& in, const Output& given) {
  Output ids = ToInt64(in, given);
  if (in.scope.shape(ids).rank() == 1) ids = ExpandDims(in, ids, Const(in, -1));
  return WithoutMissing(in, ids, Const(in, int64_t{-1}));
}

// How many steps each example has: the last one's number, and 0 behind the last example that has
// any; `per_step` values are one step.
Output SequenceLength(const ScopeAt& at, const SparseTensor& values, int64_t per_step) {
  const Scope scope = at.scope.WithSubScope("sequence_length");
  const ScopeAt in(scope, at.where);
  const auto column = [&](int32_t i) {
    return StridedSlice(in, values.indices, Ints(in, {0, i}), Ints(in, {0, i + 1}),
                        Ints(in, {1, 1}), {.begin_mask = 1, .end_mask = 1, .shrink_axis_mask = 2});
  };
  const Output one = Const(in, int64_t{1}), width = Const(in, per_step);
  const Output counts = Add(in, column(1), one);
  const Output steps = FloorDiv(in, Add(in, counts, Sub(in, width, one)), width);
  const Output last = SegmentMax(in, steps, column(0));
  const Output known = ShapeOf(in, last, {.out_type = DT_INT64});
  const Output batch = Slice(in, values.dense_shape, Ints(in, {0}), Ints(in, {1}));
  const Output padding = Fill(in, Sub(in, batch, known), Const(in, int64_t{0}));
  return ConcatV2(in, {last, padding}, Const(in, 0));
}

}  // namespace

PortableColumns::PortableColumns(const ColumnPlan& plan, const Features& features, bool own_ops)
    : plan_(plan),
      features_(features),
      own_ops_(own_ops),
      sources_(plan.sources.size()),
      numerics_(plan.numerics.size()),
      buckets_(plan.ids.size()),
      ids_(plan.ids.size()),
      given_(plan.ids.size()) {}

// --- Features ------------------------------------------------------------------------------------

const PortableColumns::Raw& PortableColumns::Source(const ScopeAt& in, int source,
                                                    const ColumnSpec& column) {
  std::optional<Raw>& slot = sources_[static_cast<size_t>(source)];
  if (slot) return *slot;
  Raw& raw = slot.emplace();
  const std::string& key = plan_.sources[static_cast<size_t>(source)].key;
  const auto dense = features_.map().find(key);
  const auto sparse = features_.sparse_map().find(key);
  if (dense == features_.map().end() && sparse == features_.sparse_map().end()) {
    Refuse(in, column, "feature '", key, "' must be one of those given, ", Given(features_));
    return raw;
  }
  if (dense != features_.map().end() ? !dense->second.valid() : !sparse->second.valid()) {
    Refuse(in, column, "feature '", key, "' must be a tensor, got an invalid Output");
    return raw;
  }
  if (dense != features_.map().end()) {
    const PartialShape shape = in.scope.shape(dense->second);
    if (shape.has_rank() && shape.rank() == 0) {
      Refuse(in, column, "feature '", key, "' must have rank >= 1, got shape []");
    } else if (!shape.has_rank()) {
      raw.dense = RowsOfUnknownRank(in, dense->second);
    } else {
      raw.dense = shape.rank() > 1 ? dense->second : ExpandDims(in, dense->second, Const(in, -1));
    }
    return raw;
  }
  raw.sparse = sparse->second;
  if (RankOf(in, raw.sparse) == 1) {
    const Output one = Const(in, int64_t{1});
    raw.sparse =
        SparseReshape(in, raw.sparse, Pack(in, {Element(in, raw.sparse.dense_shape, 0), one}));
  }
  return raw;
}

Output PortableColumns::Numeric(const ScopeAt& in, int numeric) {
  Output& made = numerics_[static_cast<size_t>(numeric)];
  if (made.valid() || !in.scope.ok()) return made;
  const NumericPlan& plan = plan_.numerics[static_cast<size_t>(numeric)];
  const ColumnSpec& column = *plan.column;
  const auto& spec = *column.As<NumericSpec>();
  const Raw& raw = Source(in, plan.source, column);
  if (raw.sparse.valid()) {
    Refuse(in, column, "feature '", spec.key,
           "' must be dense, got a sparse one; SparseTensorToDense makes it so");
  }
  if (!raw.dense.valid() || !in.scope.ok()) return made;
  Output x = raw.dense;
  if (!IsFloating(WithoutRef(x.dtype())) && !IsInteger(WithoutRef(x.dtype()))) {
    Refuse(in, column, "feature '", spec.key, "' must be a number, got ", x.dtype());
    return made;
  }
  if (spec.normalizer) {
    x = spec.normalizer(in.scope.BuiltWhereCalled(), x);
    if (!x.valid()) {
      Refuse(in, column, "the normalizer must give a tensor, got an invalid Output");
      return made;
    }
  }
  if (x.dtype() != DT_FLOAT) x = Cast(in, x, DT_FLOAT);
  const PartialShape shape = in.scope.shape(x);
  int64_t elements = shape.has_rank() && shape.rank() > 0 ? 1 : -1;
  for (int i = 1; shape.has_rank() && i < shape.rank(); ++i) {
    elements = elements < 0 || shape.dim(i) < 0 ? -1 : elements * shape.dim(i);
  }
  if (elements >= 0 && elements != plan.elements) {
    Refuse(in, column, "feature '", spec.key, "' must have ", plan.elements,
           plan.elements == 1 ? " value" : " values", " per example, got shape ", shape);
    return made;
  }
  made = x;
  return made;
}

SparseTensor PortableColumns::Categorical(const ScopeAt& in, int source, const ColumnSpec& column) {
  const Raw& raw = Source(in, source, column);
  if (!in.scope.ok()) return {};
  const DType dtype = WithoutRef(raw.sparse.valid() ? raw.sparse.dtype() : raw.dense.dtype());
  if (dtype != DT_STRING && !IsInteger(dtype)) {
    Refuse(in, column, "feature '", plan_.sources[static_cast<size_t>(source)].key,
           "' must be string or an integer, got ", dtype);
    return {};
  }
  return raw.sparse.valid() ? raw.sparse : WithoutMissing(in, raw.dense, MissingValue(in, dtype));
}

// --- Ids -----------------------------------------------------------------------------------------

Output PortableColumns::Buckets(const ScopeAt& in, int ids) {
  Output& made = buckets_[static_cast<size_t>(ids)];
  if (made.valid() || !in.scope.ok()) return made;
  const IdsPlan& plan = plan_.ids[static_cast<size_t>(ids)];
  const Output x = Numeric(in, plan.numeric);
  if (x.valid()) {
    made = Bucketize(in, x, {.boundaries = plan.column->As<BucketizedSpec>()->boundaries});
  }
  return made;
}

SparseTensor PortableColumns::BucketIds(const ScopeAt& in, int position) {
  const Output buckets = Buckets(in, position);
  if (!buckets.valid()) return {};
  const auto& spec = *plan_.ids[static_cast<size_t>(position)].column->As<BucketizedSpec>();
  const auto elements = static_cast<int32_t>(spec.source->As<NumericSpec>()->shape.dim(0));
  const auto per_element = static_cast<int32_t>(spec.boundaries.size() + 1);
  const Output zero = Const(in, 0), one = Const(in, 1), width = Const(in, elements);
  const Output batch = Element(in, ShapeOf(in, buckets), 0);
  const Output flat = Ints(in, {-1});
  const Output rows = Reshape(
      in, Tile(in, ExpandDims(in, Range(in, zero, batch, one), one), Ints(in, {1, elements})),
      flat);
  const Output columns = Tile(in, Range(in, zero, width, one), ExpandDims(in, batch, zero));
  const Output ids = Add(in, Reshape(in, buckets, flat), Mul(in, Const(in, per_element), columns));
  const Output indices = Transpose(in, Pack(in, {rows, columns}), Ints(in, {1, 0}));
  return {Cast(in, indices, DT_INT64), ids, Cast(in, Pack(in, {batch, width}), DT_INT64)};
}

SparseTensor PortableColumns::CrossIds(const ScopeAt& in, const IdsPlan& ids) {
  const auto& spec = *ids.column->As<CrossedSpec>();
  std::vector<SparseTensor> sparse;
  std::vector<Output> dense;
  for (const IdsPlan::Leaf& leaf : ids.leaves) {
    if (leaf.ids >= 0) {
      sparse.push_back(Ids(in, leaf.ids));
    } else if (const Raw& raw = Source(in, leaf.source, *ids.column);
               spec.tf_compat_cross_order && raw.dense.valid()) {
      const DType dtype = WithoutRef(raw.dense.dtype());
      if (dtype != DT_STRING && !IsInteger(dtype)) {
        Refuse(in, *ids.column, "feature '", plan_.sources[static_cast<size_t>(leaf.source)].key,
               "' must be string or an integer, got ", dtype);
      } else {
        dense.push_back(dtype == DT_STRING ? raw.dense : ToInt64(in, raw.dense));
      }
      if (!in.scope.ok()) return {};
      continue;
    } else {
      sparse.push_back(Categorical(in, leaf.source, *ids.column));
    }
    if (!in.scope.ok() || !sparse.back().valid()) return {};
    if (sparse.back().dtype() != DT_STRING) {
      sparse.back().values = ToInt64(in, sparse.back().values);
    }
  }
  return SparseCross(
      in, sparse, dense,
      {.num_buckets = spec.num_buckets, .hash_key = static_cast<int64_t>(spec.hash_key)});
}

SparseTensor PortableColumns::MakeIds(const ScopeAt& in, int position) {
  const IdsPlan& plan = plan_.ids[static_cast<size_t>(position)];
  const ColumnSpec& column = *plan.column;
  if (column.As<BucketizedSpec>() != nullptr) return BucketIds(in, position);
  if (column.As<CrossedSpec>() != nullptr) return CrossIds(in, plan);
  const SparseTensor values = Categorical(in, plan.source, column);
  if (!values.valid()) return {};
  const auto* hashed = column.As<HashBucketSpec>();
  const auto* vocabulary = column.As<VocabularySpec>();
  const bool text = (hashed != nullptr && hashed->dtype == DT_STRING) ||
                    (vocabulary != nullptr && vocabulary->dtype == DT_STRING);
  if (text != (WithoutRef(values.dtype()) == DT_STRING)) {
    Refuse(in, column, "feature '", plan_.sources[static_cast<size_t>(plan.source)].key,
           "' must be ", text ? "string" : "an integer", " as the column's dtype is, got ",
           values.dtype());
    return {};
  }
  if (hashed != nullptr) return HashedIds(in, values, *hashed);
  if (vocabulary != nullptr) return VocabularyIds(in, values, *vocabulary);
  return IdentityIds(in, values, *column.As<IdentitySpec>(), column.name);
}

const SparseTensor& PortableColumns::Ids(const ScopeAt& in, int ids) {
  SparseTensor& made = ids_[static_cast<size_t>(ids)];
  if (!made.valid() && in.scope.ok()) made = MakeIds(in, ids);
  return made;
}

PortableColumns::IdsAndWeights PortableColumns::IdsOf(const ScopeAt& in,
                                                      const ConsumerPlan& consumer) {
  IdsAndWeights result;
  if (consumer.id_weights < 0) {
    const ColumnSpec& column = *plan_.ids[static_cast<size_t>(consumer.ids)].column;
    if (const Output given = GivenIds(in.scope, features_, column); given.valid()) {
      SparseTensor& made = given_[static_cast<size_t>(consumer.ids)];
      if (!made.valid()) made = SparseOfGiven(in, given);
      result.ids = made;
      return result;
    }
  }
  result.ids = Ids(in, consumer.ids);
  if (consumer.id_weights < 0 || !in.scope.ok()) return result;
  // The weighted column itself, or that of which the consumer is made.
  const ColumnSpec* column = consumer.column.get();
  if (const auto* c = column->As<IndicatorSpec>()) column = c->column.get();
  if (const auto* c = column->As<EmbeddingSpec>()) column = c->column.get();
  const auto& spec = *column->As<WeightedSpec>();
  const Raw& raw = Source(in, consumer.id_weights, *column);
  if (!in.scope.ok()) return result;
  const DType dtype = WithoutRef(raw.sparse.valid() ? raw.sparse.dtype() : raw.dense.dtype());
  if (dtype != spec.dtype) {
    Refuse(in, *column, "weights '", spec.weight_key, "' must be ", spec.dtype, ", got ", dtype);
    return result;
  }
  result.weights = raw.sparse;
  if (!raw.sparse.valid()) {
    const Output zero = dtype == DT_FLOAT ? Const(in, 0.0f) : Cast(in, Const(in, 0.0f), dtype);
    result.weights = WithoutMissing(in, raw.dense, zero);
  }
  if (!IsFloating(dtype)) result.weights.values = Cast(in, result.weights.values, DT_FLOAT);
  return result;
}

// --- What columns are ----------------------------------------------------------------------------

Output PortableColumns::Indicator(const ScopeAt& in, const IdsAndWeights& given, int64_t num_ids) {
  const Output depth = Const(in, num_ids);
  if (!given.weights.valid()) {
    const Output minus_one = given.ids.dtype() == DT_INT64 ? Const(in, int64_t{-1}) : Const(in, -1);
    const Output dense = SparseTensorToDense(in, given.ids, minus_one);
    const Output ones =
        OneHot(in, dense, Cast(in, depth, DT_INT32), Const(in, 1.0f), Const(in, 0.0f));
    return ReduceSum(in, ones, {-2});
  }
  // [..., position] -> [..., id].
  const Output there = GreaterEqual(in, given.ids.values, ZerosLike(in, given.ids.values));
  const SparseTensor ids = SparseRetain(in, given.ids, there);
  const SparseTensor weights =
      SparseRetain(in, {given.ids.indices, given.weights.values, given.ids.dense_shape}, there);
  const int32_t leading = std::max(RankOf(in, ids) - 1, 1);
  const Output places = ConcatV2(in,
                                 {Slice(in, ids.indices, Ints(in, {0, 0}), Ints(in, {-1, leading})),
                                  ExpandDims(in, ToInt64(in, ids.values), Const(in, 1))},
                                 Const(in, 1));
  const Output shape = ConcatV2(in,
                                {Slice(in, ids.dense_shape, Ints(in, {0}), Ints(in, {leading})),
                                 Const<int64_t>(in, {num_ids})},
                                Const(in, 0));
  Output values = weights.values;
  if (values.dtype() != DT_FLOAT) values = Cast(in, values, DT_FLOAT);
  return ScatterNd(in, places, values, shape);
}

Output PortableColumns::Dense(const ScopeAt& in, const ConsumerPlan& consumer,
                              const std::vector<PartitionedVariable>& tables) {
  switch (consumer.kind) {
    case Kind::kNumeric:
      return Numeric(in, consumer.numeric);
    case Kind::kBuckets: {
      const Output buckets = Buckets(in, consumer.ids);
      if (!buckets.valid()) return Output();
      const auto& spec = *consumer.column->As<BucketizedSpec>();
      const auto depth = static_cast<int32_t>(spec.boundaries.size() + 1);
      return OneHot(in, ToInt64(in, buckets), Const(in, depth), Const(in, 1.0f), Const(in, 0.0f));
    }
    case Kind::kIndicator: {
      const IdsAndWeights given = IdsOf(in, consumer);
      return in.scope.ok() ? Indicator(in, given, consumer.width) : Output();
    }
    case Kind::kEmbedding: {
      const IdsAndWeights given = IdsOf(in, consumer);
      if (!in.scope.ok()) return Output();
      const auto& spec = *consumer.column->As<EmbeddingSpec>();
      const Scope named = in.scope.WithName(absl::StrCat(consumer.column->name, "_weights"));
      return SafeEmbeddingLookupSparse(
          Named(named, in), tables[static_cast<size_t>(consumer.table)], given.ids, given.weights,
          {.combiner = spec.combiner, .max_norm = spec.max_norm, .portable = !own_ops_});
    }
    case Kind::kIds:
    case Kind::kSequenceNumeric:
      break;
  }
  return Output();
}

// --- Layers --------------------------------------------------------------------------------------

Output PortableColumns::InputPart(const ScopeAt& in, const ConsumerPlan& consumer,
                                  const std::vector<PartitionedVariable>& tables) {
  const Scope scope = in.scope.WithSubScope(consumer.column->name);
  const ScopeAt here(scope, in.where);
  const Output numbers = Dense(here, consumer, tables);
  return numbers.valid() ? AsMatrix(here, numbers, consumer.width) : Output();
}

Output PortableColumns::InputLayer(const ScopeAt& in, const LayerPlan& layer,
                                   const std::vector<PartitionedVariable>& tables) {
  std::vector<Output> parts;
  for (const ConsumerPlan& consumer : layer.consumers) {
    parts.push_back(InputPart(in, consumer, tables));
    if (!parts.back().valid()) return Output();
  }
  if (!CheckBatchSizes(in, layer, parts)) return Output();
  return ConcatOf(Named(in.scope.WithName("concat"), in), in, parts, 1);
}

Output PortableColumns::LinearPart(const ScopeAt& in, const LayerPlan& layer,
                                   const ConsumerPlan& consumer,
                                   const std::vector<PartitionedVariable>& tables) {
  const Scope scope = in.scope.WithSubScope(consumer.column->name);
  const ScopeAt here(scope, in.where);
  const Scope named_scope = scope.WithName("weighted_sum");
  const ScopeAt named(named_scope, in.where);
  const PartitionedVariable& weights = tables[static_cast<size_t>(consumer.weights)];
  if (consumer.kind != Kind::kIds) {
    const Output numbers = Dense(here, consumer, tables);
    if (!numbers.valid()) return Output();
    return MatMul(named, AsMatrix(here, numbers, consumer.width), WholeValue(here, weights));
  }
  IdsAndWeights given = IdsOf(here, consumer);
  if (!in.scope.ok()) return Output();
  // A matrix: what an example has is one list.
  const auto as_rows = [&](const SparseTensor& values) {
    if (RankOf(here, values) == 2) return values;
    const Output batch = Slice(here, values.dense_shape, Ints(here, {0}), Ints(here, {1}));
    const Output rest = Slice(here, values.dense_shape, Ints(here, {1}), Ints(here, {-1}));
    const Output width = ReduceProd(here, rest, {0}, {.keep_dims = true});
    return SparseReshape(here, values, ConcatV2(here, {batch, width}, Const(here, 0)));
  };
  given.ids = as_rows(given.ids);
  if (given.weights.valid()) given.weights = as_rows(given.weights);
  return SafeEmbeddingLookupSparse(named, weights, given.ids, given.weights,
                                   {.combiner = layer.sparse_combiner, .portable = !own_ops_});
}

Output PortableColumns::LinearTotal(const ScopeAt& in, const std::vector<Output>& parts,
                                    const std::vector<PartitionedVariable>& tables) {
  const Output sum = SumOf(Named(in.scope.WithName("weighted_sum_no_bias"), in), parts);
  return BiasAdd(Named(in.scope.WithName("weighted_sum"), in), sum, WholeValue(in, tables.back()));
}

Output PortableColumns::LinearModel(const ScopeAt& in, const LayerPlan& layer,
                                    const std::vector<PartitionedVariable>& tables) {
  std::vector<Output> parts;
  for (const ConsumerPlan& consumer : layer.consumers) {
    parts.push_back(LinearPart(in, layer, consumer, tables));
    if (!parts.back().valid()) return Output();
  }
  if (!CheckBatchSizes(in, layer, parts)) return Output();
  return LinearTotal(in, parts, tables);
}

PortableColumns::Sequence PortableColumns::Steps(const ScopeAt& in, const ConsumerPlan& consumer,
                                                 const std::vector<PartitionedVariable>& tables) {
  const ColumnSpec& column = *consumer.column;
  if (consumer.kind == Kind::kSequenceNumeric) {
    const auto& spec = *column.As<SequenceNumericSpec>();
    const Raw& raw = Source(in, consumer.source, column);
    if (raw.dense.valid()) {
      Refuse(in, column, "feature '", spec.key, "' must be sparse, got a dense one");
    }
    if (!in.scope.ok()) return {};
    SparseTensor values = raw.sparse;
    const DType dtype = WithoutRef(values.dtype());
    if (!IsFloating(dtype) && !IsInteger(dtype)) {
      Refuse(in, column, "feature '", spec.key, "' must be a number, got ", dtype);
      return {};
    }
    if (spec.normalizer) {
      values.values = spec.normalizer(in.scope.BuiltWhereCalled(), values.values);
    }
    if (!values.values.valid()) {
      Refuse(in, column, "the normalizer must give a tensor, got an invalid Output");
      return {};
    }
    if (values.dtype() != DT_FLOAT) values.values = Cast(in, values.values, DT_FLOAT);
    const Output filler = Const(in, static_cast<float>(spec.default_value));
    const Output dense = SparseTensorToDense(in, values, filler);
    const bool by_step = RankOf(in, values) > 2;
    const Output shape = ShapeOf(in, dense);
    const Output width = Const(in, static_cast<int32_t>(consumer.width));
    const Output second = Element(in, shape, 1);
    const Output steps = by_step ? second : FloorDiv(in, second, width);
    return {Reshape(in, dense, Pack(in, {Element(in, shape, 0), steps, width})),
            SequenceLength(in, values, by_step ? 1 : consumer.width)};
  }
  // Ids [batch, steps] as [batch, steps, 1]: one list for each step.
  IdsAndWeights given = IdsOf(in, consumer);
  if (!in.scope.ok()) return {};
  const auto as_steps = [&](const SparseTensor& values) {
    if (RankOf(in, values) > 2) return values;
    return SparseReshape(in, values,
                         ConcatV2(in, {values.dense_shape, Const<int64_t>(in, {1})}, Const(in, 0)));
  };
  given.ids = as_steps(given.ids);
  if (given.weights.valid()) given.weights = as_steps(given.weights);
  Output numbers;
  if (consumer.kind == Kind::kIndicator) {
    numbers = Indicator(in, given, consumer.width);
  } else {
    const auto& spec = *column.As<EmbeddingSpec>();
    const Scope named = in.scope.WithName(absl::StrCat(column.name, "_weights"));
    numbers = SafeEmbeddingLookupSparse(
        Named(named, in), tables[static_cast<size_t>(consumer.table)], given.ids, given.weights,
        {.combiner = spec.combiner, .max_norm = spec.max_norm, .portable = !own_ops_});
  }
  const Output shape = ShapeOf(in, numbers);
  const Output width = Const(in, static_cast<int32_t>(consumer.width));
  return {Reshape(in, numbers, Pack(in, {Element(in, shape, 0), Element(in, shape, 1), width})),
          SequenceLength(in, given.ids, 1)};
}

PortableColumns::Sequence PortableColumns::SequenceInputLayer(
    const ScopeAt& in, const LayerPlan& layer, const std::vector<PartitionedVariable>& tables) {
  std::vector<Output> steps, lengths;
  for (const ConsumerPlan& consumer : layer.consumers) {
    const Scope scope = in.scope.WithSubScope(consumer.column->name);
    const Sequence sequence = Steps(ScopeAt(scope, in.where), consumer, tables);
    if (!in.scope.ok()) return {};
    steps.push_back(sequence.steps);
    lengths.push_back(sequence.length);
  }
  if (!CheckBatchSizes(in, layer, steps)) return {};
  // The steps of all columns are those of the first.
  std::vector<Operation> checks;
  for (size_t i = 1; i < lengths.size(); ++i) {
    const Output same = ReduceAll(in, Equal(in, lengths[0], lengths[i]), {0});
    const Output rule = Const(
        in, absl::StrCat("SequenceInputLayer: columns must have as many steps in each example, got "
                         "of ",
                         layer.consumers[0].column->name, " and of ",
                         layer.consumers[i].column->name, ":"));
    checks.push_back(Assert(in, same, {rule, lengths[0], lengths[i]}, {.summarize = 10}));
  }
  return {ConcatOf(Named(in.scope.WithName("concat"), in), in, steps, 2),
          WithDependencies(Named(in.scope.WithName("length"), in), checks, lengths[0])};
}

}  // namespace millrace
