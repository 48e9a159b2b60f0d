// SPDX-License-Identifier: Apache-2.0
//
// RowFiles, NewFile and ExampleBuilder: files of other programs, and ours for others.
#include "data/row_files.h"

#include <zlib.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/record.h"
#include "core/testing/shared_data.h"
#include "core/testing/tensor_testing.h"
#include "data/example_builder.h"
#include "data/new_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/example.pb.h"

// covers: article 4-5, 4-6: typed CSV columns become tf.Examples that protobuf reads, in shards,
//   compressed
// covers: input: rows of CSV files as the world writes them; a bad record is told by file, line and
//   column, and the next one is read
// covers: article 4-9: `part-r-*`, gzip and zlib by their bytes, headers in every file; wrong rows
//   with file and line, corrupted records with their place

namespace millrace::data {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
FileSystem* const kFiles = FileSystem::Posix();

// `text` as a stream of zlib's; window_bits says of which kind (15: zlib, 31: gzip).
std::string Compressed(const std::string& text, int window_bits, int level = 6) {
  z_stream stream = {};
  EXPECT_EQ(deflateInit2(&stream, level, Z_DEFLATED, window_bits, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(text.size() + 1000, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

class RowFilesTest : public ::testing::Test {
 protected:
  RowFilesTest()
      : dir_(JoinPath(::testing::TempDir(), absl::StrCat("row_files_", RandomHexName()))) {
    EXPECT_OK(kFiles->RecursivelyCreateDirectory(dir_));
  }
  ~RowFilesTest() override { kFiles->RecursivelyDelete(dir_).IgnoreError(); }

  std::string Path(const std::string& name) const { return JoinPath(dir_, name); }
  std::string Write(const std::string& name, const std::string& bytes) const {
    EXPECT_OK(WriteFileAtomically(kFiles, Path(name), bytes));
    return Path(name);
  }
  std::string WriteRecords(const std::string& name, const std::vector<std::string>& records,
                           Compression compression = Compression::kNone) const {
    auto writer = RecordWriter::Open(kFiles, Path(name), compression);
    EXPECT_OK(writer.status());
    for (const std::string& record : records) EXPECT_OK((*writer)->Write(record));
    EXPECT_OK((*writer)->Close());
    return Path(name);
  }
  // Rows, fields joined by "|"; the last is the error, if there is one.
  static std::vector<std::string> Rows(const std::vector<std::string>& patterns,
                                       const RowFilesOptions& options) {
    auto rows = RowFiles::Open(patterns, options);
    if (!rows.ok()) return {std::string(rows.status().message())};
    std::vector<std::string> all;
    while (true) {
      const StatusOr<bool> more = (*rows)->Next();
      if (!more.ok()) all.emplace_back(more.status().message());
      if (!more.value_or(false)) return all;
      all.push_back(options.format == RowFormat::kCsv ? absl::StrJoin((*rows)->fields(), "|")
                                                      : std::string((*rows)->row()));
    }
  }

  const std::string dir_;
};

using Texts = std::vector<std::string>;

TEST_F(RowFilesTest, ReadsLinesOfPlainAndCompressedFilesWhateverTheirNames) {
  Write("part-r-00001", Compressed("c\nd", 31));
  Write("part-r-00000", "a\r\nb\n");
  Write("part-r-00002.txt", Compressed("e\n", 15));
  // Other levels have another second byte.
  Write("part-r-00003", Compressed("f\n", 15, 1));
  Write("part-r-00004", Compressed("g\n", 15, 9));
  Write("_SUCCESS", "");
  EXPECT_EQ(Rows({Path("part-r-*")}, {}), (Texts{"a", "b", "c", "d", "e", "f", "g"}));
  // "x^" is text.
  Write("level 3", Compressed("h\n", 15, 3));
  EXPECT_EQ(Rows({Path("level 3")}, {.compression = Compression::kZlib}), Texts{"h"});
  EXPECT_EQ(Rows({Write("formula", "x^2\n")}, {}), Texts{"x^2"});
  // In the order of the patterns, each file once.
  EXPECT_EQ(Rows({Path("part-r-00004"), Path("part-r-000*0")}, {}), (Texts{"g", "a", "b"}));
  EXPECT_EQ(Rows({Path("part-r-00000"), Path("part-r-0000[01]")}, {}), (Texts{"a", "b", "c", "d"}));
  const std::string bad = Compressed("some text that is cut short\n", 31);
  Write("cut", bad.substr(0, bad.size() - 9));
  const Texts cut = Rows({Path("cut")}, {});
  ASSERT_FALSE(cut.empty());
  EXPECT_NE(cut.back().find(absl::StrCat("'", Path("cut"), "'")), std::string::npos) << cut.back();
  EXPECT_NE(cut.back().find("truncated compressed data"), std::string::npos) << cut.back();
}

TEST_F(RowFilesTest, ReadsCsvWithAHeaderInEachFile) {
  Write("a.csv", "id,text\n1,\"x, \"\"y\"\"\"\n2,\n");
  Write("b.csv", Compressed("id,text\n3,z\n", 31));
  const RowFilesOptions options = {.format = RowFormat::kCsv, .has_header = true};
  EXPECT_EQ(Rows({Path("*.csv")}, options), (Texts{"1|x, \"y\"", "2|", "3|z"}));
  ASSERT_OK_AND_ASSIGN(const auto rows, RowFiles::Open({Path("a.csv")}, options));
  EXPECT_EQ(rows->columns(), (Texts{"id", "text"}));
  EXPECT_EQ(rows->header(), "id,text");
  EXPECT_EQ(*rows->FindColumn("text"), 1u);
  EXPECT_EQ(*rows->FindColumn("0"), 0u);
  EXPECT_STATUS(rows->FindColumn("txt"), kInvalid, "column 'txt' must be one of id, text");
  EXPECT_STATUS(rows->FindColumn("2"), kInvalid, "column '2' must be one of id, text");
  ASSERT_TRUE(*rows->Next());
  EXPECT_EQ(rows->Where(), absl::StrCat("'", Path("a.csv"), "' line 2"));

  EXPECT_EQ(Rows({Write("tabs", "1\tx\n")}, {.format = RowFormat::kCsv, .field_delim = '\t'}),
            Texts{"1|x"});
}

const std::string kMark = "\xef\xbb\xbf";

TEST_F(RowFilesTest, ReadsCsvAsTheWorldWritesIt) {
  const RowFilesOptions csv = {.format = RowFormat::kCsv};
  const RowFilesOptions with_header = {.format = RowFormat::kCsv, .has_header = true};
  const struct {
    std::string bytes;
    RowFilesOptions options;
    Texts rows;
  } cases[] = {
      {kMark + "id,text\n1,a\n", with_header, {"1|a"}},
      {kMark + "\"id\", text\r\n1,\"a\"\r\n2,b", with_header, {"1|a", "2|b"}},
      {kMark + "1,a\n", csv, {"1|a"}},
      {kMark + "\"1\",a\r", csv, {"1|a"}},
      {"1,\"a\nb\"\n2,\"c\r\n\"\r\n", csv, {"1|a\nb", "2|c\r\n"}},
      {"1;\"a;\n\"\n", {.format = RowFormat::kCsv, .field_delim = ';'}, {"1|a;\n"}},
      // What is no CSV has lines, without the mark.
      {kMark + "1,\"a\nb\"\n", {}, {"1,\"a", "b\""}},
  };
  for (const auto& c : cases) EXPECT_EQ(Rows({Write("f", c.bytes)}, c.options), c.rows) << c.bytes;

  // Blank lines end a file; between records they are a bad one.
  EXPECT_EQ(Rows({Write("f", "1,a\n\r\n\n"), Write("g", "2,b\n\n")}, csv), (Texts{"1|a", "2|b"}));
  ASSERT_OK_AND_ASSIGN(const auto blank, RowFiles::Open({Write("f", "1,a\n\n\n2,b\n")}, csv));
  EXPECT_TRUE(*blank->Next());
  EXPECT_STATUS(blank->Next(), absl::StatusCode::kInvalidArgument,
                "' line 2: a record must have 2 fields, got 0");
  EXPECT_TRUE(blank->row_is_bad());
  EXPECT_TRUE(*blank->Next());
  EXPECT_THAT(blank->Where(), ::testing::EndsWith("' line 4"));
  EXPECT_FALSE(*blank->Next());

  // Lines of files that are named as CSV is are records, whatever is between fields.
  const RowFilesOptions by_name = {.csv_by_name = true, .any_delim = true};
  const std::string semicolons = kMark + "1;\"a\nb\"\n2;\"\n3\n";
  for (const char* name : {"n.csv", "N.CSV", "n.tsv"}) {
    EXPECT_EQ(Rows({Write(name, semicolons)}, by_name), (Texts{"1;\"a\nb\"", "2;\"", "3"})) << name;
  }
  EXPECT_EQ(Rows({Write("csv", semicolons)}, by_name), (Texts{"1;\"a", "b\"", "2;\"", "3"}));

  // The same columns, written in another way.
  Write("w1", "id,text\n1,a\n");
  Write("w2", kMark + "\"id\",\"text\"\r\n2,b\r\n");
  EXPECT_EQ(Rows({Path("w1"), Path("w2")}, with_header), (Texts{"1|a", "2|b"}));
  ASSERT_OK_AND_ASSIGN(const auto rows, RowFiles::Open({Path("w2")}, {.format = RowFormat::kCsv,
                                                                      .has_header = true,
                                                                      .columns = {"id", "text"}}));
  EXPECT_EQ(rows->header(), "\"id\",\"text\"");
  EXPECT_EQ(rows->columns(), (Texts{"id", "text"}));
}

TEST_F(RowFilesTest, GoesOnBehindABadRecord) {
  const std::string path = Write("bad", "a,b\n1,2\n3\n\"4,5\n\"6\n7\",8\n9,\"x\"y\n10,11");
  ASSERT_OK_AND_ASSIGN(const auto rows,
                       RowFiles::Open({path}, {.format = RowFormat::kCsv, .has_header = true}));
  Texts got;
  for (int i = 0; i < 20; ++i) {
    const StatusOr<bool> more = rows->Next();
    if (more.ok() && !*more) break;
    EXPECT_EQ(rows->row_is_bad(), !more.ok()) << more.status();
    got.push_back(absl::StrCat(more.ok() ? "" : "bad: ", rows->row()));
  }
  EXPECT_EQ(got, (Texts{"1,2", "bad: 3", "bad: \"4,5", "\"6\n7\",8", "bad: 9,\"x\"y", "10,11"}));
  EXPECT_EQ(rows->num_rows(), 3);
  EXPECT_FALSE(rows->row_is_bad());
  // What is wrong with a file is no bad row.
  Write("a1", "a,b\n1,2\n");
  Write("a2", "a\n1\n");
  ASSERT_OK_AND_ASSIGN(const auto two, RowFiles::Open({Path("a?")}, {.format = RowFormat::kCsv,
                                                                     .has_header = true}));
  ASSERT_OK(two->Next());
  for (int i = 0; i < 2; ++i) {
    EXPECT_STATUS(two->Next(), kInvalid, "all files must have the header");
    EXPECT_FALSE(two->row_is_bad());
  }
  EXPECT_STATUS(two->NoRows(), kInvalid,
                absl::StrCat("there must be at least one row, got none in '", Path("a1"), "', '",
                             Path("a2"), "'"));
}

TEST_F(RowFilesTest, AsksForTheDelimiterThatAFileSeemsToHave) {
  const auto error = [&](const std::string& header) {
    auto rows = RowFiles::Open({Write("d", header + "\n")},
                               {.format = RowFormat::kCsv, .has_header = true});
    EXPECT_OK(rows.status());
    return rows.ok() ? std::string((*rows)->FindColumn("id").status().message()) : "";
  };
  EXPECT_EQ(error("id;text"), "column 'id' must be one of id;text; is the delimiter ';'?");
  EXPECT_EQ(error("id\ttext"), "column 'id' must be one of id\ttext; is the delimiter '\\t'?");
  EXPECT_EQ(error("x,y"), "column 'id' must be one of x, y");
}

TEST_F(RowFilesTest, NamesFileAndLineOfWhatIsWrong) {
  const RowFilesOptions csv = {.format = RowFormat::kCsv};
  const RowFilesOptions with_header = {.format = RowFormat::kCsv, .has_header = true};
  struct Case {
    const char* bytes;
    RowFilesOptions options;
    const char* message;
  };
  int number = 0;
  for (const Case& c : std::vector<Case>{
           {"1,2\n1,2,3\n", csv, " line 2: a record must have 2 fields, got 3"},
           {"1,2\n\n3,4\n", csv, " line 2: a record must have 2 fields, got 0"},
           {"a,b\n1\n", with_header, " line 2: a record must have 2 fields, got 1"},
           {"1,2\n",
            {.format = RowFormat::kCsv, .columns = {"x"}},
            " line 1: a record must have 1 fields, got 2"},
           {"a,b\n1,2\n3", with_header,
            " line 3: a record must have 2 fields, got 1; column 'b' is missing"},
           {"a,b\n1,2,3\n", with_header, " line 2: a record must have 2 fields, got 3"},
           {"a,b\n1,\"x\"y\n", with_header,
            " line 2: column 'b': Quote inside a string has to be escaped"},
           {"a,b\n\"1\n\",2\n\"3\n\"\n", with_header,
            " line 4: a record must have 2 fields, got 1; column 'b' is missing"},
           {"a,b\n",
            {.format = RowFormat::kCsv, .has_header = true, .columns = {"b", "a"}},
            " line 1: the header must have column 'b' in place 1, got it in place 2"},
           {"a,b\n",
            {.format = RowFormat::kCsv, .has_header = true, .columns = {"a", "c"}},
            " line 1: the header must have column 'c' in place 2, got 'a', 'b'"},
           {"1,\"a\n", csv, " line 1: Quoted field has to end with quote"},
           {"1,a\"b\n", csv, " line 1: Unquoted fields cannot have quotes/CRLFs inside"},
           {"", with_header, ": it must begin with a header, got an empty file"},
           {"a,a\n", with_header, " line 1: columns must have names of their own, got 'a' twice"},
       }) {
    const std::string path = Write(absl::StrCat("bad", number++), c.bytes);
    const Texts rows = Rows({path}, c.options);
    ASSERT_FALSE(rows.empty());
    EXPECT_NE(rows.back().find(absl::StrCat("'", path, "'", c.message)), std::string::npos)
        << rows.back();
  }
  Write("h1", "a,b\n1,2\n");
  Write("h2", "a,c\n1,2\n");
  EXPECT_EQ(
      Rows({Path("h?")}, with_header).back(),
      absl::StrCat("'", Path("h2"), "' line 1: all files must have the header of '", Path("h1"),
                   "': the header must have column 'b' in place 2, got 'a', 'c'"));
  Write("l1", "# a\nx\n");
  Write("l2", "# b\ny\n");
  EXPECT_EQ(Rows({Path("l?")}, {.has_header = true}).back(),
            absl::StrCat("'", Path("l2"), "' line 1: all files must have the header of '",
                         Path("l1"), "', '# a', got '# b'"));
  EXPECT_EQ(Rows({Path("nothing*")}, csv).back(),
            absl::StrCat("'", Path("nothing*"), "': it must name files, got none"));
  EXPECT_NE(Rows({dir_}, csv).back().find("it must be a file, got a directory"), std::string::npos);
  EXPECT_EQ(Rows({}, csv).back(), "there must be at least one input file, got none");
}

TEST_F(RowFilesTest, ReadsRecordsAndIsNotDeceivedByTheirLengths) {
  const RowFilesOptions records = {.format = RowFormat::kExamples};
  // First records whose lengths look like the begin of a zlib or gzip stream.
  for (const size_t length : {size_t{0x0178}, size_t{0x5e78}, size_t{0x9c78}, size_t{0x088b1f}}) {
    EXPECT_EQ(Rows({WriteRecords("plain", {std::string(length, 'x'), "y"})}, records),
              (Texts{std::string(length, 'x'), "y"}));
  }
  for (const Compression compression : {Compression::kGzip, Compression::kZlib}) {
    EXPECT_EQ(Rows({WriteRecords("packed", {"a", "", "c"}, compression)}, records),
              (Texts{"a", "", "c"}));
  }
  const std::string path = WriteRecords("bad", {"first", "second"});
  ASSERT_OK_AND_ASSIGN(std::string bytes, ReadFileToString(kFiles, path));
  bytes[bytes.size() - 6] = static_cast<char>(bytes[bytes.size() - 6] ^ 1);
  Write("bad", bytes);
  const Texts rows = Rows({path}, records);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_NE(rows[1].find(path), std::string::npos) << rows[1];
  EXPECT_NE(rows[1].find("corrupted record at"), std::string::npos) << rows[1];
}

TEST_F(RowFilesTest, ReadsWhatTensorFlowWrote) {
  const std::string directory = SharedDataPath("tfrecords");
  if (directory.empty()) GTEST_SKIP() << "MILLRACE_SHARED has no tfrecords";
  ASSERT_OK_AND_ASSIGN(const auto names, kFiles->GetChildren(directory));
  int64_t read = 0;
  for (const std::string& name : names) {
    const std::string path = JoinPath(directory, name);
    ASSERT_OK_AND_ASSIGN(const bool is_directory, kFiles->IsDirectory(path));
    if (is_directory || name.find(".tfrecord") == std::string::npos) continue;
    auto rows = RowFiles::Open({path}, {.format = RowFormat::kExamples});
    ASSERT_OK(rows.status());
    while (true) {
      const StatusOr<bool> more = (*rows)->Next();
      ASSERT_OK(more.status()) << path;
      if (!*more) break;
      ++read;
    }
  }
  EXPECT_GT(read, 0);
}

TEST_F(RowFilesTest, ExamplesAreWhatProtobufReads) {
  ExampleBuilder builder;
  builder.AddInts("ages", {39, -1, int64_t{1} << 62});
  builder.AddFloats("rates", {0.5f, -2});
  builder.AddTexts("words", {"a", "", std::string("\0\xff", 2)});
  builder.AddInts("none", {});
  builder.AddTexts(std::string(300, 'n'), {std::string(70'000, 'x')});
  tensorflow::Example example;
  const std::string bytes(builder.Finish());
  ASSERT_TRUE(example.ParseFromString(bytes));
  const auto& features = example.features().feature();
  EXPECT_EQ(features.size(), 5u);
  EXPECT_EQ(absl::StrJoin(features.at("ages").int64_list().value(), " "),
            "39 -1 4611686018427387904");
  EXPECT_EQ(absl::StrJoin(features.at("rates").float_list().value(), " "), "0.5 -2");
  const auto& words = features.at("words").bytes_list();
  ASSERT_EQ(words.value_size(), 3);
  EXPECT_EQ(words.value(2), std::string("\0\xff", 2));
  EXPECT_EQ(features.at("none").int64_list().value_size(), 0);
  EXPECT_TRUE(features.at("none").has_int64_list());
  EXPECT_EQ(features.at(std::string(300, 'n')).bytes_list().value(0).size(), 70'000u);
  // The next one begins anew.
  builder.AddInts("x", {1});
  ASSERT_TRUE(example.ParseFromString(std::string(builder.Finish())));
  EXPECT_EQ(example.features().feature_size(), 1);
}

TEST_F(RowFilesTest, ANewFileIsThereWholeOrNotAtAll) {
  {
    ASSERT_OK_AND_ASSIGN(const auto file, NewFile::Create(kFiles, Path("out/a")));
    ASSERT_OK(file->Append("x"));
    EXPECT_FALSE(kFiles->FileExists(Path("out/a")));
  }
  ASSERT_OK_AND_ASSIGN(const auto none, kFiles->GetChildren(Path("out")));
  EXPECT_EQ(none.size(), 0u);
  ASSERT_OK_AND_ASSIGN(const auto file, NewFile::Create(kFiles, Path("out/a")));
  ASSERT_OK(file->Append("x"));
  ASSERT_OK(file->Close());
  EXPECT_FALSE(kFiles->FileExists(Path("out/a")));
  ASSERT_OK(file->Commit());
  EXPECT_EQ(*ReadFileToString(kFiles, Path("out/a")), "x");
  ASSERT_OK_AND_ASSIGN(const auto records, NewFile::Create(kFiles, Path("out/r")));
  ASSERT_OK(records->BeginRecords(Compression::kGzip));
  ASSERT_OK(records->WriteRecord("one"));
  ASSERT_OK(records->Commit());
  EXPECT_EQ(Rows({Path("out/r")}, {.format = RowFormat::kExamples}), Texts{"one"});
  ASSERT_OK_AND_ASSIGN(const auto two, kFiles->GetChildren(Path("out")));
  EXPECT_EQ(two.size(), 2u);
}

}  // namespace
}  // namespace millrace::data
