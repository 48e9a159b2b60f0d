// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_CORE_RECORD_H_
#define MILLRACE_CORE_RECORD_H_

// Records: a file of byte strings, each with its length and checksums (TFRecord, event files).
//
//   length (8 bytes) · masked crc of the length (4) · data · masked crc of the data (4)
//
// A compressed file is one ZLIB or GZIP stream around all records; offsets in messages are
// those of the uncompressed stream.
//
// Failure of reading:
//   OutOfRange  the end: after a record, or inside the 12 bytes before one (a writer that was
//               stopped; what it had not written is not missed)
//   DataLoss    "truncated record at N": N is where the record begins
//               "corrupted record at N": N is where the record (its length is wrong) or its
//               data begins
// Sizes in the file are trusted only after their checksum, and never for more memory than there
// are bytes in the file.
//
// Thread-safety: one thread at a time.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/buffer.h"
#include "core/byte_reader.h"
#include "core/file_system.h"
#include "core/status.h"

namespace millrace {

using RecordCompression = Compression;

// "" (none), "ZLIB" or "GZIP", as in TensorFlow's attributes. InvalidArgument otherwise.
StatusOr<RecordCompression> ParseRecordCompression(absl::string_view text);

class RecordWriter {
 public:
  // Creates or truncates `path`.
  static StatusOr<std::unique_ptr<RecordWriter>> Open(
      FileSystem* fs, const std::string& path,
      RecordCompression compression = RecordCompression::kNone);
  // Writes to a file that is open already (an event file that is appended to).
  explicit RecordWriter(std::unique_ptr<WritableFile> file,
                        RecordCompression compression = RecordCompression::kNone);
  ~RecordWriter();  // closes, ignoring errors

  // After an error every further call fails with it.
  Status Write(absl::string_view record);
  // Everything written so far can be read by others (and, with Sync, survives a power cut).
  Status Flush();
  Status Sync();
  Status Close();

 private:
  struct Deflater;

  Status Append(absl::string_view bytes);
  Status Deflate(absl::string_view bytes, int flush);
  Status Keep(Status status);

  std::unique_ptr<WritableFile> file_;  // null when closed
  std::unique_ptr<Deflater> deflater_;  // null without compression
  Status error_;
};

class RecordReader {
 public:
  // Reading begins at `offset` (of an uncompressed file), which must be where a record begins.
  static StatusOr<std::unique_ptr<RecordReader>> Open(
      FileSystem* fs, const std::string& path,
      RecordCompression compression = RecordCompression::kNone, uint64_t offset = 0);
  ~RecordReader();

  // The next record; valid until the next call, or as long as somebody holds the owner() of this
  // moment. The end and errors repeat.
  StatusOr<absl::string_view> Next();
  const BufferRef& owner() const { return bytes_->owner(); }
  // Up to `max_records`, of which only the first may need reading: those that are in memory
  // already. All are valid as long as owner() is held. `records` is overwritten.
  Status NextInMemory(size_t max_records, std::vector<absl::string_view>* records);

  // After a DataLoss: the file ends inside of the record, which may come to be whole.
  bool is_cut() const { return is_cut_; }

  // Where the next record begins: a later reader of the grown file may go on here.
  uint64_t offset() const { return bytes_->offset() + record_bytes_; }

 private:
  explicit RecordReader(std::string path, std::unique_ptr<ByteReader> bytes);

  StatusOr<absl::string_view> ReadNext();
  Status Truncated(uint64_t start);
  Status Loss(absl::string_view what, uint64_t where) const;

  const std::string path_;
  const std::unique_ptr<ByteReader> bytes_;
  size_t record_bytes_ = 0;  // of the record last returned, not consumed yet
  bool is_cut_ = false;
  Status end_;  // not OK: nothing more comes
};

}  // namespace millrace

#endif  // MILLRACE_CORE_RECORD_H_
