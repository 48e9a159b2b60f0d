// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DATA_ROW_FILES_H_
#define MILLRACE_DATA_ROW_FILES_H_

// RowFiles: the rows of files that other programs have made, one after the other: lines, CSV
// records, or TFRecords of tf.Example.
//
//   MR_ASSIGN_OR_RETURN(auto rows, RowFiles::Open({"clicks/part-r-*"}, {.format = RowFormat::kCsv,
//                                                                       .has_header = true}));
//   MR_ASSIGN_OR_RETURN(const size_t user, rows->FindColumn("user_id"));
//   while (true) {
//     MR_ASSIGN_OR_RETURN(const bool more, rows->Next());
//     if (!more) break;
//     Use(rows->fields()[user]);
//   }
//
// Files are named by patterns (data/matching_files.h) and read in the order of the patterns, sorted
// within each, each once. Gzip and zlib files are told by their first bytes, whatever their names.
//
// A CSV record is a line that may go on inside quotes (formats/text_rows.h; data/csv.h has the
// rules of fields); all records have as many fields, and all files the same columns in their
// headers, if they have one; blank lines at the end of a file are no records, and between records
// they are one bad one. A UTF-8 byte order mark at the front of a file is skipped. Rows are
// read one at a time: memory does not depend on the size of the files.
//
// Failure: NotFound for a pattern that nothing matches, FailedPrecondition for a directory; what is
// wrong in a file comes with its name and the line, or the place of the record, and the name of the
// column. Behind a bad CSV record (row_is_bad()) Next goes on; other errors repeat.
//
// Thread-safety: thread-compatible.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/compression.h"
#include "core/file_system.h"
#include "core/record.h"
#include "core/status.h"
#include "formats/text_rows.h"

namespace millrace::data {

enum class RowFormat { kLines, kCsv, kExamples };

struct RowFilesOptions {
  RowFormat format = RowFormat::kLines;
  char field_delim = ',';
  // The first line of each file has the names of its columns.
  bool has_header = false;
  // The names of the columns: those that a header must have, in this order, or what to call the
  // columns where files have no header.
  std::vector<std::string> columns = {};
  // Of lines: in files named as CSV is (NamedAsCsv), a row is a record, which may be several lines;
  // its fields are not looked at.
  bool csv_by_name = false;
  // Nothing says that field_delim is right: see TextRowsOptions::any_delim.
  bool any_delim = false;
  std::optional<Compression> compression = std::nullopt;  // none: as the bytes say
  FileSystem* file_system = FileSystem::Default();
};

// By the first bytes. A file of records is plain when it begins with a record's head, which is
// checked by its checksum; text that begins as a zlib stream does is taken for one.
StatusOr<Compression> DetectCompression(FileSystem* fs, const std::string& path, bool is_records);

// "a.csv", "b.TSV", "c.csv.gz".
bool NamedAsCsv(absl::string_view path);

// The files that `patterns` stand for.
StatusOr<std::vector<std::string>> FindFiles(FileSystem* fs,
                                             absl::Span<const std::string> patterns);

class RowFiles {
 public:
  // Opens the first file, and reads its header.
  static StatusOr<std::unique_ptr<RowFiles>> Open(absl::Span<const std::string> patterns,
                                                  RowFilesOptions options);

  const std::vector<std::string>& files() const { return files_; }
  // Of a CSV file's columns; empty when neither a header nor the options say.
  const std::vector<std::string>& columns() const { return columns_; }
  bool are_records() const { return options_.format == RowFormat::kExamples; }
  // The header as it stands in the first file; "" without one.
  const std::string& header() const { return header_; }
  // A CSV column by its name or (from 0 on) its number. InvalidArgument names those that there are.
  StatusOr<size_t> FindColumn(absl::string_view name) const;

  // False at the end of the last file.
  StatusOr<bool> Next();
  // The last call of Next failed for what is in row() alone; the next call reads the row behind it.
  bool row_is_bad() const { return row_is_bad_; }
  // A line or a record, valid until the next call.
  absl::string_view row() const { return row_; }
  // Of a CSV record; valid until the next call.
  const std::vector<std::string>& fields() const { return fields_; }
  // That the row is in; not behind the last row.
  const std::string& file() const { return files_[file_]; }
  // "'clicks/part-r-00000' line 7": the row, for messages.
  std::string Where() const;
  // That Next gave.
  int64_t num_rows() const { return num_rows_; }
  // InvalidArgument that names the files: for callers that need rows and got none.
  Status NoRows() const;

 private:
  RowFiles(RowFilesOptions options, std::vector<std::string> files)
      : options_(std::move(options)), files_(std::move(files)) {}
  Status OpenFile();
  Status ReadHeader();
  StatusOr<bool> NextOfAll();
  // The next row of the file at hand.
  StatusOr<bool> NextOfFile();
  // The next record of a CSV file to row_.
  StatusOr<bool> NextCsv();
  // row_ to fields_.
  Status Cut();

  const RowFilesOptions options_;
  const std::vector<std::string> files_;
  size_t file_ = 0;
  std::unique_ptr<TextRows> text_;
  std::unique_ptr<RecordReader> records_;
  uint64_t record_begin_ = 0;
  std::vector<std::string> columns_;
  std::string header_;
  bool has_header_ = false;              // header_ is that of the first file
  size_t num_fields_ = 0;                // 0: not known yet
  std::vector<absl::string_view> rows_;  // of text_, by its last call: one or none
  bool is_ahead_ = false;                // rows_ was not given yet
  int64_t line_ = 0;                     // of row_
  absl::string_view row_;
  bool row_is_bad_ = false;
  Status failed_;  // what ended the rows
  std::vector<std::string> fields_;
  std::string scratch_;
  int64_t num_rows_ = 0;
};

}  // namespace millrace::data

#endif  // MILLRACE_DATA_ROW_FILES_H_
