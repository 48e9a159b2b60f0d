// SPDX-License-Identifier: Apache-2.0
#include "core/record.h"

#include <zlib.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/coding.h"
#include "core/crc32c.h"

namespace millrace {
namespace {

constexpr size_t kHeaderBytes = 12;
constexpr size_t kFooterBytes = 4;
constexpr size_t kChunk = size_t{256} << 10;

// zlib's interface lacks const.
Bytef* ZlibBytes(const char* bytes) { return reinterpret_cast<Bytef*>(const_cast<char*>(bytes)); }

}  // namespace

StatusOr<RecordCompression> ParseRecordCompression(absl::string_view text) {
  return ParseCompression("Records", text);
}

struct RecordWriter::Deflater {
  z_stream stream{};
  bool ready = false;
  std::string out;

  explicit Deflater(RecordCompression compression) : out(kChunk, '\0') {
    ready = deflateInit2(&stream, Z_DEFAULT_COMPRESSION, Z_DEFLATED, ZlibWindowBits(compression), 8,
                         Z_DEFAULT_STRATEGY) == Z_OK;
  }
  ~Deflater() {
    if (ready) deflateEnd(&stream);
  }
};

StatusOr<std::unique_ptr<RecordWriter>> RecordWriter::Open(FileSystem* fs, const std::string& path,
                                                           RecordCompression compression) {
  MR_ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, fs->NewWritableFile(path));
  return std::make_unique<RecordWriter>(std::move(file), compression);
}

RecordWriter::RecordWriter(std::unique_ptr<WritableFile> file, RecordCompression compression)
    : file_(std::move(file)) {
  if (compression == RecordCompression::kNone) return;
  deflater_ = std::make_unique<Deflater>(compression);
  if (!deflater_->ready) error_ = absl::ResourceExhaustedError("Records: no memory to compress");
}

RecordWriter::~RecordWriter() { Close().IgnoreError(); }

Status RecordWriter::Keep(Status status) {
  if (error_.ok()) error_ = std::move(status);
  return error_;
}

Status RecordWriter::Deflate(absl::string_view bytes, int flush) {
  z_stream& stream = deflater_->stream;
  do {  // zlib counts in 32 bits
    const absl::string_view piece = bytes.substr(0, size_t{1} << 30);
    bytes.remove_prefix(piece.size());
    stream.next_in = ZlibBytes(piece.data());
    stream.avail_in = static_cast<uInt>(piece.size());
    do {
      stream.next_out = ZlibBytes(deflater_->out.data());
      stream.avail_out = static_cast<uInt>(kChunk);
      deflate(&stream, bytes.empty() ? flush : Z_NO_FLUSH);
      const size_t made = kChunk - stream.avail_out;
      if (made > 0) {
        MR_RETURN_IF_ERROR(file_->Append(absl::string_view(deflater_->out).substr(0, made)));
      }
    } while (stream.avail_out == 0);
  } while (!bytes.empty());
  return absl::OkStatus();
}

Status RecordWriter::Append(absl::string_view bytes) {
  if (bytes.empty()) return absl::OkStatus();
  return deflater_ == nullptr ? file_->Append(bytes) : Deflate(bytes, Z_NO_FLUSH);
}

Status RecordWriter::Write(absl::string_view record) {
  MR_RETURN_IF_ERROR(error_);
  if (file_ == nullptr) {
    return absl::FailedPreconditionError("Records: write: the writer is closed");
  }
  char header[kHeaderBytes];
  EncodeFixed64(header, record.size());
  EncodeFixed32(header + 8, MaskCrc32c(Crc32c(absl::string_view(header, 8))));
  char footer[kFooterBytes];
  EncodeFixed32(footer, MaskCrc32c(Crc32c(record)));
  return Keep([&]() -> Status {
    MR_RETURN_IF_ERROR(Append(absl::string_view(header, sizeof(header))));
    MR_RETURN_IF_ERROR(Append(record));
    return Append(absl::string_view(footer, sizeof(footer)));
  }());
}

Status RecordWriter::Flush() {
  MR_RETURN_IF_ERROR(error_);
  if (file_ == nullptr) return absl::OkStatus();
  if (deflater_ != nullptr) MR_RETURN_IF_ERROR(Keep(Deflate("", Z_SYNC_FLUSH)));
  return Keep(file_->Flush());
}

