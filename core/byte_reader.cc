// SPDX-License-Identifier: Apache-2.0
#include "core/byte_reader.h"

#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/allocator.h"

namespace millrace {
namespace {

constexpr int kGzipWindowBits = 16 + MAX_WBITS;
// A chunk is asked of zlib at once, whose sizes have 32 bits; a larger one would help nobody.
constexpr size_t kLeastChunk = 1024, kMostChunk = size_t{64} << 20;

// zlib's interface lacks const.
Bytef* ZlibBytes(const char* bytes) { return reinterpret_cast<Bytef*>(const_cast<char*>(bytes)); }

}  // namespace

StatusOr<Compression> ParseCompression(absl::string_view where, absl::string_view text) {
  if (text.empty() || text == "NONE") return Compression::kNone;
  if (text == "ZLIB") return Compression::kZlib;
  if (text == "GZIP") return Compression::kGzip;
  return absl::InvalidArgumentError(
      absl::StrCat(where, ": compression_type must be '', 'ZLIB' or 'GZIP', got '", text, "'"));
}

int ZlibWindowBits(Compression compression) {
  return compression == Compression::kGzip ? kGzipWindowBits : MAX_WBITS;
}

struct ByteReader::Inflater {
  z_stream stream{};
  bool ready = false;
  bool ended = false;  // at the end mark of a stream (a file may hold several in a row)
  std::string in;
  size_t in_position = 0;

  explicit Inflater(Compression compression) {
    ready = inflateInit2(&stream, ZlibWindowBits(compression)) == Z_OK;
  }
  ~Inflater() {
    if (ready) inflateEnd(&stream);
  }
};

StatusOr<std::unique_ptr<ByteReader>> ByteReader::Open(FileSystem* fs, const std::string& path,
                                                       absl::string_view label,
                                                       Compression compression, uint64_t offset,
                                                       size_t chunk) {
  if (compression != Compression::kNone && offset != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(label, ": a compressed file must be read from offset 0, got ", offset));
  }
  MR_ASSIGN_OR_RETURN(std::unique_ptr<RandomAccessFile> file, fs->NewRandomAccessFile(path));
  std::unique_ptr<ByteReader> reader(new ByteReader(std::string(label), std::move(file), offset,
                                                    std::clamp(chunk, kLeastChunk, kMostChunk)));
  if (compression != Compression::kNone) {
    reader->inflater_ = std::make_unique<Inflater>(compression);
    if (!reader->inflater_->ready) {
      return absl::ResourceExhaustedError(absl::StrCat(label, ": no memory to decompress"));
    }
  }
  return reader;
}

ByteReader::ByteReader(std::string label, std::unique_ptr<RandomAccessFile> file, uint64_t offset,
                       size_t chunk)
    : label_(std::move(label)),
      file_(std::move(file)),
      chunk_(chunk),
      file_offset_(offset),
      offset_(offset) {}

ByteReader::~ByteReader() = default;

Status ByteReader::Loss(absl::string_view what, uint64_t where) const {
  return absl::DataLossError(absl::StrCat(label_, ": ", what, " at ", where));
}

uint64_t ByteReader::FileLeft() const {
  return file_->size() > file_offset_ ? file_->size() - file_offset_ : 0;
}

uint64_t ByteReader::BytesLeft() const {
  return is_compressed() ? UINT64_MAX : end_ - begin_ + FileLeft();
}

Status ByteReader::CheckEnd() const {
  MR_RETURN_IF_ERROR(error_);
  if (inflater_ != nullptr && !inflater_->ended && file_->size() > 0) {
    return Loss("truncated compressed data", offset_ + (end_ - begin_));
  }
  return absl::OkStatus();
}

Status ByteReader::ReadFile(size_t n, char* out) {
  const Status status = file_->Read(file_offset_, n, out);
  if (absl::IsOutOfRange(status)) return Loss("the file became shorter", file_offset_);
  MR_RETURN_IF_ERROR(status);
  file_offset_ += n;
  return absl::OkStatus();
}

