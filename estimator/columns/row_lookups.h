// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_ESTIMATOR_COLUMNS_ROW_LOOKUPS_H_
#define MILLRACE_ESTIMATOR_COLUMNS_ROW_LOOKUPS_H_

// RowLookups: the rows of a layer's tables, by the device that looks them up.
//
// A variable is looked up where it stands. A table in parts is looked up by each device that has
// some of its parts: each gives the rows that it has and zeros for the others (_ColumnLayer), and
// the sum of what all devices give is what the whole table would give. So a layer has one look-up
// for each device, whatever number of tables and parts is there.
//
// Which rows a part has is what the variable's slice says (layers/variable.h), which also decides
// what checkpoints hold.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "estimator/columns/column_plan.h"
#include "layers/variable.h"
#include "ops/columns/column_layer.h"

namespace millrace {

// The variables of one node, each once.
class ColumnTables {
 public:
  int64_t PlaceOf(const Variable& variable);
  const std::vector<ColumnTable>& list() const { return list_; }

 private:
  std::vector<ColumnTable> list_;
};

struct RowLookup {
  std::string device = {};  // as its variables ask for; "": where the layer is
  std::vector<const ConsumerPlan*> consumers = {};  // each once
  // Rows, one or more parts a consumer. An input layer has its consumers side by side; a linear
  // model adds them up at 0.
  std::vector<ColumnLayerPart> parts = {};
  ColumnTables tables = {};
  int64_t width = 0;
};

// The device that a variable asks for.
const std::string& DeviceOf(const Variable& variable);

// The table that a consumer looks its ids up in, of the layer's tables, or -1.
int TableOf(const ConsumerPlan& consumer);

// One for each device that has variables of the consumers' tables. `row_of`: the row of the matrix
// of ids that has these ids of the plan. Look-ups refer to the consumers, which belong to `layer`.
std::vector<RowLookup> RowLookupsOf(const LayerPlan& layer,
                                    const std::vector<const ConsumerPlan*>& consumers,
                                    const std::vector<PartitionedVariable>& tables,
                                    const std::function<int64_t(int ids)>& row_of);

}  // namespace millrace

#endif  // MILLRACE_ESTIMATOR_COLUMNS_ROW_LOOKUPS_H_
