// SPDX-License-Identifier: Apache-2.0
#include "estimator/columns/fused_lowering.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "core/dtype.h"
#include "core/shape.h"
#include "estimator/columns/column_spec.h"
#include "estimator/columns/given_ids.h"
#include "estimator/columns/single_value_ids.h"
#include "layers/crosses_tasks.h"
#include "ops/array/concat.h"
#include "ops/array/constant.h"
#include "ops/array/reshape.h"
#include "ops/columns/column_ids.h"
#include "ops/columns/column_layer.h"
#include "ops/columns/column_unique.h"
#include "ops/math/cast.h"

namespace millrace {
namespace {

using Kind = ConsumerPlan::Kind;

// The numbers of an example, in the tables of one device, from which on it is worth finding equal
// ids before their rows cross to another task: 128 bytes each way. Below that three nodes more cost
// what the rows cost.
constexpr int64_t kMinWidthOfUnique = 32;

ScopeAt Named(const Scope& scope, const ScopeAt& in) { return ScopeAt(scope, in.where); }

// The row of the shared ids that are these, or -1.
int64_t SharedRow(const SharedIds& shared, const ColumnSpecPtr& column) {
  const auto found =
      std::find_if(shared.columns.begin(), shared.columns.end(),
                   [&](const ColumnSpecPtr& other) { return GiveTheSame(other, column); });
  return found == shared.columns.end() ? -1 : found - shared.columns.begin();
}

}  // namespace

FusedColumns::FusedColumns(const ColumnPlan& plan, const Features& features,
                           const SharedIds& shared)
    : plan_(plan),
      features_(features),
      shared_(shared),
      portable_(plan, features, /*own_ops=*/true),
      of_source_(plan.sources.size(), -1),
      row_of_(plan.ids.size(), -1),
      given_row_of_(plan.ids.size(), -1) {}

// --- What can be taken ---------------------------------------------------------------------------

bool FusedColumns::TakesIds(const Scope& scope, int ids) const {
  const ColumnSpec& column = *plan_.ids[static_cast<size_t>(ids)].column;
  if (GivenIds(scope, features_, column).valid()) return true;
  return HasSingleValueIds(plan_, ids, [&](const std::string& key) -> std::optional<DType> {
    const auto found = features_.map().find(key);
    if (found == features_.map().end() || !found->second.valid()) return std::nullopt;
    if (!HasOneValue(scope.shape(found->second))) return std::nullopt;
    return found->second.dtype();
  });
}

bool FusedColumns::TakesTable(const PartitionedVariable& table) {
  // A node that looks up parts takes them for rows.
  return CutDimension(table.parts) == 0 &&
         std::all_of(table.parts.begin(), table.parts.end(), [](const Variable& part) {
           return part.handle.dtype() == DT_RESOURCE && part.dtype == DT_FLOAT;
         });
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
  const Output given = GivenIds(in.scope, features_, *plan.column);
  if (!given.valid()) return OwnRowOf(in, ids);
  int64_t& row = given_row_of_[static_cast<size_t>(ids)];
  if (row >= 0) return row;
  inputs_.push_back(given);
  columns_.push_back({.kind = IdColumn::Kind::kIdentity,
                      .name = plan.column->name,
                      .feature = static_cast<int64_t>(inputs_.size()) - 1,
                      .size = plan.num_ids});
  return row = static_cast<int64_t>(columns_.size()) - 1;
}

int64_t FusedColumns::OwnRowOf(const ScopeAt& in, int ids) {
  const IdsPlan& plan = plan_.ids[static_cast<size_t>(ids)];
  int64_t& row = row_of_[static_cast<size_t>(ids)];
  if (row >= 0) return row;
  const ColumnSpec& spec = *plan.column;
  IdColumn column = IdColumnOf(spec);
  if (plan.numeric >= 0) {
    const Scope scope = in.scope.WithSubScope(spec.name);
    column.feature = static_cast<int64_t>(inputs_.size());
    const Output x = Number(Named(scope, in), plan.numeric);
    // A normalizer may have given it another shape.
    inputs_.push_back(HasOneValue(scope.shape(x))
                          ? x
                          : Reshape(Named(scope, in), x, Const<int32_t>(scope, {-1})));
  }
  for (const IdsPlan::Leaf& leaf : plan.leaves) {
    if (leaf.ids >= 0) {
      column.leaves.push_back({.column = OwnRowOf(in, leaf.ids)});
    } else {
      column.leaves.push_back({.feature = FeatureOf(leaf.source)});
    }
  }
  if (plan.source >= 0) column.feature = FeatureOf(plan.source);
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
    for (const int64_t row : {row_of_[i], given_row_of_[i]}) {
      if (row >= 0) made.columns[static_cast<size_t>(row)] = plan_.ids[i].column;
    }
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
  const std::vector<const ConsumerPlan*> taken = TakenOf(in.scope, layer, tables);
  if (taken.empty()) return portable_.InputLayer(in, layer, tables);
  const Output ids = IdsOf(in, taken);
  // Rows of tables on other devices are looked up there, and come as numbers: of a table in parts
  // from each device that has some, to be added up here.
  std::map<const ConsumerPlan*, std::vector<Output>> come;
  for (const RowLookup& lookup : LookupsOf(in, layer, taken, tables)) {
    if (lookup.device.empty()) continue;
    const Output rows = RowsFrom(in, ids, lookup);
    if (lookup.consumers.size() == 1) {
      come[lookup.consumers[0]].push_back(rows);
      continue;
    }
    std::vector<int64_t> widths;
    for (const ConsumerPlan* consumer : lookup.consumers) widths.push_back(consumer->width);
    const Scope scope = in.scope.WithSubScope("split");
    const std::vector<Output> each =
        SplitV(Named(scope, in), rows, ConstVector<int64_t>(scope, widths),
               Const(scope, int32_t{1}), static_cast<int>(widths.size()));
    if (each.size() != widths.size()) return Output();
    for (size_t i = 0; i < each.size(); ++i) come[lookup.consumers[i]].push_back(each[i]);
  }
  std::vector<ColumnLayerPart> parts;
  std::vector<Output> numbers;
  ColumnTables here;
  const auto add_numbers = [&](const ConsumerPlan& consumer, const Output& x) {
    parts.push_back({.from = static_cast<int64_t>(numbers.size()),
                     .offset = consumer.offset,
                     .width = consumer.width});
    numbers.push_back(x);
    return x.valid();
  };
  for (const ConsumerPlan& consumer : layer.consumers) {
    if (std::find(taken.begin(), taken.end(), &consumer) == taken.end()) {
      const Scope scope = in.scope.WithSubScope(consumer.column->name);
      const bool is_number = consumer.kind == Kind::kNumeric;
      const Output x = is_number ? Number(Named(scope, in), consumer.numeric)
                                 : portable_.InputPart(in, consumer, tables);
      if (!add_numbers(consumer, x)) return Output();
      continue;
    }
    ColumnLayerPart part = {.kind = ColumnLayerPart::Kind::kOneHot,
                            .from = RowOf(in, consumer.ids),
                            .offset = consumer.offset,
                            .width = consumer.width};
    const int table = TableOf(consumer);
    if (table < 0) {
      parts.push_back(part);
      continue;
    }
    for (const Output& rows : come[&consumer]) {
      if (!add_numbers(consumer, rows)) return Output();
    }
    part.kind = ColumnLayerPart::Kind::kRows;
    for (const Variable& variable : tables[static_cast<size_t>(table)].parts) {
      if (!DeviceOf(variable).empty()) continue;
      part.table = here.PlaceOf(variable);
      parts.push_back(part);
    }
  }
  return ColumnLayer(Named(in.scope.WithName("concat"), in), ids, numbers, here.list(), parts,
                     layer.width);
}

Output FusedColumns::RowsFrom(const ScopeAt& in, const Output& ids, const RowLookup& lookup) {
  const Scope there = in.scope.WithDevice(lookup.device).WithName("rows");
  if (!ids.valid() || lookup.width < kMinWidthOfUnique || !CrossesTasks(lookup.device, ids)) {
    return ColumnLayer(Named(there, in), ids, {}, lookup.tables.list(), lookup.parts, lookup.width);
  }
  // The different ids have a row of their own for each consumer, whose numbers stand side by side.
  std::vector<int64_t> from, widths;
  std::map<int64_t, int64_t> row_at;  // by offset
  int64_t offset = 0;
  for (const ConsumerPlan* consumer : lookup.consumers) {
    row_at[offset] = static_cast<int64_t>(from.size());
    from.push_back(RowOf(in, consumer->ids));
    widths.push_back(consumer->width);
    offset += consumer->width;
  }
  std::vector<ColumnLayerPart> parts = lookup.parts;
  for (ColumnLayerPart& part : parts) part.from = row_at[part.offset];
  const ColumnUniqueOutputs unique =
      ColumnUnique(Named(in.scope.WithName("unique"), in), ids, from);
  const Output rows =
      ColumnLayer(Named(there, in), unique.ids, {}, lookup.tables.list(), parts, lookup.width);
  return ColumnPick(Named(in.scope.WithName("picked"), in), rows, unique.places, widths);
}

Output FusedColumns::LinearModel(const ScopeAt& in, const LayerPlan& layer,
                                 const std::vector<PartitionedVariable>& tables) {
  std::vector<const ConsumerPlan*> taken = TakenOf(in.scope, layer, tables);
  taken.erase(std::remove_if(taken.begin(), taken.end(),
                             [](const ConsumerPlan* c) { return c->kind != Kind::kIds; }),
              taken.end());
  std::vector<Output> sums;
  if (!taken.empty()) {
    const Output ids = IdsOf(in, taken);
    for (const RowLookup& lookup : LookupsOf(in, layer, taken, tables)) {
      const Scope there = lookup.device.empty() ? in.scope : in.scope.WithDevice(lookup.device);
      sums.push_back(ColumnLayer(Named(there.WithName("weighted_sums"), in), ids, {},
                                 lookup.tables.list(), lookup.parts, lookup.width));
    }
  }
  for (const ConsumerPlan& consumer : layer.consumers) {
    if (std::find(taken.begin(), taken.end(), &consumer) != taken.end()) continue;
    sums.push_back(portable_.LinearPart(in, layer, consumer, tables));
    if (!sums.back().valid()) return Output();
  }
  return portable_.LinearTotal(in, sums, tables);
}

std::vector<const ConsumerPlan*> FusedColumns::TakenOf(
    const Scope& scope, const LayerPlan& layer,
    const std::vector<PartitionedVariable>& tables) const {
  std::vector<const ConsumerPlan*> taken;
  for (const ConsumerPlan& consumer : layer.consumers) {
    if (Takes(scope, consumer, tables)) taken.push_back(&consumer);
  }
  return taken;
}

Output FusedColumns::IdsOf(const ScopeAt& in, const std::vector<const ConsumerPlan*>& taken) {
  takes_shared_ = AreShared(taken);
  for (const ConsumerPlan* consumer : taken) RowOf(in, consumer->ids);
  return IdsNode(in);
}

std::vector<RowLookup> FusedColumns::LookupsOf(const ScopeAt& in, const LayerPlan& layer,
                                               const std::vector<const ConsumerPlan*>& taken,
                                               const std::vector<PartitionedVariable>& tables) {
  return RowLookupsOf(layer, taken, tables, [&](int ids) { return RowOf(in, ids); });
}

}  // namespace millrace
