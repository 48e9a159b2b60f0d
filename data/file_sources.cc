// SPDX-License-Identifier: Apache-2.0
//
// Sources that read files one after the other: text lines, CSV records, records, records of fixed
// length; and the names of files. What is read is handed on in blocks, in the memory it was read
// to.
//
// An error ends its file: the next element is the first of the next file.

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "core/buffer.h"
#include "core/byte_reader.h"
#include "core/file_system.h"
#include "core/record.h"
#include "data/block.h"
#include "data/dataset.h"
#include "data/dataset_node.h"
#include "data/lost_file.h"
#include "data/matching_files.h"
#include "formats/csv_header.h"
#include "formats/text_rows.h"

namespace millrace::data {
namespace {

using Inputs = std::vector<Dataset>;
using Views = std::vector<absl::string_view>;

// The rows of one file.
class FileRows {
 public:
  virtual ~FileRows() = default;
  // 1 to `most` rows that are in memory together; none: the end. They are valid until the next
  // call, or as long as owner() is held.
  virtual Status Next(size_t most, Views* rows) = 0;
  virtual const BufferRef& owner() const = 0;
  // Behind the rows given, in the uncompressed bytes.
  virtual uint64_t offset() const = 0;
  // Of the first byte that belongs to `row`, one of those given by the last call.
  virtual uint64_t OffsetOf(absl::string_view row) const = 0;
  // The number of the first row that the last call gave, and that of the first of the next call,
  // where rows are counted (from 1); else 0.
  virtual int64_t number() const { return 0; }
  virtual int64_t next_number() const { return 0; }
};

// How far `to` is behind `from`, in one piece of memory.
uint64_t Distance(const char* from, const char* to) { return static_cast<uint64_t>(to - from); }

// How files are cut to rows.
class FileFormat {
 public:
  virtual ~FileFormat() = default;
  virtual std::string Text() const = 0;
  // Of rows in messages; `file` and `first` are the caller's.
  virtual RowOrigin Origin() const { return {}; }
  // From `offset` on: 0 or the offset() of a reader of this file; its first row has this number.
  virtual StatusOr<std::unique_ptr<FileRows>> Open(FileSystem* fs, const std::string& path,
                                                   uint64_t offset, int64_t number) const = 0;
};

// A reader that stands at `offset` of the uncompressed bytes.
StatusOr<std::unique_ptr<ByteReader>> OpenAt(FileSystem* fs, const std::string& path,
                                             absl::string_view label, Compression compression,
                                             uint64_t offset, int64_t buffer_size) {
  const bool plain = compression == Compression::kNone;
  const size_t chunk =
      buffer_size > 0 ? static_cast<size_t>(buffer_size) : ByteReader::kDefaultChunk;
  MR_ASSIGN_OR_RETURN(std::unique_ptr<ByteReader> bytes,
                      ByteReader::Open(fs, path, label, compression, plain ? offset : 0, chunk));
  while (bytes->offset() < offset) {
    const uint64_t left = offset - bytes->offset();
    MR_ASSIGN_OR_RETURN(const bool more, bytes->Fill(1));
    if (!more) {
      return absl::DataLossError(
          absl::StrCat(label, ": it must have at least ", offset, " bytes, got ", bytes->offset()));
    }
    bytes->Consume(static_cast<size_t>(std::min<uint64_t>(left, bytes->unread().size())));
  }
  return bytes;
}

// --- Text lines

class LineRows : public FileRows {
 public:
  LineRows(std::unique_ptr<ByteReader> bytes, TextRowsOptions options, int64_t number)
      : rows_(std::move(bytes), std::move(options), number) {}
  Status Next(size_t most, Views* rows) override { return rows_.Next(most, rows); }
  const BufferRef& owner() const override { return rows_.owner(); }
  uint64_t offset() const override { return rows_.offset(); }
  uint64_t OffsetOf(absl::string_view row) const override { return rows_.OffsetOf(row); }
  int64_t number() const override { return rows_.line(); }
  int64_t next_number() const override { return rows_.next_line(); }

