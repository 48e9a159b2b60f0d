// SPDX-License-Identifier: Apache-2.0
#include "estimator/columns/fused_lowering.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "core/dtype.h"
#include "core/shape.h"
#include "estimator/columns/column_spec.h"
#include "graph/graph.h"
#include "ops/array/constant.h"
#include "ops/array/reshape.h"
#include "ops/columns/column_ids.h"
#include "ops/columns/column_layer.h"
#include "ops/math/cast.h"

namespace millrace {
namespace {

using Kind = ConsumerPlan::Kind;

ScopeAt Named(const Scope& scope, const ScopeAt& in) { return ScopeAt(scope, in.where); }

// [batch] or [batch, 1].
bool HasOneValue(const PartialShape& shape) {
  return shape.has_rank() && (shape.rank() == 1 || (shape.rank() == 2 && shape.dim(1) == 1));
}

// The table that a consumer looks its ids up in, or -1.
int TableOf(const ConsumerPlan& consumer) {
  return consumer.kind == Kind::kEmbedding ? consumer.table
         : consumer.kind == Kind::kIds     ? consumer.weights
                                           : -1;
}

// The row of the shared ids that are these, or -1.
int64_t SharedRow(const SharedIds& shared, const ColumnSpecPtr& column) {
  const auto found =
      std::find_if(shared.columns.begin(), shared.columns.end(),
                   [&](const ColumnSpecPtr& other) { return GiveTheSame(other, column); });
  return found == shared.columns.end() ? -1 : found - shared.columns.begin();
}

// The tables of one node, each once.
class Tables {
 public:
  int64_t PlaceOf(const PartitionedVariable& table) {
    const Output& handle = table.parts[0].handle;
    const auto found = std::find(handles_.begin(), handles_.end(), handle);
    const auto place = found - handles_.begin();
    if (found == handles_.end()) handles_.push_back(handle);
    return place;
  }
  const std::vector<Output>& handles() const { return handles_; }

