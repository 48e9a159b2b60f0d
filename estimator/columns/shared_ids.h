// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_ESTIMATOR_COLUMNS_SHARED_IDS_H_
#define MILLRACE_ESTIMATOR_COLUMNS_SHARED_IDS_H_

// SharedIds: the ids that several fused layers of one model need, made once, by one node: what a
// wide and a deep layer both look up is hashed once, and so is a text that a column and a cross
// read.
//
//   const SharedIds ids = MakeSharedIds(scope, features, deep, wide);
//   InputLayer(scope, features, deep, {.lowering = ColumnLowering::kFused, .shared_ids = ids});
//   LinearModel(scope, features, wide, {.lowering = ColumnLowering::kFused, .shared_ids = ids});
//
// Values are those without it. A layer that has columns whose ids are not among them, and a layer
// that is not fused, makes its own.
//
// A value. Failure: none of its own; what is wrong with a column is told by its layer.

#include <vector>

#include "estimator/columns/column_spec.h"
#include "estimator/columns/feature_column.h"
#include "estimator/model_tensors.h"
#include "graph/scope.h"

namespace millrace {

struct SharedIds {
  Output ids = {};                          // int64 [columns, batch]; invalid: none are shared
  std::vector<ColumnSpecPtr> columns = {};  // whose ids a row has
};

// For an InputLayer of `dense` columns and a LinearModel of `linear` ones.
SharedIds MakeSharedIds(ScopeAt at, const Features& features, const std::vector<DenseColumn>& dense,
                        const std::vector<FeatureColumn>& linear);

}  // namespace millrace

#endif  // MILLRACE_ESTIMATOR_COLUMNS_SHARED_IDS_H_
