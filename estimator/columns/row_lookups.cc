// SPDX-License-Identifier: Apache-2.0
#include "estimator/columns/row_lookups.h"

#include <algorithm>

#include "graph/graph.h"

namespace millrace {
namespace {

using Kind = ConsumerPlan::Kind;

ColumnTable WithItsRows(const Variable& variable) {
  const VariableSlice& slice = variable.slice;
  if (slice.full_name.empty() || slice.var_shape[0] == slice.full_shape[0]) {
    return {.handle = variable.handle};
  }
  return {.handle = variable.handle,
          .begin = slice.var_offset[0],
          .end = slice.var_offset[0] + slice.var_shape[0],
          .rows = slice.full_shape[0]};
}

}  // namespace

int64_t ColumnTables::PlaceOf(const Variable& variable) {
  const auto found = std::find_if(list_.begin(), list_.end(), [&](const ColumnTable& table) {
    return table.handle == variable.handle;
  });
  const auto place = found - list_.begin();
  if (found == list_.end()) list_.push_back(WithItsRows(variable));
  return place;
}

const std::string& DeviceOf(const Variable& variable) {
  return variable.handle.node()->requested_device();
}

int TableOf(const ConsumerPlan& consumer) {
  return consumer.kind == Kind::kEmbedding ? consumer.table
         : consumer.kind == Kind::kIds     ? consumer.weights
                                           : -1;
}

std::vector<RowLookup> RowLookupsOf(const LayerPlan& layer,
                                    const std::vector<const ConsumerPlan*>& consumers,
                                    const std::vector<PartitionedVariable>& tables,
                                    const std::function<int64_t(int ids)>& row_of) {
  const bool adds_up = layer.kind == LayerPlan::Kind::kLinear;
  std::vector<RowLookup> lookups;
  for (const ConsumerPlan* consumer : consumers) {
    const int table = TableOf(*consumer);
    if (table < 0) continue;
    const int64_t width = adds_up ? layer.width : consumer->width;
    for (const Variable& variable : tables[static_cast<size_t>(table)].parts) {
      const std::string& device = DeviceOf(variable);
      auto lookup = std::find_if(lookups.begin(), lookups.end(),
                                 [&](const RowLookup& one) { return one.device == device; });
      if (lookup == lookups.end()) {
        lookup = lookups.insert(lookup, RowLookup{.device = device});
        if (adds_up) lookup->width = width;
      }
      // The parts of one table that stand together are at one place, of which each has some rows.
      if (lookup->consumers.empty() || lookup->consumers.back() != consumer) {
        lookup->consumers.push_back(consumer);
        if (!adds_up) lookup->width += width;
      }
      lookup->parts.push_back({.kind = ColumnLayerPart::Kind::kRows,
                               .from = row_of(consumer->ids),
                               .table = lookup->tables.PlaceOf(variable),
                               .offset = lookup->width - width,
                               .width = width});
    }
  }
  return lookups;
}

}  // namespace millrace
