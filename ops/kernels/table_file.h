// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_KERNELS_TABLE_FILE_H_
#define MILLRACE_OPS_KERNELS_TABLE_FILE_H_

// Text files of keys and values, one entry a line: how a table is filled from one.
//
// Lines end with "\n" or "\r\n", the last one also with the file. Memory is taken for what is in
// the file, some thousand lines at a time besides the table itself.
//
// Failure: of the file system; InvalidArgument "Table file '<path>' line <n>: ..." (lines from 1
// on) for an empty line, a missing column, text that is no number, and (without a line) for fewer
// lines than vocab_size; FailedPrecondition with the line for a key that has another value already.
// The table is then as it was. Cancelled.
//
// Threads: reads the file on the thread that calls.

#include <cstdint>
#include <string>

#include "core/cancellation.h"
#include "core/file_system.h"
#include "core/status.h"
#include "ops/kernels/table_storage.h"

namespace millrace {

struct TableFileLayout {
  int64_t key_index = 0, value_index = 0;  // a column, kLineNumber or kWholeLine
  int64_t vocab_size = -1;                 // entries; -1: all lines
  char delimiter = '\t';
};

// A table that is initialised already stays as it is; the file is not read then. `cancellation` may
// be null.
Status FillTableFromFile(FileSystem* fs, const std::string& path, const TableFileLayout& layout,
                         CancellationManager* cancellation, TableStorage* table);

}  // namespace millrace

#endif  // MILLRACE_OPS_KERNELS_TABLE_FILE_H_