Status ByteReader::MakeRoom(size_t n) {
  const size_t unread = end_ - begin_;
  const bool ours = buffer_ && buffer_->RefCountIsOne();
  if (ours && buffer_->size() - end_ >= n) return absl::OkStatus();
  if (ours && buffer_->size() - unread >= n) {
    std::memmove(data(), data() + begin_, unread);
  } else {
    // Twice, so that a long record is not copied for each chunk; some more than needed, so that the
    // next rests fit.
    BufferRef larger =
        Buffer::Allocate(DefaultAllocator(), std::max(unread + n + n / 8, 2 * unread));
    if (!larger) {
      return absl::ResourceExhaustedError(
          absl::StrCat(label_, ": no memory for ", unread + n, " bytes"));
    }
    if (unread > 0) std::memcpy(larger->data(), data() + begin_, unread);
    buffer_ = std::move(larger);
  }
  begin_ = 0;
  end_ = unread;
  return absl::OkStatus();
}

Status ByteReader::Add(uint64_t wanted) {
  if (inflater_ != nullptr) return AddInflated();
  const size_t n =
      static_cast<size_t>(std::min<uint64_t>(FileLeft(), std::max<uint64_t>(wanted, chunk_)));
  if (n == 0) return absl::OkStatus();
  MR_RETURN_IF_ERROR(MakeRoom(n));
  MR_RETURN_IF_ERROR(ReadFile(n, data() + end_));
  end_ += n;
  return absl::OkStatus();
}

Status ByteReader::AddInflated() {
  Inflater& z = *inflater_;
  const size_t before = end_ - begin_;
  while (end_ - begin_ == before) {
    if (z.in_position == z.in.size()) {
      const size_t n = static_cast<size_t>(std::min<uint64_t>(FileLeft(), chunk_));
      z.in.resize(n);
      z.in_position = 0;
      if (n == 0) return absl::OkStatus();
      if (const Status status = ReadFile(n, z.in.data()); !status.ok()) {
        z.in.clear();
        return status;
      }
    }
    if (z.ended) {  // more bytes follow: another stream
      inflateReset(&z.stream);
      z.ended = false;
    }
    MR_RETURN_IF_ERROR(MakeRoom(chunk_));
    z.stream.next_in = ZlibBytes(z.in.data() + z.in_position);
    z.stream.avail_in = static_cast<uInt>(z.in.size() - z.in_position);
    z.stream.next_out = ZlibBytes(data() + end_);
    z.stream.avail_out = static_cast<uInt>(chunk_);
    const int result = inflate(&z.stream, Z_NO_FLUSH);
    z.in_position = z.in.size() - z.stream.avail_in;
    end_ += chunk_ - z.stream.avail_out;
    z.ended = result == Z_STREAM_END;
    if (result == Z_MEM_ERROR) {
      return absl::ResourceExhaustedError(absl::StrCat(label_, ": no memory to decompress"));
    }
    if (result != Z_OK && result != Z_STREAM_END && result != Z_BUF_ERROR) {
      return Loss(absl::StrCat("corrupted compressed data (",
                               z.stream.msg == nullptr ? "zlib" : z.stream.msg, ")"),
                  offset_ + (end_ - begin_));
    }
  }
  return absl::OkStatus();
}

StatusOr<bool> ByteReader::Fill(uint64_t n) {
  while (end_ - begin_ < n) {
    MR_RETURN_IF_ERROR(error_);
    const size_t before = end_ - begin_;
    if (is_compressed() && before >= kMostInflated) {
      error_ = absl::ResourceExhaustedError(
          absl::StrCat(label_, ": what lies in one piece must have at most ", kMostInflated,
                       " bytes when it is decompressed, got more at ", offset_));
      continue;
    }
    // What came together with an error is still good.
    error_ = Add(n - before);
    if (error_.ok() && end_ - begin_ == before) return false;
  }
  return true;
}

}  // namespace millrace
