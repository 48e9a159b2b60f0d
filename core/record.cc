// SPDX-License-Identifier: Apache-2.0
#include "core/record.h"

#include <zlib.h>

#include <algorithm>
#include <utility>

#include "core/coding.h"
#include "core/crc32c.h"

namespace millrace {
namespace {

constexpr size_t kHeaderBytes = 12;
constexpr size_t kFooterBytes = 4;
constexpr size_t kChunk = size_t{256} << 10;
constexpr int kGzipWindowBits = 16 + MAX_WBITS;

int WindowBits(RecordCompression compression) {
  return compression == RecordCompression::kGzip ? kGzipWindowBits : MAX_WBITS;
}

// zlib's interface lacks const.
Bytef* ZlibBytes(const char* bytes) { return reinterpret_cast<Bytef*>(const_cast<char*>(bytes)); }

}  // namespace

StatusOr<RecordCompression> ParseRecordCompression(absl::string_view text) {
  if (text.empty() || text == "NONE") return RecordCompression::kNone;
  if (text == "ZLIB") return RecordCompression::kZlib;
  if (text == "GZIP") return RecordCompression::kGzip;
  return absl::InvalidArgumentError(
      absl::StrCat("Records: compression_type must be '', 'ZLIB' or 'GZIP', got '", text, "'"));
}

struct RecordWriter::Deflater {
  z_stream stream{};
  bool ready = false;
  std::string out;

