// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_COLUMNS_COLUMN_UNIQUE_H_
#define MILLRACE_OPS_COLUMNS_COLUMN_UNIQUE_H_

// _ColumnUnique, _ColumnPick: rows of tables on another task, of which each crosses the wire once.
//
//   unique = ColumnUnique(scope, ids, {3, 0})      // the different ids of two rows of the matrix
//   rows = ColumnLayer(there, unique.ids, ...)     // where the tables are: [most, 8 + 4]
//   picked = ColumnPick(scope, rows, unique.places, {8, 4})    // [batch, 8 + 4]
//
// `picked` is what the layer would give for the ids themselves. The way back is the same: the
// gradients of an id's examples are added up here, in their order (_ColumnPickGrad), and leave as
// one row.

#include <cstdint>
#include <vector>

#include "graph/node_builder.h"

namespace millrace {

struct ColumnUniqueOutputs {
  // int64 [rows, most]: the different ids of each row, in the order in which they first come. A row
  // with fewer than others repeats its first one, to which no place refers.
  Output ids = {};
  // int32 [rows, batch]: where the ids are.
  Output places = {};
};
// Of the rows `from` of `ids`, int64 [n, batch]. No id (negative) is one as others are.
// InvalidArgument for a row that ids do not have.
ColumnUniqueOutputs ColumnUnique(const ScopeAt& at, const Output& ids,
                                 const std::vector<int64_t>& from);

// float [batch, width] of `rows`, float [most, width], and `places`, int32 [columns, batch]: column
// i has `widths[i]` numbers, behind those of the columns before it. InvalidArgument for rows of
// another width and for places outside of [0, most).
Output ColumnPick(const ScopeAt& at, const Output& rows, const Output& places,
                  const std::vector<int64_t>& widths);

}  // namespace millrace

#endif  // MILLRACE_OPS_COLUMNS_COLUMN_UNIQUE_H_
