// SPDX-License-Identifier: Apache-2.0
#include "data/row_files.h"

#include <algorithm>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "core/byte_reader.h"
#include "core/coding.h"
#include "core/crc32c.h"
#include "data/matching_files.h"
#include "formats/csv_fields.h"
#include "formats/csv_header.h"

namespace millrace::data {
namespace {

// A record's length and its checksum.
constexpr size_t kRecordHead = 12;
// A compressed file of a few bytes can be one row that never ends.
constexpr size_t kMaxRowBytes = size_t{64} << 20;

bool IsRecordHead(absl::string_view bytes) {
  if (bytes.size() < kRecordHead) return false;
  return DecodeFixed32(bytes.data() + 8) == MaskCrc32c(Crc32c(bytes.substr(0, 8)));
}

}  // namespace

StatusOr<Compression> DetectCompression(FileSystem* fs, const std::string& path, bool is_records) {
  MR_ASSIGN_OR_RETURN(const auto file, fs->NewRandomAccessFile(path));
  char bytes[kRecordHead] = {};
  const size_t size = static_cast<size_t>(std::min<uint64_t>(file->size(), kRecordHead));
  MR_RETURN_IF_ERROR(file->Read(0, size, bytes));
  const absl::string_view head(bytes, size);
  if (is_records && IsRecordHead(head)) return Compression::kNone;
  if (size >= 3 && head.substr(0, 3) == "\x1f\x8b\x08") return Compression::kGzip;
  // 32 KiB of window; the second byte says how hard the writer has tried. One of the four is a
  // character of text.
  if (size >= 2 && head[0] == '\x78') {
    const bool is_level = head[1] == '\x01' || head[1] == '\x9c' || head[1] == '\xda' ||
                          (is_records && head[1] == '\x5e');
    if (is_level) return Compression::kZlib;
  }
  return Compression::kNone;
}

bool NamedAsCsv(absl::string_view path) {
  absl::ConsumeSuffix(&path, ".gz");
  return absl::EndsWithIgnoreCase(path, ".csv") || absl::EndsWithIgnoreCase(path, ".tsv");
}

StatusOr<std::vector<std::string>> FindFiles(FileSystem* fs,
                                             absl::Span<const std::string> patterns) {
  std::vector<std::string> files;
  std::set<std::string> known;
  for (const std::string& pattern : patterns) {
    MR_ASSIGN_OR_RETURN(const std::vector<std::string> matching, MatchingFiles(fs, pattern));
    if (matching.empty()) {
      return absl::NotFoundError(absl::StrCat("'", pattern, "': it must name files, got none"));
    }
    for (const std::string& path : matching) {
      MR_ASSIGN_OR_RETURN(const bool is_directory, fs->IsDirectory(path));
      if (is_directory) {
        return FailedPrecondition("'", path, "': it must be a file, got a directory; '",
                                  JoinPath(path, "part-*"), "' stands for files in it");
      }
      if (known.insert(path).second) files.push_back(path);
    }
  }
  if (files.empty()) return InvalidArgument("there must be at least one input file, got none");
  return files;
}

StatusOr<std::unique_ptr<RowFiles>> RowFiles::Open(absl::Span<const std::string> patterns,
                                                   RowFilesOptions options) {
  MR_ASSIGN_OR_RETURN(std::vector<std::string> files, FindFiles(options.file_system, patterns));
  std::unique_ptr<RowFiles> rows(new RowFiles(std::move(options), std::move(files)));
  if (!rows->options_.has_header && !rows->options_.columns.empty()) {
    rows->columns_ = rows->options_.columns;
    rows->num_fields_ = rows->columns_.size();
  }
  MR_RETURN_IF_ERROR(rows->OpenFile());
  return rows;
}

std::string RowFiles::Where() const {
  if (file_ >= files_.size()) return "the end";
  if (records_ != nullptr) {
    return absl::StrCat("'", files_[file_], "' record at ", record_begin_);
  }
  return absl::StrCat("'", files_[file_], "' line ", line_);
}

Status RowFiles::NoRows() const {
  return InvalidArgument("there must be at least one row, got none in '",
                         absl::StrJoin(files_, "', '"), "'");
}

Status RowFiles::OpenFile() {
  FileSystem* const fs = options_.file_system;
  const std::string& path = files_[file_];
  const bool is_records = options_.format == RowFormat::kExamples;
  Compression compression = Compression::kNone;
  if (options_.compression) {
    compression = *options_.compression;
  } else {
    MR_ASSIGN_OR_RETURN(compression, DetectCompression(fs, path, is_records));
  }
  if (is_records) {
    MR_ASSIGN_OR_RETURN(records_, RecordReader::Open(fs, path, compression));
    return absl::OkStatus();
  }
  const std::string label = absl::StrCat("'", path, "'");
  const bool is_csv =
      options_.format == RowFormat::kCsv || (options_.csv_by_name && NamedAsCsv(path));
  MR_ASSIGN_OR_RETURN(auto bytes, ByteReader::Open(fs, path, label, compression));
  is_ahead_ = false;
  line_ = 1;
  text_ = std::make_unique<TextRows>(std::move(bytes),
                                     TextRowsOptions{.quotes = is_csv,
                                                     .field_delim = options_.field_delim,
                                                     .any_delim = options_.any_delim,
                                                     .max_row_bytes = kMaxRowBytes,
                                                     .label = label});
  return options_.has_header ? ReadHeader() : absl::OkStatus();
}

Status RowFiles::ReadHeader() {
  MR_RETURN_IF_ERROR(text_->Next(1, &rows_));
  if (rows_.empty()) {
    return InvalidArgument("'", files_[file_], "': it must begin with a header, got an empty file");
  }
  const absl::string_view line = rows_[0];
  if (options_.format != RowFormat::kCsv) {
    if (has_header_ && line != header_) {
      return InvalidArgument(Where(), ": all files must have the header of '", files_[0], "', '",
                             header_, "', got '", line, "'");
    }
    header_ = std::string(line);
    has_header_ = true;
    return absl::OkStatus();
  }
  StatusOr<std::vector<std::string>> names = CsvHeader(line, options_.field_delim, true);
  MR_RETURN_IF_ERROR(Prefixed(Where(), names.status()));
  if (names->empty()) {
    return InvalidArgument(Where(), ": the header must name columns, got a blank line");
  }
  if (has_header_) {
    const Status same = CheckCsvHeader(columns_, *names, /*is_whole=*/true);
    return Prefixed(absl::StrCat(Where(), ": all files must have the header of '", files_[0], "'"),
                    same);
  }
  if (!options_.columns.empty()) {
    MR_RETURN_IF_ERROR(
        Prefixed(Where(), CheckCsvHeader(options_.columns, *names, /*is_whole=*/true)));
  }
  header_ = std::string(line);
  has_header_ = true;
  columns_ = *std::move(names);
  num_fields_ = columns_.size();
  std::set<std::string> known;
  for (const std::string& name : columns_) {
    if (!known.insert(name).second) {
      return InvalidArgument(Where(), ": columns must have names of their own, got '", name,
                             "' twice");
    }
  }
  return absl::OkStatus();
}

Status RowFiles::Cut() {
  CsvFields cutter(row_, options_.field_delim, /*quotes=*/true, &scratch_);
  size_t n = 0;
  while (true) {
    absl::string_view text;
    const StatusOr<bool> more = cutter.Next(&text);
    if (!more.ok()) {
      if (n >= columns_.size()) return more.status();
      return Prefixed(absl::StrCat("column '", columns_[n], "'"), more.status());
    }
    if (!*more) break;
    if (n == fields_.size()) fields_.emplace_back();
    fields_[n++].assign(text.data(), text.size());
  }
  fields_.resize(n);
  if (num_fields_ == 0) num_fields_ = n;
  if (n == num_fields_ && n > 0) return absl::OkStatus();
  return InvalidArgument(
      "a record must have ", std::max<size_t>(num_fields_, 1), " fields, got ", n,
      n < columns_.size() ? absl::StrCat("; column '", columns_[n], "' is missing") : "");
}

StatusOr<bool> RowFiles::NextCsv() {
  if (!std::exchange(is_ahead_, false)) MR_RETURN_IF_ERROR(text_->Next(1, &rows_));
  if (rows_.empty()) return false;
  row_ = rows_[0];
  line_ = text_->line();
  // Of one column it may be a value.
  if (!row_.empty() || num_fields_ == 1) return true;
  while (rows_[0].empty()) {
    MR_RETURN_IF_ERROR(text_->Next(1, &rows_));
    if (rows_.empty()) return false;
  }
  is_ahead_ = true;
  row_ = "";
  return true;
}

StatusOr<bool> RowFiles::NextOfFile() {
  if (records_ != nullptr) {
    record_begin_ = records_->offset();
    const StatusOr<absl::string_view> record = records_->Next();
    if (absl::IsOutOfRange(record.status())) return false;
    MR_RETURN_IF_ERROR(record.status());
    row_ = *record;
    return true;
  }
  if (options_.format != RowFormat::kCsv) {
    MR_RETURN_IF_ERROR(text_->Next(1, &rows_));
    if (rows_.empty()) return false;
    row_ = rows_[0];
    line_ = text_->line();
    return true;
  }
  MR_ASSIGN_OR_RETURN(const bool more, NextCsv());
  if (!more) return false;
  const Status status = Cut();
  if (status.ok()) return true;
  row_is_bad_ = true;
  return Prefixed(Where(), status);
}

StatusOr<bool> RowFiles::Next() {
  MR_RETURN_IF_ERROR(failed_);
  row_is_bad_ = false;
  const StatusOr<bool> more = NextOfAll();
  if (!more.ok() && !row_is_bad_) failed_ = more.status();
  return more;
}

StatusOr<bool> RowFiles::NextOfAll() {
  while (file_ < files_.size()) {
    MR_ASSIGN_OR_RETURN(const bool more, NextOfFile());
    if (more) {
      ++num_rows_;
      return true;
    }
    text_ = nullptr;
    records_ = nullptr;
    if (++file_ < files_.size()) MR_RETURN_IF_ERROR(OpenFile());
  }
  return false;
}

StatusOr<size_t> RowFiles::FindColumn(absl::string_view name) const {
  const auto found = std::find(columns_.begin(), columns_.end(), name);
  if (found != columns_.end()) return static_cast<size_t>(found - columns_.begin());
  size_t number = 0;
  if (absl::SimpleAtoi(name, &number) && (columns_.empty() || number < columns_.size())) {
    return number;
  }
  if (columns_.empty()) {
    return InvalidArgument("column '", name,
                           "' must be a number, as the files have no header and no names");
  }
  return InvalidArgument("column '", name, "' must be one of ", absl::StrJoin(columns_, ", "),
                         CsvDelimiterHint(columns_));
}

}  // namespace millrace::data