Status RecordWriter::Sync() {
  MR_RETURN_IF_ERROR(Flush());
  return file_ == nullptr ? absl::OkStatus() : Keep(file_->Sync());
}

Status RecordWriter::Close() {
  if (file_ == nullptr) return error_;
  if (error_.ok() && deflater_ != nullptr) Keep(Deflate("", Z_FINISH)).IgnoreError();
  const Status closed = file_->Close();
  file_ = nullptr;
  return Keep(closed);
}

StatusOr<std::unique_ptr<RecordReader>> RecordReader::Open(FileSystem* fs, const std::string& path,
                                                           RecordCompression compression,
                                                           uint64_t offset) {
  MR_ASSIGN_OR_RETURN(
      std::unique_ptr<ByteReader> bytes,
      ByteReader::Open(fs, path, absl::StrCat("Records '", path, "'"), compression, offset));
  return std::unique_ptr<RecordReader>(new RecordReader(path, std::move(bytes)));
}

RecordReader::RecordReader(std::string path, std::unique_ptr<ByteReader> bytes)
    : path_(std::move(path)), bytes_(std::move(bytes)) {}

RecordReader::~RecordReader() = default;

Status RecordReader::Loss(absl::string_view what, uint64_t where) const {
  return absl::DataLossError(absl::StrCat("Records '", path_, "': ", what, " at ", where));
}

Status RecordReader::Truncated(uint64_t start) {
  is_cut_ = true;
  return Loss("truncated record", start);
}

StatusOr<absl::string_view> RecordReader::ReadNext() {
  bytes_->Consume(record_bytes_);
  record_bytes_ = 0;
  const uint64_t start = bytes_->offset();
  MR_ASSIGN_OR_RETURN(const bool has_header, bytes_->Fill(kHeaderBytes));
  if (!has_header) {
    MR_RETURN_IF_ERROR(bytes_->CheckEnd());
    return absl::OutOfRangeError(absl::StrCat("Records '", path_, "': end of file at ", start));
  }
  const char* header = bytes_->unread().data();
  const uint64_t length = DecodeFixed64(header);
  if (UnmaskCrc32c(DecodeFixed32(header + 8)) != Crc32c(absl::string_view(header, 8))) {
    return Loss("corrupted record", start);
  }
  // Before anything is allocated for it.
  constexpr uint64_t kFrame = kHeaderBytes + kFooterBytes;
  const uint64_t left = bytes_->BytesLeft();
  if (left < kFrame || length > left - kFrame) return Truncated(start);
  const uint64_t total = kFrame + length;
  MR_ASSIGN_OR_RETURN(const bool is_whole, bytes_->Fill(total));
  if (!is_whole) return Truncated(start);
  const absl::string_view data = bytes_->unread().substr(kHeaderBytes, static_cast<size_t>(length));
  if (UnmaskCrc32c(DecodeFixed32(data.data() + data.size())) != Crc32c(data)) {
    return Loss("corrupted record", start + kHeaderBytes);
  }
  record_bytes_ = static_cast<size_t>(total);
  return data;
}

StatusOr<absl::string_view> RecordReader::Next() {
  MR_RETURN_IF_ERROR(end_);
  StatusOr<absl::string_view> record = ReadNext();
  if (!record.ok()) end_ = record.status();
  return record;
}

Status RecordReader::NextInMemory(size_t max_records, std::vector<absl::string_view>* records) {
  records->clear();
  while (records->size() < max_records) {
    if (!records->empty()) {
      // Whole in memory, or not now: reading may move what was found.
      const absl::string_view rest = bytes_->unread().substr(record_bytes_);
      if (rest.size() < kHeaderBytes + kFooterBytes ||
          rest.size() - kHeaderBytes - kFooterBytes < DecodeFixed64(rest.data())) {
        break;
      }
    }
    const StatusOr<absl::string_view> record = Next();
    if (!record.ok()) {
      if (records->empty()) return record.status();
      break;  // it repeats
    }
    records->push_back(*record);
  }
  return absl::OkStatus();
}

}  // namespace millrace
