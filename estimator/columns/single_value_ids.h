// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_ESTIMATOR_COLUMNS_SINGLE_VALUE_IDS_H_
#define MILLRACE_ESTIMATOR_COLUMNS_SINGLE_VALUE_IDS_H_

// Which ids of a plan ops/columns/column_ids.h can make, and of what: those of dense features with
// one value an example. The one place that knows, for graphs and for rows before them.
//
// Pure functions. Failure: none.

#include <functional>
#include <optional>
#include <string>

#include "core/dtype.h"
#include "estimator/columns/column_plan.h"
#include "estimator/columns/column_spec.h"
#include "ops/columns/column_ids.h"

namespace millrace {

// The dtype of a feature that is there, is dense and has one value an example.
using DTypeOfSingleValue = std::function<std::optional<DType>(const std::string& key)>;

bool HasSingleValueIds(const ColumnPlan& plan, int ids, const DTypeOfSingleValue& dtype_of);

// `column` without what it reads: no feature and no leaves.
IdColumn IdColumnOf(const ColumnSpec& column);

}  // namespace millrace

#endif  // MILLRACE_ESTIMATOR_COLUMNS_SINGLE_VALUE_IDS_H_