  explicit Deflater(RecordCompression compression) : out(kChunk, '\0') {
    ready = deflateInit2(&stream, Z_DEFAULT_COMPRESSION, Z_DEFLATED, WindowBits(compression), 8,
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

struct RecordReader::Inflater {
  z_stream stream{};
  bool ready = false;
  bool ended = false;  // at the end mark of a stream (a file may hold several in a row)
  std::string in;
  size_t in_position = 0;

  explicit Inflater(RecordCompression compression) {
    ready = inflateInit2(&stream, WindowBits(compression)) == Z_OK;
  }
  ~Inflater() {
    if (ready) inflateEnd(&stream);
  }
};

StatusOr<std::unique_ptr<RecordReader>> RecordReader::Open(FileSystem* fs, const std::string& path,
                                                           RecordCompression compression,
                                                           uint64_t offset) {
  if (compression != RecordCompression::kNone && offset != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Records '", path, "': a compressed file must be read from offset 0, got ", offset));
  }
  MR_ASSIGN_OR_RETURN(std::unique_ptr<RandomAccessFile> file, fs->NewRandomAccessFile(path));
  std::unique_ptr<RecordReader> reader(
      new RecordReader(path, std::move(file), compression, offset));
  if (reader->inflater_ != nullptr && !reader->inflater_->ready) {
    return absl::ResourceExhaustedError(
        absl::StrCat("Records '", path, "': no memory to decompress"));
  }
  return reader;
}

RecordReader::RecordReader(std::string path, std::unique_ptr<RandomAccessFile> file,
                           RecordCompression compression, uint64_t offset)
    : path_(std::move(path)), file_(std::move(file)), file_offset_(offset), offset_(offset) {
  if (compression != RecordCompression::kNone) {
    inflater_ = std::make_unique<Inflater>(compression);
  }
}

RecordReader::~RecordReader() = default;

Status RecordReader::Loss(absl::string_view what, uint64_t where) const {
  return absl::DataLossError(absl::StrCat("Records '", path_, "': ", what, " at ", where));
}

Status RecordReader::Truncated(uint64_t start) {
  is_cut_ = true;
  return Loss("truncated record", start);
}

// Adds at least one byte to buffer_, or none when the stream has ended.
Status RecordReader::FillOnce(uint64_t wanted) {
  const auto read_file = [this](uint64_t bytes, std::string* to) -> Status {
    const uint64_t left = file_->size() > file_offset_ ? file_->size() - file_offset_ : 0;
    const size_t n = static_cast<size_t>(std::min(left, bytes));
    const size_t old = to->size();
    to->resize(old + n);
    const Status status = file_->Read(file_offset_, n, to->data() + old);
    if (!status.ok()) {
      to->resize(old);
      return absl::IsOutOfRange(status) ? Loss("the file became shorter", file_offset_) : status;
    }
    file_offset_ += n;
    return absl::OkStatus();
  };
  if (inflater_ == nullptr) return read_file(std::max<uint64_t>(wanted, kChunk), &buffer_);

  Inflater& z = *inflater_;
  const size_t old = buffer_.size();
  while (buffer_.size() == old) {
    if (z.in_position == z.in.size()) {
      z.in.clear();
      z.in_position = 0;
      MR_RETURN_IF_ERROR(read_file(kChunk, &z.in));
      if (z.in.empty()) return absl::OkStatus();
    }
    if (z.ended) {  // more bytes follow: another stream
      inflateReset(&z.stream);
      z.ended = false;
    }
    buffer_.resize(old + kChunk);
    z.stream.next_in = ZlibBytes(z.in.data() + z.in_position);
    z.stream.avail_in = static_cast<uInt>(z.in.size() - z.in_position);
    z.stream.next_out = ZlibBytes(buffer_.data() + old);
    z.stream.avail_out = static_cast<uInt>(kChunk);
    const int result = inflate(&z.stream, Z_NO_FLUSH);
    z.in_position = z.in.size() - z.stream.avail_in;
    buffer_.resize(old + kChunk - z.stream.avail_out);
    z.ended = result == Z_STREAM_END;
    if (result == Z_MEM_ERROR) {
      return absl::ResourceExhaustedError(
          absl::StrCat("Records '", path_, "': no memory to decompress"));
    }
    if (result != Z_OK && result != Z_STREAM_END && result != Z_BUF_ERROR) {
      // What came before the error is still good; it shows again when that is used up.
      if (buffer_.size() > old) return absl::OkStatus();
      return Loss(absl::StrCat("corrupted compressed data (",
                               z.stream.msg == nullptr ? "zlib" : z.stream.msg, ")"),
                  offset_ + available());
    }
  }
  return absl::OkStatus();
}

StatusOr<bool> RecordReader::Fill(uint64_t n) {
  while (available() < n) {
    if (position_ > 0) {
      buffer_.erase(0, position_);
      position_ = 0;
    }
    const size_t before = available();
    MR_RETURN_IF_ERROR(FillOnce(n - before));
    if (available() == before) return false;
  }
  return true;
}

StatusOr<absl::string_view> RecordReader::ReadNext() {
  position_ += record_bytes_;
  offset_ += record_bytes_;
  record_bytes_ = 0;
  const uint64_t start = offset_;
  MR_ASSIGN_OR_RETURN(const bool has_header, Fill(kHeaderBytes));
  if (!has_header) {
    if (inflater_ != nullptr && !inflater_->ended && file_->size() > 0) {
      return Loss("truncated compressed data", start + available());
    }
    return absl::OutOfRangeError(absl::StrCat("Records '", path_, "': end of file at ", start));
  }
  const char* header = buffer_.data() + position_;
  const uint64_t length = DecodeFixed64(header);
  if (UnmaskCrc32c(DecodeFixed32(header + 8)) != Crc32c(absl::string_view(header, 8))) {
    return Loss("corrupted record", start);
  }
  // Before anything is allocated for it.
  if (inflater_ == nullptr &&
      (length > file_->size() || length + kHeaderBytes + kFooterBytes > file_->size() - start)) {
    return Truncated(start);
  }
  if (length > SIZE_MAX - kHeaderBytes - kFooterBytes) return Truncated(start);
  const uint64_t total = kHeaderBytes + length + kFooterBytes;
  MR_ASSIGN_OR_RETURN(const bool is_whole, Fill(total));
  if (!is_whole) return Truncated(start);
  const absl::string_view data(buffer_.data() + position_ + kHeaderBytes,
                               static_cast<size_t>(length));
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

}  // namespace millrace
