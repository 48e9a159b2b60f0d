// SPDX-License-Identifier: Apache-2.0
#include <zlib.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "core/allocator.h"
#include "core/file_system.h"
#include "core/record.h"
#include "core/testing/shared_data.h"
#include "core/testing/tensor_testing.h"
#include "data/dataset.h"
#include "data/matching_files.h"
#include "data/testing/dataset_testing.h"
#include "gtest/gtest.h"

// covers: input: lines, records (plain, ZLIB, GZIP) and records of fixed length are read from many
//   files; damage is named
// covers: input: a restored iterator gives what the saved one would have given, saved after any
//   element; a state that is cut is refused
// covers: input: a compressed file of a few bytes is read in the pieces that are used, or refused
// covers: input: hostile buffer sizes are errors

namespace millrace::data {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr Compression kAll[] = {Compression::kNone, Compression::kZlib, Compression::kGzip};

std::string TestPath(absl::string_view name) {
  return JoinPath(
      testing::TempDir(),
      absl::StrCat("files_", testing::UnitTest::GetInstance()->current_test_info()->name(), "_",
                   name));
}

std::string Compressed(const std::string& bytes, Compression compression) {
  if (compression == Compression::kNone) return bytes;
  z_stream stream{};
  EXPECT_EQ(deflateInit2(&stream, 6, Z_DEFLATED, compression == Compression::kGzip ? 31 : 15, 8,
                         Z_DEFAULT_STRATEGY),
            Z_OK);
  std::string out(bytes.size() + 1000, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

std::string FileOf(const std::string& bytes, Compression compression = Compression::kNone,
                   absl::string_view name = "f") {
  const std::string path = TestPath(name);
  EXPECT_OK(WriteFileAtomically(FileSystem::Posix(), path, Compressed(bytes, compression)));
  return path;
}

std::string RecordsOf(const std::vector<std::string>& records, Compression compression,
                      absl::string_view name = "r") {
  const std::string path = TestPath(name);
  auto writer = RecordWriter::Open(FileSystem::Posix(), path, compression);
  EXPECT_OK(writer);
  for (const std::string& record : records) EXPECT_OK((*writer)->Write(record));
  EXPECT_OK((*writer)->Close());
  return path;
}

// One by one, and as the rows of batches, which come from blocks.
void ExpectRows(const Dataset& dataset, const std::vector<std::string>& want,
                std::vector<int64_t> sizes = {1, 3, 1000}) {
  EXPECT_EQ(ElementsOf(dataset), want) << dataset.DebugString();
  for (const int64_t size : sizes) {
    EXPECT_EQ(ElementsOf(dataset.Batch(size).Unbatch()), want) << dataset.DebugString();
  }
}

TEST(TextLines, EndWithNewlinesOfBothKinds) {
  const struct {
    std::string bytes;
    std::vector<std::string> lines;
  } cases[] = {
      {"", {}},
      {"\n", {""}},
      {"a", {"a"}},
      {"a\n", {"a"}},
      {"a\nb", {"a", "b"}},
      {"a\r\nb\r\n", {"a", "b"}},
      {"a\n\n\r\nb\n", {"a", "", "", "b"}},
      {"a\rb\r\r\nc", {"a\rb\r", "c"}},
      {std::string("a\0b\n", 4), {std::string("a\0b", 3)}},
      // A byte order mark is one at the front alone.
      {"\xef\xbb\xbf\n", {""}},
      {"\xef\xbb\xbfx\n\xef\xbb\xbfy", {"x", "\xef\xbb\xbfy"}},
      {"\xef\xbb", {"\xef\xbb"}},
  };
  for (const auto& c : cases) {
    for (const Compression compression : kAll) {
      ExpectRows(Dataset::TextLines({FileOf(c.bytes, compression)}, {.compression = compression}),
                 c.lines);
    }
  }
}

TEST(TextLines, MayBeLongerThanTheBuffer) {
  std::string bytes;
  std::vector<std::string> lines;
  for (int i = 0; i < 300; ++i) {
    lines.push_back(
        std::string(static_cast<size_t>(i * 37 % 5000), static_cast<char>('a' + i % 26)));
    bytes += lines.back() + "\n";
  }
  for (const Compression compression : kAll) {
    ExpectRows(Dataset::TextLines({FileOf(bytes, compression)},
                                  {.compression = compression, .buffer_size = 1024}),
               lines);
  }
}

TEST(TextLines, OfManyFilesFollowEachOther) {
  const std::string a = FileOf("1\n2\n", Compression::kNone, "a");
  const std::string b = FileOf("3", Compression::kNone, "b");
  const std::string empty = FileOf("", Compression::kNone, "empty");
  const Dataset lines = Dataset::TextLines({a, empty, b, a});
  ExpectRows(lines, {"1", "2", "3", "1", "2"});
  ExpectRows(lines.Skip(1).Take(3), {"2", "3", "1"});
  // A block ends with its file; skipping counts lines of the whole sequence.
  EXPECT_EQ(TextOf(lines.Batch(4)), "[1 2 3 1] [2]");
  EXPECT_EQ(TextOf(lines.Shuffle(9, {.seed = 1}).Batch(5)).size(),
            std::string("[1 2 3 1 2]").size());
  EXPECT_EQ(lines.cardinality(), kUnknownCardinality);
  ExpectKeepsItsSpec(lines);
  for (const Compression compression : kAll) {
    ExpectStatesGoOn(Dataset::TextLines({FileOf("a\nbb\n\nc", compression, "s"),
                                         FileOf("\xef\xbb\xbf\nd\n", compression, "t")},
                                        {.compression = compression})
                         .Repeat(2));
  }
}

TEST(TextLines, AnErrorEndsItsFileOnly) {
  const std::string a = FileOf("1\n2\n", Compression::kNone, "a");
  const std::string none = TestPath("none");
  const std::vector<std::string> got = ElementsOf(Dataset::TextLines({none, a, none}));
  ASSERT_EQ(got.size(), 4u);
  EXPECT_NE(got[0].find(none), std::string::npos) << got[0];
  EXPECT_EQ(got[2], "2");
  EXPECT_EQ(TextOf(Dataset::TextLines({none, a, none}).IgnoreErrors({.max_files = kForever})),
            "1 2");
  EXPECT_EQ(TextOf(Dataset::TextLines({}).Repeat()), "");
  EXPECT_EQ(ElementsOf(Dataset::TextLines({none}).Repeat()).size(), 1u);
  // Bytes that are no stream, and a stream that was cut.
  const std::string whole = Compressed("1\n2\n3\n", Compression::kGzip);
  EXPECT_NE(TextOf(Dataset::TextLines({FileOf("plain text")}, {.compression = Compression::kGzip}))
                .find("corrupted compressed data"),
            std::string::npos);
  for (size_t size = 1; size < whole.size(); ++size) {
    const std::string text = TextOf(
        Dataset::TextLines({FileOf(whole.substr(0, size))}, {.compression = Compression::kGzip}));
    EXPECT_NE(text.find("compressed data"), std::string::npos) << size << ": " << text;
  }
  EXPECT_STATUS(Dataset::TextLines({a}, {.buffer_size = -1}).status(), kInvalid,
                "buffer_size must be >= 0, got -1");
}

TEST(Records, ComeInEveryPacking) {
  std::vector<std::string> records;
  for (int i = 0; i < 100; ++i) {
    records.push_back(
        std::string(static_cast<size_t>(i * 131 % 7000), static_cast<char>('a' + i % 26)));
  }
  for (const Compression compression : kAll) {
    const std::string path = RecordsOf(records, compression);
    ExpectRows(Dataset::Records({path}, {.compression = compression}), records);
    const std::string few = RecordsOf({"a", "", "c"}, compression, "few");
    ExpectStatesGoOn(Dataset::Records({few, few}, {.compression = compression}));
  }
}

TEST(Records, ACorruptOneEndsItsFile) {
  const std::string path = RecordsOf({"first", "second", "third"}, Compression::kNone);
  ASSERT_OK_AND_ASSIGN(std::string bytes, ReadFileToString(FileSystem::Posix(), path));
  char& wrong = bytes[12 + 5 + 4 + 12];
  wrong = static_cast<char>(wrong ^ 1);  // in the data of the second
  const std::string broken = FileOf(bytes, Compression::kNone, "broken");
  const std::string want =
      absl::StrCat("<Records '", broken, "': corrupted record at ", 12 + 5 + 4 + 12, ">");
  ExpectRows(Dataset::Records({broken, path}), {"first", want, "first", "second", "third"}, {1});
}

TEST(Records, OfRealTensorFlow) {
  const struct {
    const char* name;
    Compression compression;
    size_t count;
  } files[] = {{"tfrecords/mnist_train_sample.tfrecord", Compression::kNone, 20},
               {"tfrecords/penguin_train.tfrecord.gz", Compression::kGzip, 234},
               {"tfrecords/taxi_csv_eval_00000.tfrecord.gz", Compression::kGzip, 424}};
  for (const auto& file : files) {
    const std::string path = SharedDataPath(file.name);
    if (path.empty()) GTEST_SKIP() << "MILLRACE_SHARED has no " << file.name;
    EXPECT_EQ(ElementsOf(Dataset::Records({path}, {.compression = file.compression})).size(),
              file.count);
  }
}

TEST(FixedLengthRecords, LieBetweenHeaderAndFooter) {
  for (const Compression compression : kAll) {
    const FixedLengthOptions options = {
        .header_bytes = 2, .footer_bytes = 1, .file = {.compression = compression}};
    const std::string path = FileOf("HHabcdefF", compression);
    const Dataset records = Dataset::FixedLengthRecords({path, path}, 3, options);
    ExpectRows(records, {"abc", "def", "abc", "def"});
    ExpectStatesGoOn(records);
    ExpectRows(Dataset::FixedLengthRecords({FileOf("HHF", compression, "e")}, 3, options), {});
    const std::string odd = FileOf("HHabcdF", compression, "odd");
    const std::vector<std::string> got =
        ElementsOf(Dataset::FixedLengthRecords({odd, path}, 3, options).Skip(0));
    EXPECT_NE(
        absl::StrCat(got[0], got[1])
            .find(absl::StrCat("<Excluding the header (2 bytes) and footer (1 bytes), input "
                               "file \"",
                               odd,
                               "\" has body length 4 bytes, which is not an exact multiple of "
                               "the record length (3 bytes).>")),
        std::string::npos)
        << got[0];
    EXPECT_EQ(got.back(), "def");
    EXPECT_NE(TextOf(Dataset::FixedLengthRecords({FileOf("H", compression, "short")}, 3, options))
                  .find(compression == Compression::kNone ? "Excluding the header"
                                                          : "it must have at least 2 bytes, got 1"),
              std::string::npos);
  }
  EXPECT_STATUS(Dataset::FixedLengthRecords({}, 0).status(), kInvalid, "record_bytes must be >= 1");
  EXPECT_STATUS(Dataset::FixedLengthRecords({}, 1, {.footer_bytes = -1}).status(), kInvalid,
                "footer_bytes must be >= 0");
}

TEST(ListFiles, FindsWhatMatches) {
  FileSystem* const fs = FileSystem::Posix();
  const std::string root = TestPath("tree");
  fs->RecursivelyDelete(root).IgnoreError();
  for (const char* file : {"a/1.csv", "a/2.csv", "a/2.txt", "b/1.csv", "b/.csv", "c.csv"}) {
    const std::string path = JoinPath(root, file);
    ASSERT_OK(fs->RecursivelyCreateDirectory(Dirname(path)));
    ASSERT_OK(WriteFileAtomically(fs, path, file));
  }
  const auto matching = [&](absl::string_view pattern) {
    const std::string text =
        TextOf(Dataset::ListFiles({JoinPath(root, pattern)}, {.shuffle = false}));
    return absl::StrReplaceAll(text, {{root + "/", ""}});
  };
  EXPECT_EQ(matching("a/*.csv"), "a/1.csv a/2.csv");
  EXPECT_EQ(matching("*/*.csv"), "a/1.csv a/2.csv b/1.csv");
  EXPECT_EQ(matching("?/[13].*"), "a/1.csv b/1.csv");
  EXPECT_EQ(matching("c.csv"), "c.csv");
  EXPECT_EQ(matching("*"), "a b c.csv");
  EXPECT_EQ(matching("c.csv/*"), absl::StrCat("<No files matched pattern: c.csv/*>"));
  EXPECT_EQ(matching("d/*"), "<No files matched pattern: d/*>");
  const Dataset shuffled = Dataset::ListFiles({JoinPath(root, "*/*.csv")}, {.seeds = {.seed = 2}});
  EXPECT_EQ(ElementsOf(shuffled).size(), 3u);
  ExpectStatesGoOn(shuffled);
  EXPECT_STATUS(Dataset::ListFiles({}).status(), kInvalid, "at least one pattern");
  // Lines of all of them, in turns.
  const Dataset lines = Dataset::ListFiles({JoinPath(root, "*/*.csv")}, {.shuffle = false})
                            .Interleave(
                                [](const Element& path) -> StatusOr<Dataset> {
                                  return Dataset::TextLines({path[0].scalar<std::string>()});
                                },
                                {.cycle_length = 2, .parallel = true});
  EXPECT_EQ(TextOf(lines), "a/1.csv a/2.csv b/1.csv");
}

// zlib counts with 32 bits.
TEST(TextLines, AreThoseOfTheFileForAnyBufferSize) {
  for (const Compression compression : kAll) {
    const std::string path = FileOf("one\ntwo\nthree", compression, "sizes");
    for (const int64_t size : {int64_t{1}, (int64_t{1} << 32), (int64_t{1} << 32) + 1, INT64_MAX}) {
      EXPECT_EQ(
          TextOf(Dataset::TextLines({path}, {.compression = compression, .buffer_size = size})),
          "one two three")
          << size;
    }
  }
}

// --- Files of a few bytes that become many

// Streams in a row, of 1 MiB each.
std::string Bomb(char byte, int newline_every, int mebibytes) {
  std::string piece(size_t{1} << 20, byte);
  for (size_t i = 0; newline_every > 0 && i < piece.size();
       i += static_cast<size_t>(newline_every)) {
    piece[i] = '\n';
  }
  const std::string compressed = Compressed(piece, Compression::kGzip);
  std::string bomb;
  for (int i = 0; i < mebibytes; ++i) bomb += compressed;
  return bomb;
}

TEST(FileSources, AnInflatedFileIsReadInThePiecesThatAreUsed) {
  const std::string path = testing::TempDir() + "/file_sources_bomb";
  ASSERT_OK(WriteFileAtomically(FileSystem::Posix(), path, Bomb('a', 64, 128)));
  ASSERT_OK_AND_ASSIGN(
      const auto iterator,
      Dataset::TextLines({path}, {.compression = Compression::kGzip}).Batch(1024).MakeIterator());
  const int64_t before = DefaultAllocatorStats().bytes_in_use;
  int64_t most = 0, rows = 0;
  for (Element batch;;) {
    ASSERT_OK_AND_ASSIGN(const bool more, iterator->Next(&batch));
    if (!more) break;
    rows += batch[0].dim(0);
    most = std::max(most, DefaultAllocatorStats().bytes_in_use - before);
  }
  EXPECT_EQ(rows, (int64_t{128} << 20) / 64 + 1);
  EXPECT_LT(most, int64_t{4} << 20);
}

TEST(FileSources, ALineThatDoesNotEndIsAnError) {
  const std::string path = testing::TempDir() + "/file_sources_bomb_line";
  ASSERT_OK(WriteFileAtomically(FileSystem::Posix(), path, Bomb('a', 0, 270)));
  ASSERT_OK_AND_ASSIGN(
      const auto iterator,
      Dataset::TextLines({path}, {.compression = Compression::kGzip}).MakeIterator());
  Element element;
  EXPECT_STATUS(iterator->Next(&element), absl::StatusCode::kResourceExhausted,
                "what lies in one piece must have at most 268435456 bytes when it is decompressed, "
                "got more at 0");
  ASSERT_OK_AND_ASSIGN(const bool more, iterator->Next(&element));
  EXPECT_FALSE(more);
}

}  // namespace
}  // namespace millrace::data
