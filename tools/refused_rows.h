// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TOOLS_REFUSED_ROWS_H_
#define MILLRACE_TOOLS_REFUSED_ROWS_H_

// RefusedRows: what becomes of bad rows in a program that reads rows. The first one ends it; with
// --ignore_errors bad rows are left out and counted, up to --max_errors of them, and written to
// --refused_rows as they are, behind the files' header.
//
//   MR_ASSIGN_OR_RETURN(RefusedRows refused, RefusedRows::Make("data_split", flags, *rows));
//   while (true) {
//     MR_ASSIGN_OR_RETURN(const bool more, refused.Next(rows.get()));
//     if (!more) break;
//     const Status used = Use(*rows);
//     MR_RETURN_IF_ERROR(used.ok() ? refused.Keep() : refused.Refuse(*rows, used));
//   }
//   MR_RETURN_IF_ERROR(refused.Finish(*rows));
//
// stderr has the first error at once and the number at the end. The file of refused rows appears at
// the end, also when there were too many.
//
// Thread-safety: thread-compatible. Failure: the row's error, or InvalidArgument for too many of
// them, or no good row; the file system's.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "core/program.h"
#include "core/status.h"
#include "data/dropped_rows.h"
#include "data/new_file.h"
#include "data/row_files.h"
#include "tools/command_line.h"

namespace millrace {

// `own`, then --ignore_errors, --max_errors and --refused_rows.
std::vector<FlagSpec> WithRefusedRowsFlags(std::vector<FlagSpec> own);

class RefusedRows {
 public:
  // `program` begins the lines on stderr. --refused_rows must name none of the files of `rows`, nor
  // of `outputs`.
  static StatusOr<RefusedRows> Make(const std::string& program, const CommandLine& flags,
                                    const data::RowFiles& rows,
                                    absl::Span<const std::string> outputs);

  // The next row whose fields can be told apart.
  StatusOr<bool> Next(data::RowFiles* rows);
  // Of the row at hand: it was used, or it is bad for a reason that begins with its place.
  Status Keep() { return Ended(dropped_.Keep()); }
  Status Refuse(const data::RowFiles& rows, const Status& error);
  // Behind the last row, before the program's own files get their names.
  Status Finish(const data::RowFiles& rows);

  int64_t kept() const { return dropped_.kept(); }

 private:
  RefusedRows(std::string program, bool ignores, bool are_records, const data::DropLimit& limit);
  // The file gets its name when `allowed` ends the program.
  Status Ended(Status allowed);

  const std::string program_;
  const bool ignores_, are_records_;
  data::DroppedRows dropped_;
  std::unique_ptr<data::NewFile> file_;  // null without --refused_rows
};

}  // namespace millrace

#endif  // MILLRACE_TOOLS_REFUSED_ROWS_H_