 private:
  std::vector<Output> handles_;
};

}  // namespace

FusedColumns::FusedColumns(const ColumnPlan& plan, const Features& features,
                           const SharedIds& shared)
    : plan_(plan),
      features_(features),
      shared_(shared),
      portable_(plan, features),
      of_source_(plan.sources.size(), -1),
      row_of_(plan.ids.size(), -1) {}

// --- What can be taken ---------------------------------------------------------------------------

bool FusedColumns::TakesFeature(const Scope& scope, int source, bool text, bool key) const {
  const auto found = features_.map().find(plan_.sources[static_cast<size_t>(source)].key);
  if (found == features_.map().end() || !found->second.valid()) return false;
  const Output& x = found->second;
  const DType dtype = x.dtype();
  const bool fits =
      (text && dtype == DT_STRING) || (key && (dtype == DT_INT32 || dtype == DT_INT64));
  return fits && HasOneValue(scope.shape(x));
}

bool FusedColumns::TakesIds(const Scope& scope, int ids) const {
  const IdsPlan& plan = plan_.ids[static_cast<size_t>(ids)];
  const ColumnSpec& column = *plan.column;
  if (column.As<BucketizedSpec>() != nullptr) {
    const NumericPlan& numeric = plan_.numerics[static_cast<size_t>(plan.numeric)];
    const auto feature =
        features_.map().find(plan_.sources[static_cast<size_t>(numeric.source)].key);
    return numeric.elements == 1 && feature != features_.map().end() && feature->second.valid() &&
           HasOneValue(scope.shape(feature->second));
  }
  if (const auto* cross = column.As<CrossedSpec>()) {
    return !cross->tf_compat_cross_order &&
           std::all_of(plan.leaves.begin(), plan.leaves.end(), [&](const IdsPlan::Leaf& leaf) {
             return leaf.ids >= 0 ? TakesIds(scope, leaf.ids)
                                  : TakesFeature(scope, leaf.source, true, true);
           });
  }
  if (const auto* hashed = column.As<HashBucketSpec>()) {
    const bool text = hashed->dtype == DT_STRING;
    return TakesFeature(scope, plan.source, text, !text);
  }
  if (const auto* vocabulary = column.As<VocabularySpec>()) {
    const bool text = vocabulary->dtype == DT_STRING;
    return vocabulary->file.empty() && TakesFeature(scope, plan.source, text, !text);
  }
  return column.As<IdentitySpec>() != nullptr && TakesFeature(scope, plan.source, false, true);
}

bool FusedColumns::TakesTable(const PartitionedVariable& table) {
  if (table.parts.size() != 1) return false;
  const Output& handle = table.parts[0].handle;
  return handle.dtype() == DT_RESOURCE && table.parts[0].dtype == DT_FLOAT &&
         handle.node()->requested_device().empty();
}

bool FusedColumns::Takes(const Scope& scope, const ConsumerPlan& consumer,
                         const std::vector<PartitionedVariable>& tables) const {
  if (consumer.kind == Kind::kNumeric || consumer.kind == Kind::kSequenceNumeric ||
      consumer.id_weights >= 0 || !TakesIds(scope, consumer.ids)) {
    return false;
  }
  const auto* embedding = consumer.column->As<EmbeddingSpec>();
  if (embedding != nullptr && embedding->max_norm) return false;
  const int table = TableOf(consumer);
  return table < 0 || TakesTable(tables[static_cast<size_t>(table)]);
}

// --- Ids -----------------------------------------------------------------------------------------

int64_t FusedColumns::FeatureOf(int source) {
  int64_t& place = of_source_[static_cast<size_t>(source)];
  if (place < 0) {
    place = static_cast<int64_t>(inputs_.size());
    inputs_.push_back(features_.map().at(plan_.sources[static_cast<size_t>(source)].key));
  }
  return place;
}

int64_t FusedColumns::RowOf(const ScopeAt& in, int ids) {
  const IdsPlan& plan = plan_.ids[static_cast<size_t>(ids)];
  if (takes_shared_) return SharedRow(shared_, plan.column);
  int64_t& row = row_of_[static_cast<size_t>(ids)];
  if (row >= 0) return row;
  const ColumnSpec& spec = *plan.column;
  IdColumn column = {.name = spec.name};
  if (const auto* buckets = spec.As<BucketizedSpec>()) {
    const Scope scope = in.scope.WithSubScope(spec.name);
    column.kind = IdColumn::Kind::kBuckets;
    column.boundaries = buckets->boundaries;
    column.feature = static_cast<int64_t>(inputs_.size());
    const Output x = Number(Named(scope, in), plan.numeric);
    // A normalizer may have given it another shape.
    inputs_.push_back(HasOneValue(scope.shape(x))
                          ? x
                          : Reshape(Named(scope, in), x, Const<int32_t>(scope, {-1})));
  } else if (const auto* cross = spec.As<CrossedSpec>()) {
    column.kind = IdColumn::Kind::kCross;
    column.size = cross->num_buckets;
    column.hash_key = cross->hash_key;
    for (const IdsPlan::Leaf& leaf : plan.leaves) {
      if (leaf.ids >= 0) {
        column.leaves.push_back({.column = RowOf(in, leaf.ids)});
      } else {
        column.leaves.push_back({.feature = FeatureOf(leaf.source)});
      }
    }
  } else {
    column.feature = FeatureOf(plan.source);
    if (const auto* hashed = spec.As<HashBucketSpec>()) {
      column.kind = IdColumn::Kind::kHash;
      column.size = hashed->num_buckets;
    } else if (const auto* vocabulary = spec.As<VocabularySpec>()) {
      column.kind = IdColumn::Kind::kWords;
      column.vocabulary = vocabulary->words;
      column.num_oov_buckets = vocabulary->num_oov_buckets;
      column.default_value = vocabulary->default_value;
    } else {
      const auto& identity = *spec.As<IdentitySpec>();
      column.kind = IdColumn::Kind::kIdentity;
      column.size = identity.num_buckets;
      column.default_value = identity.default_value.value_or(-1);
    }
  }
  columns_.push_back(std::move(column));
  return row = static_cast<int64_t>(columns_.size()) - 1;
}

bool FusedColumns::AreShared(const std::vector<const ConsumerPlan*>& consumers) const {
  return shared_.ids.valid() &&
         std::all_of(consumers.begin(), consumers.end(), [&](const ConsumerPlan* consumer) {
           return SharedRow(shared_, plan_.ids[static_cast<size_t>(consumer->ids)].column) >= 0;
         });
}

Output FusedColumns::IdsNode(const ScopeAt& in) const {
  return takes_shared_ ? shared_.ids
                       : ColumnIds(Named(in.scope.WithName("ids"), in), inputs_, columns_);
}

SharedIds FusedColumns::Ids(const ScopeAt& in) {
  SharedIds made;
  for (const LayerPlan& layer : plan_.layers) {
    for (const ConsumerPlan& consumer : layer.consumers) {
      if (consumer.ids >= 0 && TakesIds(in.scope, consumer.ids)) RowOf(in, consumer.ids);
    }
  }
  if (columns_.empty()) return made;
  made.columns.resize(columns_.size());
  for (size_t i = 0; i < row_of_.size(); ++i) {
    if (row_of_[i] >= 0) made.columns[static_cast<size_t>(row_of_[i])] = plan_.ids[i].column;
  }
  made.ids = IdsNode(in);
  return made;
}

// --- Numbers -------------------------------------------------------------------------------------

Output FusedColumns::Number(const ScopeAt& in, int numeric) {
  const NumericPlan& plan = plan_.numerics[static_cast<size_t>(numeric)];
  const auto feature = features_.map().find(plan_.sources[static_cast<size_t>(plan.source)].key);
  const bool plain = plan.elements == 1 && !plan.column->As<NumericSpec>()->normalizer &&
                     feature != features_.map().end() && feature->second.valid() &&
                     HasOneValue(in.scope.shape(feature->second));
  if (!plain) return portable_.Numeric(in, numeric);
  const Output& x = feature->second;
  const DType dtype = WithoutRef(x.dtype());
  if (dtype == DT_FLOAT) return x;
  // What is no number has its message there.
  if (!IsFloating(dtype) && !IsInteger(dtype)) return portable_.Numeric(in, numeric);
  return Cast(in, x, DT_FLOAT);
}

// --- Layers --------------------------------------------------------------------------------------

Output FusedColumns::InputLayer(const ScopeAt& in, const LayerPlan& layer,
                                const std::vector<PartitionedVariable>& tables) {
  const auto takes = [&](const ConsumerPlan& consumer) {
    return Takes(in.scope, consumer, tables);
  };
  std::vector<const ConsumerPlan*> taken;
  for (const ConsumerPlan& consumer : layer.consumers) {
    if (takes(consumer)) taken.push_back(&consumer);
  }
  if (taken.empty()) return portable_.InputLayer(in, layer, tables);
  takes_shared_ = AreShared(taken);
  std::vector<ColumnLayerPart> parts;
  std::vector<Output> numbers;
  Tables handles;
  for (const ConsumerPlan& consumer : layer.consumers) {
    ColumnLayerPart part = {.offset = consumer.offset, .width = consumer.width};
    if (takes(consumer)) {
      const int table = TableOf(consumer);
      part.kind = table < 0 ? ColumnLayerPart::Kind::kOneHot : ColumnLayerPart::Kind::kRows;
      part.from = RowOf(in, consumer.ids);
      if (table >= 0) part.table = handles.PlaceOf(tables[static_cast<size_t>(table)]);
    } else {
      part.from = static_cast<int64_t>(numbers.size());
      const Scope scope = in.scope.WithSubScope(consumer.column->name);
      numbers.push_back(consumer.kind == Kind::kNumeric
                            ? Number(Named(scope, in), consumer.numeric)
                            : portable_.InputPart(in, consumer, tables));
      if (!numbers.back().valid()) return Output();
    }
    parts.push_back(part);
  }
  return ColumnLayer(Named(in.scope.WithName("concat"), in), IdsNode(in), numbers,
                     handles.handles(), parts, layer.width);
}

Output FusedColumns::LinearModel(const ScopeAt& in, const LayerPlan& layer,
                                 const std::vector<PartitionedVariable>& tables) {
  const auto takes = [&](const ConsumerPlan& consumer) {
    return consumer.kind == Kind::kIds && Takes(in.scope, consumer, tables);
  };
  std::vector<const ConsumerPlan*> taken;
  for (const ConsumerPlan& consumer : layer.consumers) {
    if (takes(consumer)) taken.push_back(&consumer);
  }
  takes_shared_ = AreShared(taken);
  std::vector<ColumnLayerPart> parts;
  std::vector<Output> sums;
  Tables handles;
  for (const ConsumerPlan& consumer : layer.consumers) {
    if (takes(consumer)) {
      const PartitionedVariable& weights = tables[static_cast<size_t>(consumer.weights)];
      parts.push_back({.kind = ColumnLayerPart::Kind::kRows,
                       .from = RowOf(in, consumer.ids),
                       .table = handles.PlaceOf(weights),
                       .width = layer.width});
      continue;
    }
    sums.push_back(portable_.LinearPart(in, layer, consumer, tables));
    if (!sums.back().valid()) return Output();
  }
  if (!parts.empty()) {
    const Output sum = ColumnLayer(Named(in.scope.WithName("weighted_sums"), in), IdsNode(in), {},
                                   handles.handles(), parts, layer.width);
    sums.insert(sums.begin(), sum);
  }
  return portable_.LinearTotal(in, sums, tables);
}

}  // namespace millrace
