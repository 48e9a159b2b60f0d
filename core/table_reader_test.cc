// SPDX-License-Identifier: Apache-2.0
#include "core/table_reader.h"

#include <filesystem>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "core/coding.h"
#include "core/crc32c.h"
#include "core/testing/shared_data.h"
#include "gtest/gtest.h"
#include "leveldb/env.h"
#include "leveldb/options.h"
#include "leveldb/table_builder.h"

namespace millrace {
namespace {

using Map = std::map<std::string, std::string>;

std::string TestPath() {
  return JoinPath(
      testing::TempDir(),
      absl::StrCat("table_", testing::UnitTest::GetInstance()->current_test_info()->name()));
}

// A file in memory: thousands of damaged ones are cheap.
class BytesFile final : public RandomAccessFile {
 public:
  explicit BytesFile(absl::string_view bytes) : bytes_(bytes) {}
  uint64_t size() const override { return bytes_.size(); }
  Status Read(uint64_t offset, size_t n, char* out) const override {
    if (offset > bytes_.size() || n > bytes_.size() - offset) {
      return absl::OutOfRangeError("the bytes end before");
    }
    bytes_.copy(out, n, static_cast<size_t>(offset));
    return absl::OkStatus();
  }

 private:
  const std::string bytes_;
};

std::string ReadBytes(const std::string& path) {
  auto bytes = ReadFileToString(FileSystem::Posix(), path);
  EXPECT_EQ(bytes.status(), absl::OkStatus());
  return bytes.ok() ? *bytes : "";
}

// Written by LevelDB itself.
std::string WriteTable(const Map& map, size_t block_size, bool snappy) {
  const std::string path = TestPath();
  leveldb::WritableFile* file = nullptr;
  EXPECT_TRUE(leveldb::Env::Default()->NewWritableFile(path, &file).ok());
  leveldb::Options options;
  options.block_size = block_size;
  options.compression = snappy ? leveldb::kSnappyCompression : leveldb::kNoCompression;
  leveldb::TableBuilder builder(options, file);
  for (const auto& [key, value] : map) builder.Add(key, value);
  EXPECT_TRUE(builder.Finish().ok());
  EXPECT_TRUE(file->Close().ok());
  delete file;
  return path;
}

// Everything in a table; the first error, with what came before it.
Status ReadAll(const StatusOr<std::unique_ptr<TableReader>>& table, Map* map) {
  map->clear();
  if (!table.ok()) return table.status();
  auto it = (*table)->NewIterator();
  std::string last;
  for (it->SeekToFirst(); it->Valid(); it->Next()) {
    EXPECT_TRUE(map->empty() || absl::string_view(last) < it->key());
    last = std::string(it->key());
    (*map)[last] = std::string(it->value());
  }
  return it->status();
}

Status ReadTable(const std::string& path, Map* map, TableOptions options = {}) {
  return ReadAll(TableReader::Open(FileSystem::Posix(), path, options), map);
}

Status ReadBytesAsTable(absl::string_view bytes, Map* map, TableOptions options = {}) {
  return ReadAll(TableReader::Open(std::make_unique<BytesFile>(bytes), "bytes.index", options),
                 map);
}

Map SmallMap() {
  return {{"", "header"},           {"dense/bias", std::string("\0\1\2", 3)},
          {"dense/kernel", "kkkk"}, {"dense/kernel/Adam", ""},
          {"global_step", "1000"},  {std::string("\xff\0", 2), std::string(40, 'z')}};
}

Map LargeMap() {
  Map map;
  for (int i = 0; i < 3000; ++i) {
    map[absl::StrCat("scope_", i % 7, "/variable_", i)] =
        std::string(static_cast<size_t>(i % 97), static_cast<char>('a' + i % 26));
  }
  return map;
}

TEST(TableReaderTest, TellsWhetherBlocksAreCompressed) {
  for (const bool snappy : {false, true}) {
    auto table = TableReader::Open(FileSystem::Posix(), WriteTable(LargeMap(), 4096, snappy));
    ASSERT_EQ(table.status(), absl::OkStatus());
    EXPECT_EQ((*table)->HasSnappyBlocks(), absl::StatusOr<bool>(snappy));
  }
}

TEST(TableReaderTest, ReadsWhatLevelDbWrote) {
  for (const Map& map : {Map(), SmallMap(), LargeMap()}) {
    for (const size_t block_size : {64u, 4096u, 262'144u}) {
      for (const bool snappy : {false, true}) {
        const std::string path = WriteTable(map, block_size, snappy);
        Map read;
        EXPECT_EQ(ReadTable(path, &read), absl::OkStatus());
        EXPECT_EQ(read, map) << block_size << " " << snappy;
        EXPECT_EQ(ReadTable(path, &read, {.lenient = true}), absl::OkStatus());
        EXPECT_EQ(read, map);
      }
    }
  }
}

TEST(TableReaderTest, GetFindsEveryKeyAndNoOther) {
  const Map map = LargeMap();
  for (const size_t block_size : {64u, 262'144u}) {
    auto table = TableReader::Open(FileSystem::Posix(), WriteTable(map, block_size, false));
    ASSERT_EQ(table.status(), absl::OkStatus());
    for (const auto& [key, value] : map) {
      const auto found = (*table)->Get(key);
      ASSERT_EQ(found.status(), absl::OkStatus());
      ASSERT_TRUE(found->has_value()) << key;
      EXPECT_EQ(**found, value);
    }
    for (const std::string key : {"", "a", "scope_0/variable_", "scope_3/variable_4", "zzz"}) {
      EXPECT_FALSE((*table)->Get(key)->has_value()) << key;
    }
  }
}

TEST(TableReaderTest, SeekGoesToTheFirstKeyNotBefore) {
  const Map map = LargeMap();
  for (const size_t block_size : {64u, 4096u}) {
    auto table = TableReader::Open(FileSystem::Posix(), WriteTable(map, block_size, true));
    ASSERT_EQ(table.status(), absl::OkStatus());
    auto it = (*table)->NewIterator();
    EXPECT_FALSE(it->Valid());
    for (const auto& [key, value] : map) {
      for (const std::string& target : {key, key + '\0', key.substr(0, key.size() - 1)}) {
        const auto expected = map.lower_bound(target);
        it->Seek(target);
        ASSERT_EQ(it->Valid(), expected != map.end()) << target;
        if (!it->Valid()) continue;
        ASSERT_EQ(it->key(), expected->first);
        ASSERT_EQ(it->value(), expected->second);
      }
    }
    EXPECT_EQ(it->status(), absl::OkStatus());
  }
}

TEST(TableReaderTest, ManyThreadsReadOneTable) {
  const Map map = LargeMap();
  auto table = TableReader::Open(FileSystem::Posix(), WriteTable(map, 512, false));
  ASSERT_EQ(table.status(), absl::OkStatus());
  std::vector<std::thread> threads;
  std::vector<int> right(4);
  for (size_t t = 0; t < right.size(); ++t) {
    threads.emplace_back([&, t] {
      for (const auto& [key, value] : map) {
        const auto found = (*table)->Get(key);
        if (found.ok() && *found == value) ++right[t];
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (const int n : right) EXPECT_EQ(n, static_cast<int>(map.size()));
}

TEST(TableReaderTest, EveryTruncationIsDataLoss) {
  for (const bool snappy : {false, true}) {
    const std::string bytes = ReadBytes(WriteTable(SmallMap(), 64, snappy));
    for (size_t cut = 0; cut < bytes.size(); ++cut) {
      std::string file = bytes.substr(0, cut);
      Map read;
      const Status status = ReadBytesAsTable(file, &read);
      EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << cut << ": " << status;
      EXPECT_NE(status.message().find("bytes.index"), std::string::npos);
      EXPECT_NE(status.message().find("at offset "), std::string::npos);
      // Also from the front.
      file = bytes.substr(bytes.size() - cut);
      EXPECT_EQ(ReadBytesAsTable(file, &read).code(), absl::StatusCode::kDataLoss) << cut;
    }
  }
}

TEST(TableReaderTest, EveryFlippedBitIsDetected) {
  const Map map = SmallMap();
  for (const bool snappy : {false, true}) {
    for (const size_t block_size : {64u, 262'144u}) {
      const std::string bytes = ReadBytes(WriteTable(map, block_size, snappy));
      size_t detected = 0, flips = 0, lenient_harmless = 0;
      for (size_t at = 0; at < bytes.size(); ++at) {
        for (int bit = 0; bit < 8; ++bit) {
          std::string file = bytes;
          file[at] = static_cast<char>(file[at] ^ (1 << bit));
          ++flips;
          Map read;
          const Status status = ReadBytesAsTable(file, &read);
          detected += absl::IsDataLoss(status);
          for (const auto& [key, value] : read) EXPECT_EQ(map.at(key), value) << "wrong data";
          const Status lenient = ReadBytesAsTable(file, &read, {.lenient = true});
          if (lenient.ok()) {
            ++lenient_harmless;
            EXPECT_EQ(read, map);
          }
        }
      }
      EXPECT_EQ(detected, flips);
      EXPECT_GT(lenient_harmless, 0u) << "the footer's padding at least";
    }
  }
}

TEST(TableReaderTest, BytesBetweenBlocksOrBeforeTheFooterAreDetected) {
  const std::string bytes = ReadBytes(WriteTable(SmallMap(), 64, false));
  const std::string footer = bytes.substr(bytes.size() - 48);
  Map read;
  std::string file = bytes.substr(0, bytes.size() - 48) + "gap" + footer;
  EXPECT_EQ(ReadBytesAsTable(file, &read).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(ReadBytesAsTable(file, &read, {.lenient = true}), absl::OkStatus());
  EXPECT_EQ(read, SmallMap());
  file = bytes + "x";
  EXPECT_EQ(ReadBytesAsTable(file, &read).code(), absl::StatusCode::kDataLoss);
}

// A block with type and checksum.
std::string Sealed(std::string contents, char type = 0) {
  contents.push_back(type);
  PutFixed32(&contents, MaskCrc32c(Crc32c(contents)));
  return contents;
}

std::string EntryBytes(uint32_t shared, absl::string_view suffix, absl::string_view value) {
  std::string out;
  PutVarint32(&out, shared);
  PutVarint32(&out, static_cast<uint32_t>(suffix.size()));
  PutVarint32(&out, static_cast<uint32_t>(value.size()));
  return absl::StrCat(out, suffix, value);
}

std::string BlockBytes(const std::string& entries, const std::vector<uint32_t>& restarts) {
  std::string out = entries;
  for (const uint32_t restart : restarts) PutFixed32(&out, restart);
  PutFixed32(&out, static_cast<uint32_t>(restarts.size()));
  return out;
}

std::string HandleBytes(uint64_t offset, uint64_t size) {
  std::string out;
  PutVarint64(&out, offset);
  PutVarint64(&out, size);
  return out;
}

std::string Footer(const std::string& handles) {
  std::string out = handles;
  out.resize(40, '\0');
  PutFixed64(&out, 0xdb4775248b80fb57ull);
  return out;
}

// One data block, an empty metaindex, an index with the key "k~" for the block.
std::string TableWithBlock(const std::string& block, char type = 0) {
  std::string out = Sealed(block, type);
  const std::string metaindex = BlockBytes("", {0});
  const std::string index = BlockBytes(EntryBytes(0, "k~", HandleBytes(0, block.size())), {0});
  std::string handles = HandleBytes(out.size(), metaindex.size());
  out += Sealed(metaindex);
  handles += HandleBytes(out.size(), index.size());
  out += Sealed(index);
  return out + Footer(handles);
}

TEST(TableReaderTest, ForgedBlocksWithGoodChecksumsAreRefused) {
  Map read;
  const std::string good =
      TableWithBlock(BlockBytes(EntryBytes(0, "k1", "a") + EntryBytes(1, "2", "b"), {0}));
  ASSERT_EQ(ReadBytesAsTable(good, &read), absl::OkStatus()) << "the table by hand is good";
  EXPECT_EQ(read, (Map{{"k1", "a"}, {"k2", "b"}}));

  std::string huge_key, huge_value;
  for (const uint32_t n : {0u, 0xffffffffu, 0u}) PutVarint32(&huge_key, n);
  for (const uint32_t n : {0u, 1u, 0xfffffff0u}) PutVarint32(&huge_value, n);
  const struct {
    const char* what;
    std::string block;
    char type;
    const char* message;
  } cases[] = {
      {"no restarts", "abc", 0, "has no restarts"},
      {"zero restarts", BlockBytes(EntryBytes(0, "k", "v"), {}), 0, "has 0 restarts"},
      {"restarts beyond the block", std::string("\0\0\0\0\xff\xff\xff\x7f", 8), 0,
       "has 2147483647 restarts"},
      {"restart count that wraps", std::string("\0\0\0\0\0\0\0\x40", 8), 0, "restarts in 8 bytes"},
      {"equal keys", BlockBytes(EntryBytes(0, "k", "") + EntryBytes(0, "k", ""), {0}), 0,
       "not ascending"},
      {"descending keys", BlockBytes(EntryBytes(0, "k2", "") + EntryBytes(1, "1", ""), {0}), 0,
       "not ascending"},
      {"a prefix after its extension",
       BlockBytes(EntryBytes(0, "kk", "") + EntryBytes(1, "", ""), {0}), 0, "not ascending"},
      {"sharing without a key before", BlockBytes(EntryBytes(1, "k", ""), {0}), 0, "shares more"},
      {"sharing too much", BlockBytes(EntryBytes(0, "k", "") + EntryBytes(9, "l", ""), {0}), 0,
       "shares more"},
      {"huge key", BlockBytes(huge_key, {0}), 0, "does not fit"},
      {"huge value", BlockBytes(huge_value + "k", {0}), 0, "does not fit"},
      {"restart inside an entry", BlockBytes(EntryBytes(0, "k", "vvvv"), {0, 2}), 0,
       "restart where no key begins"},
      {"restart at the end", BlockBytes(EntryBytes(0, "k", "v"), {0, 5}), 0,
       "restart where no key begins"},
      {"restart at a sharing key",
       BlockBytes(EntryBytes(0, "k1", "") + EntryBytes(1, "2", ""), {0, 5}), 0,
       "restart at a key that shares"},
      {"first restart not first",
       BlockBytes(EntryBytes(0, "k1", "") + EntryBytes(0, "k2", ""), {5}), 0, "no restart at its"},
      {"key beyond the index", BlockBytes(EntryBytes(0, "z", "v"), {0}), 0, "beyond its index"},
      {"unknown compression", BlockBytes(EntryBytes(0, "k", "v"), {0}), 2, "0 or 1 (snappy)"},
      {"snappy that is none", std::string(100, '\xff'), 1, "snappy"},
      {"snappy that claims 4 GiB", std::string("\xff\xff\xff\xff\x0f\0", 6), 1, "cannot make"},
  };
  for (const auto& c : cases) {
    const std::string file = TableWithBlock(c.block, c.type);
    const Status status = ReadBytesAsTable(file, &read);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << c.what << ": " << status;
    EXPECT_NE(status.message().find(c.message), std::string::npos) << c.what << ": " << status;
  }
}

TEST(TableReaderTest, ForgedFootersAreRefusedWithoutAllocation) {
  const std::string bytes = ReadBytes(WriteTable(SmallMap(), 64, false));
  const std::string blocks = bytes.substr(0, bytes.size() - 48);
  const uint64_t huge = uint64_t{1} << 62;
  std::string long_form = HandleBytes(0, 5);
  long_form.back() = static_cast<char>(0x85);
  long_form.push_back(0);
  for (const std::string& handles :
       {HandleBytes(0, huge) + HandleBytes(0, 8), HandleBytes(huge, 8) + HandleBytes(0, 8),
        HandleBytes(UINT64_MAX, UINT64_MAX) + HandleBytes(1, 1),
        HandleBytes(blocks.size(), 0) + HandleBytes(0, 0),
        HandleBytes(0, blocks.size()) + HandleBytes(0, blocks.size() - 4),
        long_form + HandleBytes(0, 5), std::string(40, '\xff'), std::string()}) {
    for (const bool lenient : {false, true}) {
      const std::string file = blocks + Footer(handles);
      Map read;
      const Status status = ReadBytesAsTable(file, &read, {.lenient = lenient});
      EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    }
  }
}

TEST(TableReaderTest, AnIndexThatNamesABlockTwiceIsRefusedWhenStrict) {
  const std::string block = BlockBytes(EntryBytes(0, "k", "v"), {0});
  const std::string metaindex = BlockBytes("", {0});
  const std::string handle = HandleBytes(0, block.size());
  const std::string first = EntryBytes(0, "k", handle);
  const std::string index =
      BlockBytes(first + EntryBytes(0, "l", handle), {0, static_cast<uint32_t>(first.size())});
  std::string out = Sealed(block);
  std::string handles = HandleBytes(out.size(), metaindex.size());
  out += Sealed(metaindex);
  handles += HandleBytes(out.size(), index.size());
  out += Sealed(index) + Footer(handles);
  const std::string file = out;
  Map read;
  const Status strict = ReadBytesAsTable(file, &read);
  EXPECT_EQ(strict.code(), absl::StatusCode::kDataLoss);
  EXPECT_NE(strict.message().find("a block must begin here"), std::string::npos) << strict;
  const Status lenient = ReadBytesAsTable(file, &read, {.lenient = true});
  EXPECT_EQ(lenient.code(), absl::StatusCode::kDataLoss) << "its keys do not ascend";
  EXPECT_EQ(read, (Map{{"k", "v"}}));
}

TEST(TableReaderTest, MissingFileIsNotFound) {
  EXPECT_EQ(TableReader::Open(FileSystem::Posix(), TestPath() + ".missing").status().code(),
            absl::StatusCode::kNotFound);
}

TEST(TableReaderTest, IndexesOfTensorFlowAreReadStrictly) {
  const std::string data = SharedDataPath("");
  if (data.empty()) GTEST_SKIP() << "MILLRACE_SHARED is not set";
  int files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(data)) {
    if (entry.path().extension() != ".index") continue;
    ++files;
    Map read;
    EXPECT_EQ(ReadTable(entry.path().string(), &read), absl::OkStatus());
    EXPECT_EQ(read.count(""), 1u) << entry.path() << " has a header";
    EXPECT_GE(read.size(), 2u);
    auto table = TableReader::Open(FileSystem::Posix(), entry.path().string());
    ASSERT_EQ(table.status(), absl::OkStatus());
    for (const auto& [key, value] : read) EXPECT_EQ(*(*table)->Get(key), value);
  }
  EXPECT_GE(files, 23);
}

}  // namespace
}  // namespace millrace
