// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_CORE_BYTE_READER_H_
#define MILLRACE_CORE_BYTE_READER_H_

// ByteReader: the bytes of a file from front to back, plain or decompressed, seen in place.
//
//   while (*reader->Fill(n)) { Use(reader->unread().substr(0, n)); reader->Consume(n); }
//
// A compressed file is one or several ZLIB or GZIP streams in a row; offsets are those of the
// uncompressed bytes.
//
// What unread() shows stays where it is until the next Fill; for longer, as long as somebody holds
// the owner() of that moment: then the reader goes on in other memory.
//
// Failure: DataLoss "<label>: corrupted compressed data (<reason>) at <offset>", "truncated
// compressed data at", "the file became shorter at"; what came before it can be read.
// ResourceExhausted without memory, and where more than kMostInflated bytes of a compressed file
// are wanted at once. Memory is taken for bytes that are there, never for a size that the caller
// read somewhere.
//
// Thread-safety: one thread at a time; memory of owner() from any.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "core/buffer.h"
#include "core/compression.h"  // IWYU pragma: export
#include "core/file_system.h"
#include "core/status.h"

namespace millrace {

// The argument of zlib's functions for it.
int ZlibWindowBits(Compression compression);

class ByteReader {
 public:
  static constexpr size_t kDefaultChunk = size_t{256} << 10;
  // In one piece, of a compressed file: a record or a line. What a few bytes could otherwise become
  // without bound.
  static constexpr uint64_t kMostInflated = uint64_t{256} << 20;

  // Reading begins at `offset`: of the file's bytes, so it is 0 for a compressed one
  // (InvalidArgument). `label` begins the messages: "Records 'a/b'". About `chunk` bytes are read
  // at a time.
  static StatusOr<std::unique_ptr<ByteReader>> Open(FileSystem* fs, const std::string& path,
                                                    absl::string_view label,
                                                    Compression compression, uint64_t offset = 0,
                                                    size_t chunk = kDefaultChunk);
  ~ByteReader();

  // Makes at least `n` bytes unread, unless the bytes end before: false, and all that is left is
  // unread. An error after which less than `n` are there repeats.
  StatusOr<bool> Fill(uint64_t n);
  absl::string_view unread() const { return absl::string_view(data() + begin_, end_ - begin_); }
  // The first `n` of unread(), no more than there are.
  void Consume(size_t n) {
    begin_ += n;
    offset_ += n;
  }
  // Keeps the memory of unread(); null when there is none.
  const BufferRef& owner() const { return buffer_; }

  // Of unread().front() in the uncompressed bytes.
  uint64_t offset() const { return offset_; }
  // OK when the bytes end where the file does; DataLoss when a compressed stream was cut.
  // Meaningful after Fill returned false.
  Status CheckEnd() const;
  // How many bytes there can be at most from the front of unread() on; compressed: not known,
  // UINT64_MAX.
  uint64_t BytesLeft() const;
  bool is_compressed() const { return inflater_ != nullptr; }

 private:
  struct Inflater;

  ByteReader(std::string label, std::unique_ptr<RandomAccessFile> file, uint64_t offset,
             size_t chunk);
  char* data() const { return buffer_ ? static_cast<char*>(buffer_->data()) : nullptr; }
  // Room for `n` bytes behind end_; what is unread is kept.
  Status MakeRoom(size_t n);
  // Adds bytes behind end_, or none when there are no more.
  Status Add(uint64_t wanted);
  Status AddInflated();
  Status ReadFile(size_t n, char* out);
  Status Loss(absl::string_view what, uint64_t where) const;
  uint64_t FileLeft() const;

  const std::string label_;
  const std::unique_ptr<RandomAccessFile> file_;
  const size_t chunk_;
  std::unique_ptr<Inflater> inflater_;  // null without compression
  uint64_t file_offset_;                // of the next byte to read from the file
  BufferRef buffer_;
  size_t begin_ = 0, end_ = 0;  // of the unread bytes in it
  uint64_t offset_;             // of the byte at begin_
  Status error_;                // comes after the unread bytes
};

}  // namespace millrace

#endif  // MILLRACE_CORE_BYTE_READER_H_
