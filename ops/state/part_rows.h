// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_STATE_PART_ROWS_H_
#define MILLRACE_OPS_STATE_PART_ROWS_H_

// _PartRows, _PartLists, _RowSums: look-ups in tables whose rows are in several variables (parts)
// on other tasks, in few nodes and few bytes.
//
//   r = PartRows(scope, ids, 2, {3, 5})    // ids 0 to 2 are in part 0, 3 and 4 in part 1
//   found[i] = ResourceGather(there[i], part[i], r.rows[i], DT_FLOAT)
//   ParallelDynamicStitch(scope, r.places, found)                  // as the whole table gives
//
//   l = PartLists(scope, ids, examples, 2, {3, 5}, 4 * width)
//   sums[i] = RowSums(there[i], part[i], l.rows[i], l.sums[i], DT_FLOAT)
//   SegmentSum(scope, GatherV2(scope, Concat(sums), l.picks, 0), l.examples)  // each example's sum
//
// PartLists decides for each part, in each step, what sends fewer bytes there and back: each
// different row once, to be added up here, or, made next to the part, one sum for each example that
// has ids in it. Many ids an example make it sums; ids that repeat, or one id an example, rows.
//
// The ids of a part that are different in the list are different in r.rows (ops/array/distinct.h).
// The gradient of a table is IndexedSlices of different rows, added up next to it (_RowSumsGrad).
//
// For look-ups (layers/part_lookup.h): not among the builders of ops/ops.h.
//
// Failure: InvalidArgument for an id without a row: "ids[i] = v is not in [0, n)".

#include <cstdint>
#include <vector>

#include "graph/node_builder.h"

namespace millrace {

struct PartRowsOutputs {
  std::vector<Output> rows;    // of each part: its ids as rows of the part
  std::vector<Output> places;  // and where they are in the list: int32
};
// `ids`: a vector, int32 or int64. `ends`: behind the last row of each part, in the whole table;
// empty: the parts take turns (part id % num_parts, row id / num_parts).
inline PartRowsOutputs PartRows(const ScopeAt& at, const Output& ids, int num_parts,
                                const std::vector<int64_t>& ends) {
  const BuiltNode node = BuildOp(at, "_PartRows", {ids}, "N", int64_t{num_parts}, "ends", ends);
  return {node.outputs(0, num_parts), node.outputs(num_parts, num_parts)};
}

struct PartListsOutputs {
  std::vector<Output> rows;  // of each part, as above
  std::vector<Output> sums;  // and the sum of the part that each row goes into: int32
  Output picks;              // int32: of the sums of all parts, one behind the other,
  Output examples;           // the one to be added to this example; sorted where the list's are
};
// `examples`: that of each id; int32 or int64. `row_bytes`: of a row of the table.
inline PartListsOutputs PartLists(const ScopeAt& at, const Output& ids, const Output& examples,
                                  const std::vector<int64_t>& ends, int64_t row_bytes) {
  const auto n = static_cast<int>(ends.size());
  const BuiltNode node = BuildOp(at, "_PartLists", {ids, examples}, "N", int64_t{n}, "ends", ends,
                                 "row_bytes", row_bytes);
  return {node.outputs(0, n), node.outputs(n, n), node.output(2 * n), node.output(2 * n + 1)};
}

// [n, row...]: sum s is that of the rows whose element of `sums` is s, in their order. Every number
// below n is in `sums`. float or double. FailedPrecondition for a variable without a value.
inline Output RowSums(const ScopeAt& at, const Output& table, const Output& rows,
                      const Output& sums, DType dtype) {
  return BuildOp(at, "_RowSums", {table, rows, sums}, "dtype", dtype);
}

}  // namespace millrace

#endif  // MILLRACE_OPS_STATE_PART_ROWS_H_
