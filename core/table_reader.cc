// SPDX-License-Identifier: Apache-2.0
#include "core/table_reader.h"

#include <snappy.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "core/coding.h"
#include "core/crc32c.h"

namespace millrace {
namespace {

constexpr uint64_t kMagic = 0xdb4775248b80fb57ull;
constexpr size_t kFooterBytes = 48;
constexpr size_t kPaddedHandles = 40;
constexpr size_t kTrailerBytes = 5;  // type and checksum
constexpr uint64_t kCacheBytes = uint64_t{64} << 20;
// Snappy's densest code makes 64 bytes of 3.
constexpr uint64_t kMaxSnappyRatio = 32;

enum BlockType : unsigned char { kPlain = 0, kSnappy = 1 };

struct Entry {
  uint32_t shared;
  absl::string_view suffix;
  absl::string_view value;
};

// Reads the entry at the front of `*in`.
bool ReadEntry(absl::string_view* in, Entry* entry) {
  uint32_t suffix_size, value_size;
  if (!GetVarint32(in, &entry->shared) || !GetVarint32(in, &suffix_size) ||
      !GetVarint32(in, &value_size)) {
    return false;
  }
  if (uint64_t{suffix_size} + value_size > in->size()) return false;
  entry->suffix = in->substr(0, suffix_size);
  entry->value = in->substr(suffix_size, value_size);
  in->remove_prefix(size_t{suffix_size} + value_size);
  return true;
}

}  // namespace

// Verified entries: {shared, suffix length, value length, suffix, value}..., offsets of those
// entries that share nothing (restarts), their number.
class TableReader::Block {
 public:
  // Empty: good. Otherwise what is wrong; `*where` is its offset in `contents`.
  static std::string Verify(absl::string_view contents, size_t* where);

  // `contents` were verified.
  explicit Block(std::string contents) : contents_(std::move(contents)) {
    num_restarts_ = DecodeFixed32(contents_.data() + contents_.size() - 4);
    entries_end_ = contents_.size() - 4 - size_t{4} * num_restarts_;
  }

  absl::string_view entries() const { return absl::string_view(contents_).substr(0, entries_end_); }
  uint32_t num_restarts() const { return num_restarts_; }
  size_t restart(uint32_t i) const {
    return DecodeFixed32(contents_.data() + entries_end_ + size_t{4} * i);
  }
  size_t size() const { return contents_.size(); }

 private:
  const std::string contents_;
  uint32_t num_restarts_;
  size_t entries_end_;
};

std::string TableReader::Block::Verify(absl::string_view contents, size_t* where) {
  *where = contents.size();
  if (contents.size() < 8) return absl::StrCat("has no restarts in ", contents.size(), " bytes");
  *where = contents.size() - 4;
  const uint64_t num_restarts = DecodeFixed32(contents.data() + *where);
  if (num_restarts == 0 || num_restarts > (contents.size() - 4) / 4) {
    return absl::StrCat("has ", num_restarts, " restarts in ", contents.size(), " bytes");
  }
  const size_t entries_end = contents.size() - 4 - 4 * static_cast<size_t>(num_restarts);
  const absl::string_view entries = contents.substr(0, entries_end);
  const auto restart = [&](uint64_t i) {
    return DecodeFixed32(contents.data() + entries_end + 4 * static_cast<size_t>(i));
  };
  if (entries.empty() && num_restarts == 1 && restart(0) == 0) return "";

  absl::string_view in = entries;
  std::string key;
  uint64_t seen_restarts = 0;
  bool first = true;
  while (!in.empty()) {
    *where = entries.size() - in.size();
    const bool is_restart = seen_restarts < num_restarts && restart(seen_restarts) == *where;
    Entry entry;
    if (!ReadEntry(&in, &entry)) return "has an entry that does not fit";
    if (entry.shared > key.size()) return "has a key that shares more than the key before has";
    if (is_restart) {
      if (entry.shared != 0) return "has a restart at a key that shares bytes";
      ++seen_restarts;
    } else if (first) {
      return "has no restart at its first key";
    }
    // The shared bytes are equal.
    if (!first && absl::string_view(key).substr(entry.shared) >= entry.suffix) {
      return "has keys that are not ascending";
    }
    first = false;
    key.resize(entry.shared);
    key.append(entry.suffix.data(), entry.suffix.size());
  }
  *where = entries_end;
  if (seen_restarts != num_restarts) return "has a restart where no key begins";
  return "";
}

// One place in a verified block.
class TableReader::Cursor {
 public:
  explicit Cursor(std::shared_ptr<const Block> block) : block_(std::move(block)) {}

