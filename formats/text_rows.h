// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_FORMATS_TEXT_ROWS_H_
#define MILLRACE_FORMATS_TEXT_ROWS_H_

// TextRows: the rows of a text file from front to back, seen in place: its lines, or its CSV
// records, which go on behind the end of a line inside quotes.
//
//   TextRows rows(std::move(bytes), {.quotes = true});
//   std::vector<absl::string_view> some;
//   while (true) {
//     MR_RETURN_IF_ERROR(rows.Next(64, &some));
//     if (some.empty()) break;
//     Use(some);
//   }
//
// A UTF-8 byte order mark at the front of the file is part of no row. Rows end with "\n" or
// "\r\n", which are not part of them; the last one may end with the file.
//
// A quote opens a field only where a field begins. A field that is not closed before the end of the
// file or within `most_quoted_bytes`, or whose closing quote is followed by another character than
// a quote, a delimiter or the end of a line, takes no further line along: the row is its first
// line, which a parser refuses. A stray quote therefore costs one row, not the rest of the file.
//
// Failure: of the ByteReader, behind the rows before it; InvalidArgument for a row above the limit,
// with the line's number, and for CSV that begins with UTF-16's byte order mark.
//
// Thread-safety: one thread at a time.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/buffer.h"
#include "core/byte_reader.h"
#include "core/status.h"

namespace millrace {

struct TextRowsOptions {
  // CSV: a field in quotes may hold ends of lines.
  bool quotes = false;
  char field_delim = ',';
  // Nothing says what is between fields: a comma, a semicolon, a tabulator or a bar may be.
  bool any_delim = false;
  size_t most_quoted_bytes = size_t{16} << 20;
  // A "\r" at the end of the file, without "\n", stays in the last row.
  bool keep_last_return = false;
  size_t max_row_bytes = SIZE_MAX;
  // Begins the messages of its own: "'a.csv'".
  std::string label = {};
};

// Drops the mark where it is at the front of what is unread. An error of the reader repeats with
// the next read, so it is not told here.
void SkipByteOrderMark(ByteReader* bytes);

class TextRows {
 public:
  // The first row that is read begins in line `line`.
  TextRows(std::unique_ptr<ByteReader> bytes, TextRowsOptions options, int64_t line = 1);

  // 1 to `most` rows that are in memory together; none: the end. They are valid until the next
  // call, or as long as owner() is held. Each but the last is one line.
  Status Next(size_t most, std::vector<absl::string_view>* rows);

  const BufferRef& owner() const { return bytes_->owner(); }
  // Behind the rows given, in the uncompressed bytes.
  uint64_t offset() const { return bytes_->offset() + given_; }
  // Of the first byte of `row`, one of those that the last call gave.
  uint64_t OffsetOf(absl::string_view row) const {
    return bytes_->offset() + static_cast<uint64_t>(row.data() - bytes_->unread().data());
  }
  // Of the first row that the last call gave, and of the first one of the next call.
  int64_t line() const { return line_; }
  int64_t next_line() const { return next_line_; }

 private:
  struct Search;

  Status Find(size_t most, std::vector<absl::string_view>* rows);
  // Where the row at the front of `rest` ends; npos: not in what is there.
  size_t LineEnd(absl::string_view rest, Search* search) const;
  size_t RecordEnd(absl::string_view rest, Search* search) const;
  bool IsDelim(char c) const {
    return options_.any_delim ? c == ',' || c == ';' || c == '\t' || c == '|'
                              : c == options_.field_delim;
  }
  void Give(absl::string_view row, const Search& search, std::vector<absl::string_view>* rows);

  const std::unique_ptr<ByteReader> bytes_;
  const TextRowsOptions options_;
  size_t given_ = 0;  // bytes of the rows given, not consumed yet
  int64_t line_ = 0;
  int64_t next_line_;
};

}  // namespace millrace

#endif  // MILLRACE_FORMATS_TEXT_ROWS_H_
