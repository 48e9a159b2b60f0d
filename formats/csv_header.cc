// SPDX-License-Identifier: Apache-2.0
#include "formats/csv_header.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "formats/csv_fields.h"

namespace millrace {
namespace {

// "'id', 'text'": the first of them, and the hint.
std::string TextOf(absl::Span<const std::string> header) {
  if (header.empty()) return "none";
  constexpr size_t kMost = 20;
  return absl::StrCat("'", absl::StrJoin(header.subspan(0, kMost), "', '"), "'",
                      header.size() > kMost ? ", ..." : "", CsvDelimiterHint(header));
}

}  // namespace

StatusOr<std::vector<std::string>> CsvHeader(absl::string_view record, char delim, bool quotes) {
  std::vector<std::string> names;
  std::string scratch;
  CsvFields fields(record, delim, quotes, &scratch);
  while (true) {
    absl::string_view text;
    MR_ASSIGN_OR_RETURN(const bool more, fields.Next(&text));
    if (!more) return names;
    names.emplace_back(absl::StripAsciiWhitespace(text));
  }
}

Status CheckCsvHeader(absl::Span<const std::string> columns, absl::Span<const std::string> header,
                      bool is_whole) {
  for (size_t i = 0; i < columns.size(); ++i) {
    const std::string& column = columns[i];
    if (i < header.size() && (column.empty() || header[i] == column)) continue;
    if (column.empty()) {
      return InvalidArgument("the header must have at least ", columns.size(), " columns, got ",
                             TextOf(header));
    }
    const auto found = std::find(header.begin(), header.end(), column);
    if (found == header.end()) {
      return InvalidArgument("the header must have column '", column, "' in place ", i + 1,
                             ", got ", TextOf(header));
    }
    return InvalidArgument("the header must have column '", column, "' in place ", i + 1,
                           ", got it in place ", found - header.begin() + 1);
  }
  if (is_whole && header.size() > columns.size()) {
    return InvalidArgument("the header must have ", columns.size(), " columns, got ", header.size(),
                           "; '", header[columns.size()], "' is too much");
  }
  return absl::OkStatus();
}

std::string CsvDelimiterHint(absl::Span<const std::string> header) {
  if (header.size() != 1) return "";
  for (const char delim : {',', ';', '\t', '|'}) {
    if (header[0].find(delim) == std::string::npos) continue;
    return absl::StrCat("; is the delimiter '",
                        delim == '\t' ? "\\t" : absl::string_view(&delim, 1), "'?");
  }
  return "";
}

}  // namespace millrace
