// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TOOLS_ROW_FLAGS_H_
#define MILLRACE_TOOLS_ROW_FLAGS_H_

// What the programs that read rows have in common: their flags (--input, --column, --feature, ...),
// the rows that these name, and the values in a row that one looks at.
//
// Thread-safety: thread-compatible. Failure: InvalidArgument by the flag, or the row.

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "core/program.h"
#include "core/status.h"
#include "data/external_sort.h"
#include "data/row_files.h"
#include "tools/command_line.h"

namespace millrace {

// `own`, then --input, --header, --columns, --field_delim and --compression.
std::vector<FlagSpec> WithRowFlags(std::vector<FlagSpec> own);
// --column and --feature: what of a row is looked at; `what` begins their help: "the words".
std::vector<FlagSpec> ValueFlags(const std::string& what);
// --max_memory_mb and --temp_dir.
std::vector<FlagSpec> MemoryFlags();

// Parts of a text between commas, without blanks around them; empty ones are left out.
std::vector<std::string> Names(const std::string& text);

// The rows that the flags name. `otherwise`: what is so where no flag says it; its format counts
// without --column and --feature, its columns without --header and --columns.
StatusOr<std::unique_ptr<data::RowFiles>> OpenRows(const CommandLine& flags,
                                                   data::RowFilesOptions otherwise);

// What --max_memory_mb and --temp_dir say; `beside`: the file in whose directory temporary ones are
// by default.
StatusOr<data::ExternalSortOptions> SortOptions(const CommandLine& flags,
                                                const std::string& beside);

// The values of each row: those of a CSV column (one), of a feature (any number; numbers as decimal
// texts), or the whole line.
class RowValues {
 public:
  static StatusOr<RowValues> Make(const CommandLine& flags, const data::RowFiles& rows);
  // Of the row at hand.
  Status Get(const data::RowFiles& rows, std::vector<std::string>* values) const;

 private:
  enum class Kind { kWhole, kColumn, kFeature };
  Kind kind_ = Kind::kWhole;
  size_t column_ = 0;
  std::string feature_;
};

}  // namespace millrace

#endif  // MILLRACE_TOOLS_ROW_FLAGS_H_
