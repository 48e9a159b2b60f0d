// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_ESTIMATOR_COLUMNS_GIVEN_IDS_H_
#define MILLRACE_ESTIMATOR_COLUMNS_GIVEN_IDS_H_

// Given ids: those of a column that were made before the graph (estimator/columns/row_ids.h) and
// come as a feature, whose name says of which column they are: its own name and a fingerprint of
// all that its ids depend on. So ids of a column that only has the same name are never taken.
//
// They are for what looks ids up. A cross needs its columns' own ids, which tell a missing value
// from a word without an id.
//
// Pure functions. Failure: none.

#include <string>

#include "core/shape.h"
#include "estimator/columns/column_spec.h"
#include "estimator/model_tensors.h"
#include "graph/scope.h"

namespace millrace {

// The name of the feature; "" for columns whose ids are not made before a graph: those that read a
// function of the user's, a vocabulary file, or several values.
std::string GivenIdsName(const ColumnSpec& column);

// The feature, int32 or int64, [batch] or [batch, 1]; -1 for nothing. Invalid: it is not given.
Output GivenIds(const Scope& scope, const Features& features, const ColumnSpec& column);

// [batch] or [batch, 1].
bool HasOneValue(const PartialShape& shape);

}  // namespace millrace

#endif  // MILLRACE_ESTIMATOR_COLUMNS_GIVEN_IDS_H_