 private:
  TextRows rows_;
};

class LineFormat : public FileFormat {
 public:
  explicit LineFormat(const FileOptions& options) : options_(options) {}
  std::string Text() const override { return "TextLines"; }
  StatusOr<std::unique_ptr<FileRows>> Open(FileSystem* fs, const std::string& path, uint64_t offset,
                                           int64_t number) const override {
    MR_ASSIGN_OR_RETURN(std::unique_ptr<ByteReader> bytes,
                        OpenAt(fs, path, absl::StrCat("Text lines '", path, "'"),
                               options_.compression, offset, options_.buffer_size));
    return std::make_unique<LineRows>(std::move(bytes), TextRowsOptions{.keep_last_return = true},
                                      number);
  }

 private:
  const FileOptions options_;
};

// --- CSV records

class CsvFormat : public FileFormat {
 public:
  explicit CsvFormat(CsvRecordsOptions options) : options_(std::move(options)) {}
  std::string Text() const override { return "CsvRecords"; }
  RowOrigin Origin() const override { return {.kind = "CSV", .unit = "line"}; }
  StatusOr<std::unique_ptr<FileRows>> Open(FileSystem* fs, const std::string& path, uint64_t offset,
                                           int64_t number) const override {
    const std::string label = absl::StrCat("CSV '", path, "'");
    MR_ASSIGN_OR_RETURN(
        std::unique_ptr<ByteReader> bytes,
        OpenAt(fs, path, label, options_.file.compression, offset, options_.file.buffer_size));
    auto rows = std::make_unique<LineRows>(std::move(bytes),
                                           TextRowsOptions{.quotes = options_.use_quote_delim,
                                                           .field_delim = options_.field_delim,
                                                           .label = label},
                                           number);
    // Behind the header an offset is never 0.
    if (options_.has_header && offset == 0) {
      Views first;
      MR_RETURN_IF_ERROR(rows->Next(1, &first));
      MR_RETURN_IF_ERROR(Prefixed(label, CheckHeader(first)));
    }
    return rows;
  }

 private:
  Status CheckHeader(const Views& first) const {
    if (first.empty()) return InvalidArgument("it must begin with a header, got an empty file");
    if (options_.columns.empty()) return absl::OkStatus();
    MR_ASSIGN_OR_RETURN(const std::vector<std::string> header,
                        CsvHeader(first[0], options_.field_delim, options_.use_quote_delim));
    return CheckCsvHeader(options_.columns, header, /*is_whole=*/!options_.more_columns);
  }

  const CsvRecordsOptions options_;
};

// --- Records (TFRecord)

class RecordRows : public FileRows {
 public:
  RecordRows(std::unique_ptr<RecordReader> reader, int64_t number)
      : reader_(std::move(reader)), next_number_(number) {}
  Status Next(size_t most, Views* rows) override {
    const Status status = reader_->NextInMemory(most, rows);
    last_ = rows->empty() ? absl::string_view() : rows->back();
    number_ = next_number_;
    next_number_ += static_cast<int64_t>(rows->size());
    return absl::IsOutOfRange(status) ? absl::OkStatus() : status;
  }
  const BufferRef& owner() const override { return reader_->owner(); }
  uint64_t offset() const override { return reader_->offset(); }
  uint64_t OffsetOf(absl::string_view row) const override {
    constexpr uint64_t kHeader = 12, kFooter = 4;
    return reader_->offset() - Distance(row.data(), last_.data() + last_.size()) - kHeader -
           kFooter;
  }
  int64_t number() const override { return number_; }
  int64_t next_number() const override { return next_number_; }
  void set_next_number(int64_t number) { next_number_ = number; }

