// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SAVER_VARIABLE_ROWS_H_
#define MILLRACE_SAVER_VARIABLE_ROWS_H_

// VariableRows: what SaveV2 writes of variables while training goes on.
//
// Which values a save has:
//   * Variables that are updated as a whole: the value at one moment near the beginning of the
//     save; of variables that one update changes together (a variable and its slots) the same
//     moment, between two updates.
//   * Variables whose rows are updated singly (tables): each row as it is when the save comes by,
//     never torn. Rows of equal number of variables that one update changes together (a table and
//     its slots) are one record: they are as they were at one moment, between two updates. Records
//     are of different moments.
//   * Between records, and between variables that no update changes together, nothing is promised.
// Which variables an update changes together is seen from the updates that were; of variables that
// never had one it is not known, and those with as many rows are taken for records of each other:
// when rows of one of them are updated during the save, all of them are walked that have had no
// update by then. One of these whose first updates come later still, and are of the whole, is not
// of one moment in this save.
//
// What it costs: no copy of a table. Rows are copied at most 256 KiB at a time, or one record,
// under the variable's lock held shared, and of it a few rows (RowRun::kMostLocks) under their
// locks; a piece, of all members, is 4 MiB at most, or one record. The first row update
// after an assignment may meet a save that holds the buffer, which lets go of it before the next
// piece, of any variable; while there is such a buffer pieces have 256 KiB of a member at most.
//
// Thread-safety: thread-compatible; the variables may be used by anyone meanwhile.
// Failure: FailedPrecondition for a variable without value; Aborted, with its name, when one gets
// another shape.

#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "core/status.h"
#include "runtime/variable_storage.h"
#include "saver/save_restore.h"

namespace millrace {

// One value for each variable, which may come several times.
StatusOr<std::vector<ValueToSave>> ValuesOfVariables(
    absl::Span<const std::shared_ptr<VariableStorage>> variables);

}  // namespace millrace

#endif  // MILLRACE_SAVER_VARIABLE_ROWS_H_
