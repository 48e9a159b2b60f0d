// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_ESTIMATOR_COLUMNS_COLUMN_VARIABLES_H_
#define MILLRACE_ESTIMATOR_COLUMNS_COLUMN_VARIABLES_H_

// The variables of a planned layer: the one place that makes them, whatever lowering uses them, so
// that names, parts, order of creation (and with it the place on a cluster) and initial values are
// the same in every graph of a model.

#include <string>
#include <vector>

#include "estimator/columns/column_plan.h"
#include "graph/scope.h"
#include "layers/partitioner.h"
#include "layers/variable.h"

namespace millrace {

struct ColumnVariablesOptions {
  std::string variable_scope;  // the full name before those of the tables
  Partitioner partitioner = {};
  bool trainable = true;
};

// One variable for each table of the layer: result[i] is tables[i]. Empty after an error in the
// scope: a variable of that name exists, a checkpoint to begin with cannot be read or has another
// shape or dtype.
std::vector<PartitionedVariable> MakeColumnVariables(ScopeAt at, const LayerPlan& layer,
                                                     const ColumnVariablesOptions& options);

}  // namespace millrace

#endif  // MILLRACE_ESTIMATOR_COLUMNS_COLUMN_VARIABLES_H_