 private:
  const std::unique_ptr<RecordReader> reader_;
  absl::string_view last_;  // of the rows given
  int64_t number_ = 0;
  int64_t next_number_;
};

class RecordFormat : public FileFormat {
 public:
  explicit RecordFormat(const FileOptions& options) : options_(options) {}
  std::string Text() const override { return "Records"; }
  RowOrigin Origin() const override { return {.kind = "Records", .unit = "record"}; }
  StatusOr<std::unique_ptr<FileRows>> Open(FileSystem* fs, const std::string& path, uint64_t offset,
                                           int64_t number) const override {
    const bool plain = options_.compression == Compression::kNone;
    MR_ASSIGN_OR_RETURN(std::unique_ptr<RecordReader> reader,
                        RecordReader::Open(fs, path, options_.compression, plain ? offset : 0));
    auto rows = std::make_unique<RecordRows>(std::move(reader), 1);
    Views skipped;
    while (rows->offset() < offset) {
      MR_RETURN_IF_ERROR(rows->Next(1, &skipped));
      if (skipped.empty()) {
        return absl::DataLossError(absl::StrCat("Records '", path, "': it must have ", offset,
                                                " bytes as before, got ", rows->offset()));
      }
    }
    // Of what was skipped nobody counts again.
    rows->set_next_number(number);
    return rows;
  }

 private:
  const FileOptions options_;
};

// --- Records of fixed length

struct FixedLengths {
  int64_t record, header, footer;
};

class FixedRows : public FileRows {
 public:
  FixedRows(std::string path, std::unique_ptr<ByteReader> bytes, FixedLengths lengths)
      : path_(std::move(path)), bytes_(std::move(bytes)), lengths_(lengths) {}
  Status Next(size_t most, Views* rows) override {
    rows->clear();
    bytes_->Consume(given_);
    given_ = 0;
    const uint64_t record = static_cast<uint64_t>(lengths_.record);
    const uint64_t footer = static_cast<uint64_t>(lengths_.footer);
    MR_ASSIGN_OR_RETURN(const bool more, bytes_->Fill(record + footer));
    if (!more) {
      MR_RETURN_IF_ERROR(bytes_->CheckEnd());
      if (bytes_->unread().size() != footer)
        return Excess(bytes_->offset() + bytes_->unread().size());
      return absl::OkStatus();
    }
    while (rows->size() < most && bytes_->unread().size() - given_ >= record + footer) {
      rows->push_back(bytes_->unread().substr(given_, static_cast<size_t>(record)));
      given_ += static_cast<size_t>(record);
    }
    return absl::OkStatus();
  }
  // Of a file of this size.
  Status Excess(uint64_t size) const {
    const int64_t body = static_cast<int64_t>(size) - lengths_.header - lengths_.footer;
    return InvalidArgument("Excluding the header (", lengths_.header, " bytes) and footer (",
                           lengths_.footer, " bytes), input file \"", path_, "\" has body length ",
                           body, " bytes, which is not an exact multiple of the record length (",
                           lengths_.record, " bytes).");
  }
  const BufferRef& owner() const override { return bytes_->owner(); }
  uint64_t offset() const override { return bytes_->offset() + given_; }
  uint64_t OffsetOf(absl::string_view row) const override {
    return bytes_->offset() + Distance(bytes_->unread().data(), row.data());
  }

 private:
  const std::string path_;
  const std::unique_ptr<ByteReader> bytes_;
  const FixedLengths lengths_;
  size_t given_ = 0;
};

class FixedFormat : public FileFormat {
 public:
  FixedFormat(FixedLengths lengths, const FileOptions& options)
      : lengths_(lengths), options_(options) {}
  std::string Text() const override {
    return absl::StrCat("FixedLengthRecords(", lengths_.record, ", ", lengths_.header, ", ",
                        lengths_.footer, ")");
  }
  StatusOr<std::unique_ptr<FileRows>> Open(FileSystem* fs, const std::string& path, uint64_t offset,
                                           int64_t) const override {
    const std::string label = absl::StrCat("Fixed length records '", path, "'");
    const uint64_t header = static_cast<uint64_t>(lengths_.header);
    const bool plain = options_.compression == Compression::kNone;
    if (plain) {
      MR_ASSIGN_OR_RETURN(const uint64_t size, fs->GetFileSize(path));
      const uint64_t frame = header + static_cast<uint64_t>(lengths_.footer);
      if (size < frame || (size - frame) % static_cast<uint64_t>(lengths_.record) != 0) {
        return FixedRows(path, nullptr, lengths_).Excess(size);
      }
    }
    MR_ASSIGN_OR_RETURN(std::unique_ptr<ByteReader> bytes,
                        OpenAt(fs, path, label, options_.compression, std::max(offset, header),
                               options_.buffer_size));
    return std::make_unique<FixedRows>(path, std::move(bytes), lengths_);
  }

