// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_COLUMNS_ZERO_FRACTION_H_
#define MILLRACE_OPS_COLUMNS_ZERO_FRACTION_H_

// _ZeroFraction: how many of the numbers in tables are 0, of all: a summary of linear models, whose
// tables are far larger than a step. They are passed over once, and nothing of their size is made.

#include "absl/types/span.h"
#include "graph/node_builder.h"

namespace millrace {

// float scalar, of handles of one or more float variables of any shape, where the node is to stand;
// NaN when they have no elements. FailedPrecondition for a variable without a value.
Output ZeroFraction(const ScopeAt& at, absl::Span<const Output> variables);

}  // namespace millrace

#endif  // MILLRACE_OPS_COLUMNS_ZERO_FRACTION_H_
