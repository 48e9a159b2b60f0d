// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_CORE_TABLE_READER_H_
#define MILLRACE_CORE_TABLE_READER_H_

// TableReader: a sorted map from keys to values in a file (LevelDB's table format): the index of
// a checkpoint, and whole checkpoints of the first version.
//
// The file is not trusted. Nothing is allocated from a size in it before that size was checked
// against the file; every block is verified once (checksum, structure, keys strictly ascending)
// before anything in it is used. A strict reader (the default) also demands what no checksum
// covers: the footer is exactly what a writer would write, and the blocks fill the file without
// gap or overlap, so that any changed byte is detected.
//
// Failure: DataLoss with the path and the offset of what is wrong; other codes are those of the
// file system.
//
// Thread-safety: Get and NewIterator from any thread; an Iterator from one at a time.
// Lifetime: an Iterator, and views from it, must not outlive the reader.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "core/file_system.h"
#include "core/mutex.h"
#include "core/status.h"

namespace millrace {

struct TableOptions {
  // Accepts footers with long varints or padding that is not zero, and gaps between blocks.
  bool lenient = false;
};

class TableReader {
 public:
  class Block;
  class Cursor;
  class Iterator;

  static StatusOr<std::unique_ptr<TableReader>> Open(FileSystem* fs, const std::string& path,
                                                     TableOptions options = {});
  // Of an open file; `path` is what messages call it.
  static StatusOr<std::unique_ptr<TableReader>> Open(std::unique_ptr<RandomAccessFile> file,
                                                     const std::string& path,
                                                     TableOptions options = {});
  ~TableReader();
  TableReader(const TableReader&) = delete;
  TableReader& operator=(const TableReader&) = delete;

  // nullopt: there is no such key.
  StatusOr<std::optional<std::string>> Get(absl::string_view key) const;

  std::unique_ptr<Iterator> NewIterator() const;

  // Has a data block been compressed? Reads all of them.
  StatusOr<bool> HasSnappyBlocks() const;

  const std::string& path() const { return path_; }

 private:
  struct Handle {
    uint64_t offset;
    uint64_t size;  // without type and checksum
  };

  TableReader(std::string path, TableOptions options, std::unique_ptr<RandomAccessFile> file);

  Status ReadFooter(Handle* metaindex, Handle* index);
  Status CheckLayout(Handle metaindex_handle, const Block& metaindex, Handle index_handle) const;
  StatusOr<Handle> DecodeHandle(absl::string_view value, uint64_t where) const;
  // The uncompressed contents; their checksum is right.
  StatusOr<std::string> ReadBlockBytes(Handle handle) const;
  StatusOr<std::shared_ptr<const Block>> ReadBlock(Handle handle) const;
  // The data block that the index entry under `cursor` refers to.
  StatusOr<std::shared_ptr<const Block>> DataBlock(const Cursor& cursor) const;
  Status Loss(uint64_t offset, absl::string_view what) const;

  const std::string path_;
  const TableOptions options_;
  const std::unique_ptr<RandomAccessFile> file_;
  uint64_t blocks_end_ = 0;  // where the footer begins
  uint64_t index_offset_ = 0;
  std::shared_ptr<const Block> index_;

  // Verified data blocks by offset, dropped together when they exceed a bound.
  mutable Mutex mu_;
  mutable absl::flat_hash_map<uint64_t, std::shared_ptr<const Block>> cache_ ABSL_GUARDED_BY(mu_);
  mutable uint64_t cache_bytes_ ABSL_GUARDED_BY(mu_) = 0;
};

// Walks the keys in ascending order. Starts nowhere: call a Seek first.
//
//   auto it = table->NewIterator();
//   for (it->SeekToFirst(); it->Valid(); it->Next()) Use(it->key(), it->value());
//   MR_RETURN_IF_ERROR(it->status());
class TableReader::Iterator {
 public:
  explicit Iterator(const TableReader* table);
  ~Iterator();

  void SeekToFirst();
  // To the first key >= `key`.
  void Seek(absl::string_view key);
  void Next();  // only when Valid()

  // False at the end and after an error.
  bool Valid() const;
  // Valid until the iterator moves.
  absl::string_view key() const;
  absl::string_view value() const;
  const Status& status() const { return status_; }

 private:
  // Enters the block under index_cursor_, at its first key >= `lower`, or (not inclusive) at its
  // first key, which must be > `lower`.
  void EnterBlock(absl::string_view lower, bool inclusive);
  void LeaveFinishedBlocks();

  const TableReader* const table_;
  Status status_;
  std::unique_ptr<Cursor> index_cursor_;
  std::unique_ptr<Cursor> cursor_;  // null before a Seek, at the end and after an error
};

}  // namespace millrace

#endif  // MILLRACE_CORE_TABLE_READER_H_