 private:
  const FixedLengths lengths_;
  const FileOptions options_;
};

// --- The files, one after the other

class FilesNode : public DatasetNode {
 public:
  FilesNode(const Inputs&, std::vector<std::string> paths, std::unique_ptr<FileFormat> format)
      : DatasetNode({{DT_STRING, PartialShape::Scalar()}}, kUnknownCardinality),
        paths_(std::make_shared<const std::vector<std::string>>(std::move(paths))),
        format_(std::move(format)) {}
  std::string Text() const override {
    return absl::StrCat(format_->Text(), "('", absl::StrJoin(*paths_, "', '"), "')");
  }
  StatusOr<std::unique_ptr<ElementIterator>> MakeIterator(
      const IteratorContext& context) const override;
  const std::vector<std::string>& paths() const { return *paths_; }
  // Keeps all of them.
  std::shared_ptr<const std::string> shared_path(size_t file) const {
    return {paths_, &(*paths_)[file]};
  }
  const FileFormat& format() const { return *format_; }

 private:
  const std::shared_ptr<const std::vector<std::string>> paths_;
  const std::unique_ptr<const FileFormat> format_;
};

class FilesIterator : public ElementIterator {
 public:
  FilesIterator(const FilesNode* node, const IteratorContext& context)
      : node_(node), context_(context) {}

  StatusOr<bool> Next(Element* element) override {
    if (next_ == found_.size()) {
      next_ = 0;
      MR_ASSIGN_OR_RETURN(const bool more, NextRows(kRowsAhead, &found_));
      if (!more) return false;
    }
    const absl::string_view row = found_[next_++];
    element->resize(1);
    MR_ASSIGN_OR_RETURN((*element)[0], Tensor::Allocate(DT_STRING, Shape()));
    (*element)[0].mutable_raw<std::string>()[0].assign(row.data(), row.size());
    return true;
  }
  bool NextIsReady() const override { return next_ < found_.size(); }
  bool ServesBlocks() const override { return true; }
  StatusOr<bool> NextBlock(int64_t max_rows, Block* block) override {
    block->columns.clear();
    Column& column = block->columns.emplace_back();
    const size_t most = static_cast<size_t>(max_rows);
    if (next_ < found_.size()) {
      const absl::Span<const absl::string_view> found =
          absl::MakeConstSpan(found_).subspan(next_, std::min(most, found_.size() - next_));
      column.strings.assign(found.begin(), found.end());
      next_ += found.size();
    } else {
      found_.clear();
      next_ = 0;
      MR_ASSIGN_OR_RETURN(const bool more, NextRows(most, &column.strings));
      if (!more) return false;
    }
    block->rows = static_cast<int64_t>(column.strings.size());
    column.owners.push_back(rows_->owner());
    block->origin = RowOrigin();
    if (rows_->number() > 0) {
      block->origin = node_->format().Origin();
      block->origin.file = node_->shared_path(file_);
      // Of rows that were found before, these are the last ones that were given.
      const int64_t before = found_.empty() ? 0 : static_cast<int64_t>(next_) - block->rows;
      block->origin.first = rows_->number() + before;
    }
    return true;
  }

  Status Save(StateWriter* state) override {
    state->PutUint(file_);
    state->PutBool(rows_ != nullptr);
    if (rows_ != nullptr) {
      const bool ahead = next_ < found_.size();
      state->PutUint(ahead ? rows_->OffsetOf(found_[next_]) : rows_->offset());
      state->PutInt(ahead ? rows_->number() + static_cast<int64_t>(next_) : rows_->next_number());
    }
    return absl::OkStatus();
  }
  Status Restore(StateReader* state) override {
    const int64_t num_files = static_cast<int64_t>(node_->paths().size());
    MR_ASSIGN_OR_RETURN(const int64_t file, state->GetInt(0, num_files));
    file_ = static_cast<size_t>(file);
    MR_ASSIGN_OR_RETURN(const bool open, state->GetBool());
    if (!open) return absl::OkStatus();
    MR_ASSIGN_OR_RETURN(const uint64_t offset, state->GetUint());
    MR_ASSIGN_OR_RETURN(const int64_t number, state->GetInt(0, int64_t{1} << 62));
    if (file == num_files) return absl::DataLossError("Iterator state: there is no such file");
    MR_ASSIGN_OR_RETURN(rows_, node_->format().Open(context_.environment->options.file_system,
                                                    node_->paths()[file_], offset, number));
    return absl::OkStatus();
  }

