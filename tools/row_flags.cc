// SPDX-License-Identifier: Apache-2.0
#include "tools/row_flags.h"

#include <cstdint>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/compression.h"
#include "core/file_system.h"
#include "data/example_wire.h"

namespace millrace {
namespace {

constexpr int kDefaultMemoryMb = 256;
constexpr int kMaxMemoryMb = 1 << 20;

StatusOr<char> FieldDelimiter(const CommandLine& flags) {
  if (!flags.has("field_delim")) return ',';
  const std::string text = flags.value("field_delim");
  if (text == "\\t") return '\t';
  if (text.size() == 1 && text != "\"" && text != "\n" && text != "\r") return text[0];
  return InvalidArgument("--field_delim must be one character, no quote and no newline, got '",
                         text, "'");
}

}  // namespace

std::vector<FlagSpec> WithRowFlags(std::vector<FlagSpec> own) {
  std::vector<FlagSpec> flags = {{.name = "input",
                                  .value = "PATTERNS",
                                  .help = "the files: 'clicks/part-r-*,more.csv.gz'",
                                  .required = true}};
  for (FlagSpec& flag : own) flags.push_back(std::move(flag));
  flags.push_back({.name = "header", .help = "the first line of each file names its columns"});
  flags.push_back({.name = "columns",
                   .value = "NAMES",
                   .help = "the names of the columns; with --header what it must name, in this "
                           "order"});
  flags.push_back({.name = "field_delim",
                   .value = "CHARACTER",
                   .help = "between columns (,): ';', '\\t' for a tabulator"});
  flags.push_back({.name = "compression",
                   .value = "GZIP|ZLIB|NONE",
                   .help = "of the files; without it their first bytes say so"});
  return flags;
}

std::vector<FlagSpec> ValueFlags(const std::string& what) {
  return {{.name = "column",
           .value = "NAME",
           .help = absl::StrCat(what, " in CSV files: a column by its name or number (from 0)")},
          {.name = "feature",
           .value = "NAME",
           .help = absl::StrCat(what, " in TFRecords of tf.Example: a feature")}};
}

std::vector<FlagSpec> MemoryFlags() {
  return {{.name = "max_memory_mb",
           .value = "N",
           .help = absl::StrCat("memory for rows; the rest goes through temporary files (",
                                kDefaultMemoryMb, ")")},
          {.name = "temp_dir",
           .value = "DIR",
           .help = "where temporary files are (the output's directory)"}};
}

std::vector<std::string> Names(const std::string& text) {
  std::vector<std::string> names;
  for (absl::string_view name : absl::StrSplit(text, ',')) {
    name = absl::StripAsciiWhitespace(name);
    if (!name.empty()) names.emplace_back(name);
  }
  return names;
}

namespace {

// As Names; a column may have none.
std::vector<std::string> ColumnNames(const std::string& text) {
  std::vector<std::string> names;
  if (text.empty()) return names;
  for (const absl::string_view name : absl::StrSplit(text, ',')) {
    names.emplace_back(absl::StripAsciiWhitespace(name));
  }
  return names;
}

}  // namespace

StatusOr<std::unique_ptr<data::RowFiles>> OpenRows(const CommandLine& flags,
                                                   data::RowFilesOptions otherwise) {
  data::RowFilesOptions options = std::move(otherwise);
  if (flags.has("column") && flags.has("feature")) {
    return InvalidArgument("--column and --feature must not be given both");
  }
  if (flags.has("column")) options.format = data::RowFormat::kCsv;
  if (flags.has("feature")) options.format = data::RowFormat::kExamples;
  MR_ASSIGN_OR_RETURN(options.field_delim, FieldDelimiter(flags));
  options.has_header = flags.has("header");
  if (options.has_header || flags.has("columns")) {
    options.columns = ColumnNames(flags.value("columns"));
  }
  if (options.format == data::RowFormat::kLines && options.has_header && !options.columns.empty()) {
    return InvalidArgument("--columns with --header is for CSV, got lines; --column names one");
  }
  if (options.format == data::RowFormat::kExamples &&
      (options.has_header || !options.columns.empty())) {
    return InvalidArgument("--header and --columns are for text, got TFRecords");
  }
  if (flags.has("compression")) {
    const std::string text = flags.value("compression");
    MR_ASSIGN_OR_RETURN(options.compression,
                        ParseCompression("--compression", text == "NONE" ? "" : text));
  }
  return data::RowFiles::Open(Names(flags.value("input")), std::move(options));
}

StatusOr<data::ExternalSortOptions> SortOptions(const CommandLine& flags,
                                                const std::string& beside) {
  data::ExternalSortOptions options;
  MR_ASSIGN_OR_RETURN(const int mb,
                      flags.IntValue("max_memory_mb", kDefaultMemoryMb, 1, kMaxMemoryMb));
  options.max_bytes = static_cast<size_t>(mb) << 20;
  options.directory = flags.has("temp_dir") ? flags.value("temp_dir") : Dirname(beside);
  return options;
}

StatusOr<RowValues> RowValues::Make(const CommandLine& flags, const data::RowFiles& rows) {
  RowValues values;
  if (flags.has("column")) {
    values.kind_ = Kind::kColumn;
    const StatusOr<size_t> column = rows.FindColumn(flags.value("column"));
    MR_RETURN_IF_ERROR(Prefixed("--column", column.status()));
    values.column_ = *column;
  } else if (flags.has("feature")) {
    values.kind_ = Kind::kFeature;
    values.feature_ = flags.value("feature");
  }
  return values;
}

Status RowValues::Get(const data::RowFiles& rows, std::vector<std::string>* values) const {
  if (kind_ == Kind::kWhole) {
    values->resize(1);
    values->front().assign(rows.row().data(), rows.row().size());
    return absl::OkStatus();
  }
  if (kind_ == Kind::kColumn) {
    if (column_ >= rows.fields().size()) {
      return InvalidArgument(rows.Where(), ": it must have column ", column_, ", got ",
                             rows.fields().size(), " columns");
    }
    values->assign(1, rows.fields()[column_]);
    return absl::OkStatus();
  }
  values->clear();
  FeatureEntries entries(rows.row());
  FeatureEntry entry;
  absl::string_view found;
  bool is_there = false;
  // Of entries with one key the last counts.
  while (entries.Next(&entry)) {
    if (entry.key != feature_) continue;
    found = entry.feature;
    is_there = true;
  }
  if (!entries.ok()) {
    return InvalidArgument(rows.Where(), ": it must be a tf.Example, got other bytes");
  }
  if (!is_there) return absl::OkStatus();
  FeatureValues feature;
  if (!ReadValues(found, &feature)) {
    return InvalidArgument(rows.Where(), ": feature '", feature_,
                           "' must be a tf.Feature, got other bytes");
  }
  const size_t n = static_cast<size_t>(feature.count);
  switch (feature.kind) {
    case FeatureKind::kBytes:
      values->resize(n);
      CopyValues(feature, absl::MakeSpan(*values));
      break;
    case FeatureKind::kInt64: {
      std::vector<int64_t> numbers(n);
      CopyValues(feature, absl::MakeSpan(numbers));
      for (const int64_t number : numbers) values->push_back(absl::StrCat(number));
      break;
    }
    case FeatureKind::kFloat:
      return InvalidArgument(rows.Where(), ": feature '", feature_,
                             "' must be of texts or integers, got floats");
    case FeatureKind::kNone:
      break;
  }
  return absl::OkStatus();
}

}  // namespace millrace