  bool Valid() const { return valid_; }
  absl::string_view key() const { return key_; }
  absl::string_view value() const { return value_; }
  const Block* block() const { return block_.get(); }

  void SeekToFirst() { SeekToRestart(0); }

  void Next() {
    if (rest_.empty()) {
      valid_ = false;
      return;
    }
    Entry entry;
    ReadEntry(&rest_, &entry);
    key_.resize(entry.shared);
    key_.append(entry.suffix.data(), entry.suffix.size());
    value_ = entry.value;
    valid_ = true;
  }

  // To the first key >= `key`.
  void Seek(absl::string_view key) {
    uint32_t low = 0, high = block_->num_restarts() - 1;  // the last restart whose key is < `key`
    while (low < high) {
      const uint32_t middle = low + (high - low + 1) / 2;
      absl::string_view in = block_->entries().substr(block_->restart(middle));
      Entry entry;
      ReadEntry(&in, &entry);
      if (entry.suffix < key) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    for (SeekToRestart(low); valid_ && absl::string_view(key_) < key;) Next();
  }

 private:
  void SeekToRestart(uint32_t i) {
    rest_ = block_->entries().substr(block_->restart(i));
    key_.clear();
    Next();
  }

  const std::shared_ptr<const Block> block_;
  absl::string_view rest_;  // entries after this one
  bool valid_ = false;
  std::string key_;
  absl::string_view value_;
};

TableReader::TableReader(std::string path, TableOptions options,
                         std::unique_ptr<RandomAccessFile> file)
    : path_(std::move(path)), options_(options), file_(std::move(file)) {}

TableReader::~TableReader() = default;

Status TableReader::Loss(uint64_t offset, absl::string_view what) const {
  return absl::DataLossError(absl::StrCat("Table '", path_, "': at offset ", offset, ": ", what));
}

StatusOr<std::unique_ptr<TableReader>> TableReader::Open(FileSystem* fs, const std::string& path,
                                                         TableOptions options) {
  MR_ASSIGN_OR_RETURN(std::unique_ptr<RandomAccessFile> file, fs->NewRandomAccessFile(path));
  return Open(std::move(file), path, options);
}

StatusOr<std::unique_ptr<TableReader>> TableReader::Open(std::unique_ptr<RandomAccessFile> file,
                                                         const std::string& path,
                                                         TableOptions options) {
  std::unique_ptr<TableReader> table(new TableReader(path, options, std::move(file)));
  Handle metaindex_handle, index_handle;
  MR_RETURN_IF_ERROR(table->ReadFooter(&metaindex_handle, &index_handle));
  MR_ASSIGN_OR_RETURN(const std::shared_ptr<const Block> metaindex,
                      table->ReadBlock(metaindex_handle));
  MR_ASSIGN_OR_RETURN(table->index_, table->ReadBlock(index_handle));
  table->index_offset_ = index_handle.offset;
  MR_RETURN_IF_ERROR(table->CheckLayout(metaindex_handle, *metaindex, index_handle));
  return table;
}

Status TableReader::ReadFooter(Handle* metaindex, Handle* index) {
  if (file_->size() < kFooterBytes) {
    return Loss(0, absl::StrCat("a table must have a footer of ", kFooterBytes,
                                " bytes, got a file of ", file_->size()));
  }
  blocks_end_ = file_->size() - kFooterBytes;
  char footer[kFooterBytes];
  const Status read = file_->Read(blocks_end_, kFooterBytes, footer);
  if (!read.ok()) return absl::IsOutOfRange(read) ? Loss(blocks_end_, read.message()) : read;
  const uint64_t magic = DecodeFixed64(footer + kPaddedHandles);
  if (magic != kMagic) {
    return Loss(blocks_end_ + kPaddedHandles,
                absl::StrFormat("the footer must end with %016x, got %016x", kMagic, magic));
  }
  absl::string_view in(footer, kPaddedHandles);
  for (Handle* handle : {metaindex, index}) {
    if (!GetVarint64(&in, &handle->offset) || !GetVarint64(&in, &handle->size)) {
      return Loss(blocks_end_, "the footer holds no two block handles");
    }
  }
  if (options_.lenient) return absl::OkStatus();
  std::string again;
  for (const Handle* handle : {metaindex, index}) {
    PutVarint64(&again, handle->offset);
    PutVarint64(&again, handle->size);
  }
  again.resize(kPaddedHandles, '\0');
  PutFixed64(&again, kMagic);
  if (again != absl::string_view(footer, kFooterBytes)) {
    return Loss(blocks_end_, "the footer differs from what its handles encode to");
  }
  return absl::OkStatus();
}

StatusOr<TableReader::Handle> TableReader::DecodeHandle(absl::string_view value,
                                                        uint64_t where) const {
  Handle handle;
  if (!GetVarint64(&value, &handle.offset) || !GetVarint64(&value, &handle.size) ||
      !value.empty()) {
    return Loss(where, "an entry holds no block handle");
  }
  return handle;
}

// Strict: data blocks in order, then what the metaindex names, metaindex, index: no byte between.
Status TableReader::CheckLayout(Handle metaindex_handle, const Block& metaindex,
                                Handle index_handle) const {
  std::vector<Handle> handles;
  const auto add_entries = [&](const Block& block, uint64_t where) -> Status {
    // Not owned by the pointer: the block outlives the cursor.
    Cursor cursor(std::shared_ptr<const Block>(&block, [](const Block*) {}));
    for (cursor.SeekToFirst(); cursor.Valid(); cursor.Next()) {
      MR_ASSIGN_OR_RETURN(handles.emplace_back(), DecodeHandle(cursor.value(), where));
    }
    return absl::OkStatus();
  };
  MR_RETURN_IF_ERROR(add_entries(*index_, index_handle.offset));
  if (options_.lenient) return absl::OkStatus();
  const size_t num_data_blocks = handles.size();
  MR_RETURN_IF_ERROR(add_entries(metaindex, metaindex_handle.offset));
  for (size_t i = num_data_blocks; i < handles.size(); ++i) {
    MR_RETURN_IF_ERROR(ReadBlockBytes(handles[i]).status());
  }
  handles.push_back(metaindex_handle);
  handles.push_back(index_handle);
  uint64_t end = 0;
  for (const Handle& handle : handles) {
    if (handle.offset != end || handle.size > blocks_end_ - end ||
        kTrailerBytes > blocks_end_ - end - handle.size) {
      return Loss(end, absl::StrCat("a block must begin here, got one of ", handle.size,
                                    " bytes at ", handle.offset));
    }
    end += handle.size + kTrailerBytes;
  }
  if (end != blocks_end_) {
    return Loss(end, absl::StrCat("the footer must begin here, got it at ", blocks_end_));
  }
  return absl::OkStatus();
}

StatusOr<std::string> TableReader::ReadBlockBytes(Handle handle) const {
  if (handle.offset > blocks_end_ || handle.size > blocks_end_ - handle.offset ||
      kTrailerBytes > blocks_end_ - handle.offset - handle.size) {
    return Loss(handle.offset,
                absl::StrCat("a block of ", handle.size, " bytes must end before ", blocks_end_));
  }
  std::string bytes(static_cast<size_t>(handle.size) + kTrailerBytes, '\0');
  const Status read = file_->Read(handle.offset, bytes.size(), bytes.data());
  if (!read.ok()) return absl::IsOutOfRange(read) ? Loss(handle.offset, read.message()) : read;
  const size_t size = static_cast<size_t>(handle.size);
  const uint32_t stored = UnmaskCrc32c(DecodeFixed32(bytes.data() + size + 1));
  const uint32_t computed = Crc32c(absl::string_view(bytes).substr(0, size + 1));
  if (stored != computed) {
    return Loss(handle.offset,
                absl::StrFormat("block of %d bytes fails its checksum (stored %08x, computed %08x)",
                                handle.size, stored, computed));
  }
  const unsigned char type = static_cast<unsigned char>(bytes[size]);
  bytes.resize(size);
  if (type == kPlain) return bytes;
  if (type != kSnappy) {
    return Loss(handle.offset, absl::StrCat("the compression of a block must be 0 or 1 (snappy), "
                                            "got ",
                                            type));
  }
  size_t plain_size = 0;
  if (!snappy::GetUncompressedLength(bytes.data(), size, &plain_size) ||
      plain_size > kMaxSnappyRatio * (uint64_t{size} + 1)) {
    return Loss(handle.offset,
                absl::StrCat("snappy data of ", size, " bytes cannot make ", plain_size, " bytes"));
  }
  std::string plain(plain_size, '\0');
  if (!snappy::RawUncompress(bytes.data(), size, plain.data())) {
    return Loss(handle.offset, "a block holds no snappy data");
  }
  return plain;
}

StatusOr<std::shared_ptr<const TableReader::Block>> TableReader::ReadBlock(Handle handle) const {
  MR_ASSIGN_OR_RETURN(std::string contents, ReadBlockBytes(handle));
  size_t where;
  const std::string problem = Block::Verify(contents, &where);
  if (!problem.empty()) {
    return Loss(handle.offset, absl::StrCat("block ", problem, " (byte ", where, " of it)"));
  }
  return std::make_shared<const Block>(std::move(contents));
}

StatusOr<std::shared_ptr<const TableReader::Block>> TableReader::DataBlock(
    const Cursor& cursor) const {
  MR_ASSIGN_OR_RETURN(const Handle handle, DecodeHandle(cursor.value(), index_offset_));
  {
    MutexLock lock(&mu_);
    auto it = cache_.find(handle.offset);
    if (it != cache_.end()) return it->second;
  }
  MR_ASSIGN_OR_RETURN(std::shared_ptr<const Block> block, ReadBlock(handle));
  // No key may be beyond what the index says of this block.
  Cursor last(block);
  last.Seek(cursor.key());
  if (last.Valid()) {
    if (last.key() == cursor.key()) last.Next();
    if (last.Valid()) return Loss(handle.offset, "block has a key beyond its index entry");
  }
  MutexLock lock(&mu_);
  if (cache_bytes_ + block->size() > kCacheBytes) {
    cache_.clear();
    cache_bytes_ = 0;
  }
  if (cache_.emplace(handle.offset, block).second) cache_bytes_ += block->size();
  return block;
}

StatusOr<std::optional<std::string>> TableReader::Get(absl::string_view key) const {
  Cursor index(index_);
  index.Seek(key);
  if (!index.Valid()) return std::optional<std::string>();
  MR_ASSIGN_OR_RETURN(std::shared_ptr<const Block> block, DataBlock(index));
  Cursor cursor(std::move(block));
  cursor.Seek(key);
  if (!cursor.Valid() || cursor.key() != key) return std::optional<std::string>();
  return std::optional<std::string>(cursor.value());
}

StatusOr<bool> TableReader::HasSnappyBlocks() const {
  Cursor index(index_);
  for (index.SeekToFirst(); index.Valid(); index.Next()) {
    MR_ASSIGN_OR_RETURN(const Handle handle, DecodeHandle(index.value(), index_offset_));
    MR_RETURN_IF_ERROR(ReadBlockBytes(handle).status());
    char type = kPlain;
    MR_RETURN_IF_ERROR(file_->Read(handle.offset + handle.size, 1, &type));
    if (type == kSnappy) return true;
  }
  return false;
}

std::unique_ptr<TableReader::Iterator> TableReader::NewIterator() const {
  return std::make_unique<Iterator>(this);
}

TableReader::Iterator::Iterator(const TableReader* table)
    : table_(table), index_cursor_(std::make_unique<Cursor>(table->index_)) {}

TableReader::Iterator::~Iterator() = default;

void TableReader::Iterator::EnterBlock(absl::string_view lower, bool inclusive) {
  cursor_ = nullptr;
  if (!index_cursor_->Valid()) return;
  StatusOr<std::shared_ptr<const Block>> block = table_->DataBlock(*index_cursor_);
  if (!block.ok()) {
    status_ = block.status();
    return;
  }
  cursor_ = std::make_unique<Cursor>(*std::move(block));
  if (inclusive) {
    cursor_->Seek(lower);
    return;
  }
  cursor_->SeekToFirst();
  if (cursor_->Valid() && cursor_->key() <= lower) {
    status_ =
        table_->Loss(table_->index_offset_, "a block has a key that the block before should have");
    cursor_ = nullptr;
  }
}

void TableReader::Iterator::LeaveFinishedBlocks() {
  while (cursor_ != nullptr && !cursor_->Valid()) {
    const std::string bound(index_cursor_->key());
    index_cursor_->Next();
    EnterBlock(bound, /*inclusive=*/false);
  }
}

void TableReader::Iterator::SeekToFirst() { Seek(""); }

void TableReader::Iterator::Seek(absl::string_view key) {
  status_ = absl::OkStatus();
  const std::string copy(key);  // it may be our own
  index_cursor_->Seek(copy);
  EnterBlock(copy, /*inclusive=*/true);
  LeaveFinishedBlocks();
}

void TableReader::Iterator::Next() {
  cursor_->Next();
  LeaveFinishedBlocks();
}

bool TableReader::Iterator::Valid() const { return cursor_ != nullptr && cursor_->Valid(); }
absl::string_view TableReader::Iterator::key() const { return cursor_->key(); }
absl::string_view TableReader::Iterator::value() const { return cursor_->value(); }

}  // namespace millrace