 private:
  // Found at a time for a caller that takes them one by one.
  static constexpr size_t kRowsAhead = 64;

  StatusOr<bool> NextRows(size_t most, Views* rows) {
    const TimedWork timed(&context_.environment->source_time);
    rows->clear();
    while (file_ < node_->paths().size()) {
      MR_RETURN_IF_ERROR(context_.CheckNotCancelled());
      const Status status = NextRowsOfFile(most, rows);
      if (status.ok() && !rows->empty()) return true;
      rows->clear();
      rows_.reset();
      ++file_;
      if (!status.ok()) return LostFile(status);
    }
    return false;
  }
  // None: the file has ended.
  Status NextRowsOfFile(size_t most, Views* rows) {
    if (rows_ == nullptr) {
      MR_ASSIGN_OR_RETURN(rows_, node_->format().Open(context_.environment->options.file_system,
                                                      node_->paths()[file_], 0, 1));
    }
    return rows_->Next(most, rows);
  }

  const FilesNode* const node_;
  const IteratorContext context_;
  size_t file_ = 0;                 // the one that is read
  std::unique_ptr<FileRows> rows_;  // of it; null before it is opened
  Views found_;                     // of rows_, by its last call
  size_t next_ = 0;                 // of them, not given yet
};

StatusOr<std::unique_ptr<ElementIterator>> FilesNode::MakeIterator(
    const IteratorContext& context) const {
  return std::make_unique<FilesIterator>(this, context);
}

Dataset MakeFiles(absl::string_view where, std::vector<std::string> paths,
                  const FileOptions& options, std::unique_ptr<FileFormat> format) {
  if (options.buffer_size < 0) {
    return Dataset::Error(
        InvalidArgument(where, ": buffer_size must be >= 0, got ", options.buffer_size));
  }
  return MakeDataset<FilesNode>({}, std::move(paths), std::move(format));
}

// --- Names of files

class MatchingFilesNode : public DatasetNode {
 public:
  MatchingFilesNode(const Inputs&, std::vector<std::string> patterns)
      : DatasetNode({{DT_STRING, PartialShape::Scalar()}}, kUnknownCardinality),
        patterns_(std::move(patterns)) {}
  std::string Text() const override {
    return absl::StrCat("ListFiles('", absl::StrJoin(patterns_, "', '"), "')");
  }
  StatusOr<std::unique_ptr<ElementIterator>> MakeIterator(
      const IteratorContext& context) const override;
  const std::vector<std::string>& patterns() const { return patterns_; }

 private:
  const std::vector<std::string> patterns_;
};

class MatchingFilesIterator : public ElementIterator {
 public:
  MatchingFilesIterator(const MatchingFilesNode* node, const IteratorContext& context)
      : node_(node), context_(context) {}
  StatusOr<bool> Next(Element* element) override {
    if (!listed_) {
      listed_ = true;
      MR_RETURN_IF_ERROR(List());
    }
    if (next_ == names_.size()) return false;
    *element = {Tensor::Scalar(names_[next_++])};
    return true;
  }
  // The names that are left: files that come or go meanwhile do not move them.
  Status Save(StateWriter* state) override {
    state->PutBool(listed_);
    state->PutUint(names_.size() - next_);
    for (size_t i = next_; i < names_.size(); ++i) state->PutBytes(names_[i]);
    return absl::OkStatus();
  }
  Status Restore(StateReader* state) override {
    MR_ASSIGN_OR_RETURN(listed_, state->GetBool());
    MR_ASSIGN_OR_RETURN(const int64_t count, state->GetCount());
    for (int64_t i = 0; i < count; ++i) {
      MR_ASSIGN_OR_RETURN(const absl::string_view name, state->GetBytes());
      names_.emplace_back(name);
    }
    return absl::OkStatus();
  }

