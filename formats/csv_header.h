// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_FORMATS_CSV_HEADER_H_
#define MILLRACE_FORMATS_CSV_HEADER_H_

// The header of a CSV file: the record that names the columns.
//
//   MR_ASSIGN_OR_RETURN(const std::vector<std::string> header, CsvHeader("id; text", ';', true));
//   MR_RETURN_IF_ERROR(CheckCsvHeader({"id", "text"}, header, /*is_whole=*/true));
//
// Pure functions. Failure: InvalidArgument; callers add the file.

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/status.h"

namespace millrace {

// The names in `record`, without blanks around them. `quotes`: a name may be in quotes.
StatusOr<std::vector<std::string>> CsvHeader(absl::string_view record, char delim, bool quotes);

// OK when `header` has these columns in these places; "" stands for any name. The error names the
// first column that is missing or in another place. `is_whole`: no further column may follow.
Status CheckCsvHeader(absl::Span<const std::string> columns, absl::Span<const std::string> header,
                      bool is_whole);

// "; is the delimiter ';'?" for a header of one name in which another one's delimiter is; else "".
std::string CsvDelimiterHint(absl::Span<const std::string> header);

}  // namespace millrace

#endif  // MILLRACE_FORMATS_CSV_HEADER_H_
