// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_COLUMNS_COLUMN_LAYER_H_
#define MILLRACE_OPS_COLUMNS_COLUMN_LAYER_H_

// _ColumnLayer: what columns make of ids and numbers, in one node.
//
//   output[i, :] = for each part, at its place: its numbers; a one among zeros for its id; the row
//                  of a table for its id; zeros for no id (negative)
//
// Parts that overlap add up: an input layer has its parts side by side, a linear model has the rows
// of all its tables at 0.
//
// A table may stand in several variables, each with some rows that follow each other, on any
// devices (layers/variable.h, MakePartitionedVariable). Ids are those of the whole table
// everywhere: a variable gives nothing for ids whose rows are in another one. So what all of them
// give, added up, is what the whole table gives.
//
// The gradient of a table is IndexedSlices of different rows (_ColumnLayerGrad), never as large as
// the table. As in TensorFlow, an example without an id counts as one of row 0 whose gradient is 0:
// of a table in parts, in the part that has row 0.

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "graph/node_builder.h"

namespace millrace {

struct ColumnLayerPart {
  enum class Kind { kNumbers, kOneHot, kRows };
  Kind kind = Kind::kNumbers;
  int64_t from = 0;    // which of the numbers, each once, in order; which row of ids
  int64_t table = -1;  // of kRows
  int64_t offset = 0;  // where in the output it begins
  int64_t width = 0;   // of its table's rows, for kRows
};

// A float variable of rows, where the node is to stand: a whole table, or some rows of one.
struct ColumnTable {
  Output handle = {};
  // Of a part: it has the rows [begin, end) of a table of `rows`. end < 0: it is the whole table.
  int64_t begin = 0, end = -1, rows = -1;
};

// float [batch, width]. `ids`: int64 [n, batch] (ops/columns/column_ids.h); `numbers`: floats
// [batch, ...]; `tables`: float variables [rows, width], each once.
// InvalidArgument for parts beyond the width, numbers or tables of another width, a variable that
// has other rows than it is said to have, an id that its whole table does not have;
// FailedPrecondition for a table without a value.
Output ColumnLayer(const ScopeAt& at, const Output& ids, absl::Span<const Output> numbers,
                   absl::Span<const ColumnTable> tables, const std::vector<ColumnLayerPart>& parts,
                   int64_t width);

}  // namespace millrace

#endif  // MILLRACE_OPS_COLUMNS_COLUMN_LAYER_H_