 private:
  Status List() {
    const TimedWork timed(&context_.environment->source_time);
    for (const std::string& pattern : node_->patterns()) {
      MR_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                          MatchingFiles(context_.environment->options.file_system, pattern));
      names_.insert(names_.end(), names.begin(), names.end());
    }
    if (names_.empty()) {
      return InvalidArgument("No files matched pattern: ", absl::StrJoin(node_->patterns(), ", "));
    }
    std::sort(names_.begin(), names_.end());
    return absl::OkStatus();
  }

  const MatchingFilesNode* const node_;
  const IteratorContext context_;
  std::vector<std::string> names_;
  size_t next_ = 0;
  bool listed_ = false;
};

StatusOr<std::unique_ptr<ElementIterator>> MatchingFilesNode::MakeIterator(
    const IteratorContext& context) const {
  return std::make_unique<MatchingFilesIterator>(this, context);
}

}  // namespace

Dataset Dataset::TextLines(std::vector<std::string> paths, FileOptions options) {
  return MakeFiles("Dataset.TextLines", std::move(paths), options,
                   std::make_unique<LineFormat>(options));
}

Dataset Dataset::CsvRecords(std::vector<std::string> paths, CsvRecordsOptions options) {
  constexpr absl::string_view kWhere = "Dataset.CsvRecords";
  const char delim = options.field_delim;
  if (delim == '\n' || delim == '\r' || (delim == '"' && options.use_quote_delim)) {
    return Error(InvalidArgument(kWhere, ": field_delim must be no newline and no quote, got code ",
                                 static_cast<int>(delim)));
  }
  if (!options.columns.empty() && !options.has_header) {
    return Error(
        InvalidArgument(kWhere, ": columns must be those of a header, got has_header ", "= false"));
  }
  const FileOptions file = options.file;
  return MakeFiles(kWhere, std::move(paths), file, std::make_unique<CsvFormat>(std::move(options)));
}

Dataset Dataset::Records(std::vector<std::string> paths, FileOptions options) {
  return MakeFiles("Dataset.Records", std::move(paths), options,
                   std::make_unique<RecordFormat>(options));
}

Dataset Dataset::FixedLengthRecords(std::vector<std::string> paths, int64_t record_bytes,
                                    FixedLengthOptions options) {
  constexpr absl::string_view kWhere = "Dataset.FixedLengthRecords";
  // Far from sums that overflow.
  constexpr int64_t kMostBytes = int64_t{1} << 40;
  const struct {
    const char* name;
    int64_t value, least;
  } lengths[] = {{"record_bytes", record_bytes, 1},
                 {"header_bytes", options.header_bytes, 0},
                 {"footer_bytes", options.footer_bytes, 0}};
  for (const auto& length : lengths) {
    if (length.value < length.least || length.value > kMostBytes) {
      return Error(InvalidArgument(kWhere, ": ", length.name, " must be >= ", length.least,
                                   " and at most ", kMostBytes, ", got ", length.value));
    }
  }
  return MakeFiles(
      kWhere, std::move(paths), options.file,
      std::make_unique<FixedFormat>(
          FixedLengths{record_bytes, options.header_bytes, options.footer_bytes}, options.file));
}

Dataset Dataset::ListFiles(std::vector<std::string> patterns, ListFilesOptions options) {
  if (patterns.empty()) {
    return Error(
        InvalidArgument("Dataset.ListFiles: there must be at least one pattern, got none"));
  }
  const Dataset names = MakeDataset<MatchingFilesNode>({}, std::move(patterns));
  // As many as there are: the buffer takes only what it needs.
  constexpr int64_t kAll = int64_t{1} << 40;
  return options.shuffle ? names.Shuffle(kAll, options.seeds) : names;
}

}  // namespace millrace::data
