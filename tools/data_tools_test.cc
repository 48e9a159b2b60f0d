// SPDX-License-Identifier: Apache-2.0
//
// vocab_gen, data_split and csv_to_tfrecord as people run them.

#include <sys/wait.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/record.h"
#include "core/testing/peak_memory.h"
#include "core/testing/shared_data.h"
#include "core/testing/tensor_testing.h"
#include "data/example_builder.h"
#include "data/row_files.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/example.pb.h"

// covers: article 4-3: a vocabulary: counts, least count, the most frequent, equal ones by their
//   bytes, a line for other words; the same in little memory (the process's peak is looked at)
// covers: article 4-4: a split by the hash of a key: always the same, rows of a key together, the
//   buckets of the first release
// covers: article 4-5, 4-6: typed CSV columns become tf.Examples that protobuf reads, in shards,
//   compressed
// covers: input: vocab_gen, data_split and csv_to_tfrecord read CSV as the world writes it; bad
//   rows are left out, counted and kept when that is wanted; too many, or no row at all, are an
//   error

namespace millrace {
namespace {

using ::testing::HasSubstr;

FileSystem* const kFiles = FileSystem::Posix();

struct Ended {
  int code = 0;
  std::string text;
};

class DataTools : public ::testing::Test {
 protected:
  DataTools() : dir_(JoinPath(::testing::TempDir(), absl::StrCat("data_tools_", RandomHexName()))) {
    EXPECT_OK(kFiles->RecursivelyCreateDirectory(dir_));
  }
  ~DataTools() override { kFiles->RecursivelyDelete(dir_).IgnoreError(); }

  std::string Path(const std::string& name) const { return JoinPath(dir_, name); }
  std::string Write(const std::string& name, const std::string& bytes) const {
    EXPECT_OK(WriteFileAtomically(kFiles, Path(name), bytes));
    return Path(name);
  }
  std::string Read(const std::string& name) const {
    const auto text = ReadFileToString(kFiles, Path(name));
    EXPECT_OK(text.status());
    return text.value_or("");
  }
  bool Exists(const std::string& name) const { return kFiles->FileExists(Path(name)); }
  // "$" is the test's directory.
  std::string WithDirectory(std::string command) const {
    for (size_t at; (at = command.find('$')) != std::string::npos;) command.replace(at, 1, dir_);
    return command;
  }
  // stdout and stderr together.
  Ended Run(const std::string& command) const {
    FILE* const pipe = popen(absl::StrCat("tools/", WithDirectory(command), " 2>&1").c_str(), "r");
    Ended ended;
    char buffer[4096];
    for (size_t n = 0; (n = fread(buffer, 1, sizeof(buffer), pipe)) > 0;) {
      ended.text.append(buffer, n);
    }
    ended.code = WEXITSTATUS(pclose(pipe));
    return ended;
  }
  void RunOk(const std::string& command) const {
    const Ended ended = Run(command);
    EXPECT_EQ(ended.code, 0) << command << "\n" << ended.text;
  }
  std::vector<tensorflow::Example> Examples(const std::string& name) const {
    std::vector<tensorflow::Example> examples;
    auto rows = data::RowFiles::Open({Path(name)}, {.format = data::RowFormat::kExamples});
    EXPECT_OK(rows.status());
    while (rows.ok()) {
      const StatusOr<bool> more = (*rows)->Next();
      EXPECT_OK(more.status());
      if (!more.value_or(false)) break;
      EXPECT_TRUE(examples.emplace_back().ParseFromString(std::string((*rows)->row())));
    }
    return examples;
  }
  size_t NumFiles() const { return kFiles->GetChildren(dir_).value().size(); }

  const std::string dir_;
};

const char kPeople[] =
    "id,job,age\n"
    "1,farmer,30\n"
    "2,baker,31\n"
    "3,farmer,\n"
    "4,\"smith, black\",33\n"
    "5,baker,34\n"
    "6,,35\n"
    "7,farmer,36\n"
    "8,clerk,37\n";

// --- vocab_gen -----------------------------------------------------------------------------------

TEST_F(DataTools, VocabGenOrdersWordsByCountAndThenByTheirBytes) {
  Write("people.csv", kPeople);
  const Ended ended =
      Run("vocab_gen --input '$/people.csv' --header --column job --output $/words.txt");
  EXPECT_EQ(ended.code, 0) << ended.text;
  EXPECT_EQ(ended.text, absl::StrCat(Path("words.txt"),
                                     ": 4 of 4 words (0 too rare) of 7 values in 8 rows of 1 "
                                     "files\n"));
  EXPECT_EQ(Read("words.txt"), "farmer\nbaker\nclerk\nsmith, black\n");
  RunOk(
      "vocab_gen --input '$/people.csv' --header --column 1 --output $/words.txt --min_count 2 "
      "--counts");
  EXPECT_EQ(Read("words.txt"), "farmer\t3\nbaker\t2\n");
  RunOk(
      "vocab_gen --input '$/people.csv' --header --column job --output $/words.txt --top_k=3 "
      "--oov '<other>'");
  EXPECT_EQ(Read("words.txt"), "farmer\nbaker\nclerk\n<other>\n");
  EXPECT_EQ(NumFiles(), 2u) << "no temporary file is left";
}

TEST_F(DataTools, VocabGenReadsLinesWordsAndFeatures) {
  Write("a.txt", "to be or\nnot to be\n\n");
  RunOk("vocab_gen --input $/a.txt --output $/lines.txt");
  EXPECT_EQ(Read("lines.txt"), "not to be\nto be or\n");
  RunOk("vocab_gen --input $/a.txt --split ' ' --output $/words.txt --counts");
  EXPECT_EQ(Read("words.txt"), "be\t2\nto\t2\nnot\t1\nor\t1\n");

  auto writer = RecordWriter::Open(kFiles, Path("part-r-00000"), Compression::kGzip);
  ASSERT_OK(writer.status());
  data::ExampleBuilder example;
  for (int i = 0; i < 3; ++i) {
    example.AddTexts("tags", std::vector<std::string>(static_cast<size_t>(i), "t"));
    example.AddInts("number", {i % 2 == 0 ? 7 : -7});
    ASSERT_OK((*writer)->Write(example.Finish()));
  }
  ASSERT_OK((*writer)->Close());
  RunOk("vocab_gen --input '$/part-r-*' --feature tags --output $/tags.txt --counts");
  EXPECT_EQ(Read("tags.txt"), "t\t3\n");
  RunOk("vocab_gen --input '$/part-r-*' --feature number --output $/numbers.txt");
  EXPECT_EQ(Read("numbers.txt"), "7\n-7\n");
  RunOk("vocab_gen --input '$/part-r-*' --feature nothing --output $/none.txt");
  EXPECT_EQ(Read("none.txt"), "");
}

TEST_F(DataTools, VocabGenGivesTheSameInLittleMemory) {
  const auto peak_mb = [&](const std::string& flags) {
    return PeakMemoryOf(absl::StrCat("tools/vocab_gen ", WithDirectory(flags)));
  };
  Write("small.txt", "a\n");
  const int64_t base_mb = peak_mb("--input $/small.txt --output $/small");
  {
    // 36 MiB of 400,000 words, each twice, but for some.
    std::string text;
    for (int64_t i = 0; i < 800'000; ++i) {
      if (i >= 400'000 && i % 1000 == 0) continue;
      absl::StrAppend(&text, "a word that is rather long, with number ", i * 7919 % 400'000, "\n");
    }
    ASSERT_GT(text.size(), size_t{32} << 20);
    Write("large.txt", text);
  }
  const std::string large = "--input $/large.txt --output $/in_";
  EXPECT_LT(peak_mb(large + "little --max_memory_mb 4 --temp_dir $/temp"), base_mb + 4 + 10);
  EXPECT_EQ(kFiles->GetChildren(Path("temp")).value().size(), 0u);
  EXPECT_GT(peak_mb(large + "much --max_memory_mb 1000 --temp_dir $/none"), base_mb + 40);
  EXPECT_FALSE(Exists("none"));
  const std::string words = Read("in_little");
  EXPECT_EQ(words, Read("in_much"));
  EXPECT_EQ(std::count(words.begin(), words.end(), '\n'), 400'000);
}

TEST_F(DataTools, VocabGenSaysWhatIsWrongAndWhere) {
  Write("people.csv", kPeople);
  Write("short.csv", "a,b\n1\n");
  Write("head.csv", "a,b\n");
  Write("nothing.txt", "");
  Write("words.txt", "old\n");
  const std::vector<std::pair<const char*, std::string>> cases = {
      {"--input '$/*.none'", absl::StrCat("'", Path("*.none"), "': it must name files, got none")},
      {"--input $", "it must be a file, got a directory"},
      {"--input $/people.csv --header --column jobs",
       "--column: column 'jobs' must be one of id, job, age"},
      {"--input $/people.csv --column job", "must be a number, as the files have no header"},
      {"--input $/people.csv --column 9", "line 1: it must have column 9, got 3 columns"},
      {"--input $/short.csv --header --column a",
       absl::StrCat("'", Path("short.csv"), "' line 2: a record must have 2 fields, got 1")},
      {"--input $/people.csv --feature job", "corrupted record at 0"},
      {"--input $/people.csv --column 0 --feature x", "must not be given both"},
      {"--input $/people.csv --top_k x", "--top_k must be an integer >= 0, got 'x'"},
      {"--input $/people.csv --min_count 0", "--min_count must be an integer >= 1, got '0'"},
      {"--input $/people.csv --max_memory_mb 0", "max_memory_mb"},
      {"--input $/people.csv --column 1 --oov farmer", "--oov must be no word of the data"},
      {"--input $/people.csv --field_delim ,,", "--field_delim must be one character"},
      {"--input $/people.csv --compression LZMA", "compression_type must be"},
      {"--input $/people.csv --compression GZIP", "corrupted compressed data"},
      {"--input $/people.csv --header --columns a,b", "--columns with --header is for CSV"},
      {"--input $/people.csv --header --columns id,age,job --column id",
       absl::StrCat("'", Path("people.csv"),
                    "' line 1: the header must have column 'age' in place 2, got it in place 3")},
      {"--input $/people.csv --header --column id --field_delim ';'",
       "column 'id' must be one of id,job,age; is the delimiter ','?"},
      {"--input $/head.csv --header --column a",
       absl::StrCat("there must be at least one row, got none in '", Path("head.csv"), "'")},
      {"--input $/nothing.txt",
       absl::StrCat("there must be at least one row, got none in '", Path("nothing.txt"), "'")},
      {"--input $/people.csv --max_errors x",
       "--max_errors must be a number of rows or a share as '1.5%', at most '100%', got 'x'"},
      {"--input $/people.csv --max_errors 101%", "at most '100%', got '101%'"},
      {"--input $/people.csv --max_errors=-1", "got '-1'"},
  };
  for (const auto& [flags, message] : cases) {
    const Ended ended = Run(absl::StrCat("vocab_gen --output $/words.txt ", flags));
    EXPECT_EQ(ended.code, 1) << flags << "\n" << ended.text;
    EXPECT_THAT(ended.text, ::testing::StartsWith("vocab_gen: ")) << flags;
    EXPECT_THAT(ended.text, HasSubstr(message)) << flags;
    EXPECT_EQ(std::count(ended.text.begin(), ended.text.end(), '\n'), 1) << ended.text;
  }
  EXPECT_EQ(Read("words.txt"), "old\n") << "a failed run changes nothing";
  EXPECT_EQ(NumFiles(), 5u);
  const Ended wrong = Run("vocab_gen --input x --output y --colum z");
  EXPECT_EQ(wrong.code, 2);
  EXPECT_THAT(wrong.text, HasSubstr("--column"));
  EXPECT_EQ(Run("vocab_gen --input x").code, 2);
  EXPECT_EQ(Run("vocab_gen --help").code, 0);
  EXPECT_THAT(Run("vocab_gen --version").text, HasSubstr("vocab_gen (Millrace)"));
}

// --- data_split ----------------------------------------------------------------------------------

std::vector<std::string> Lines(const std::string& text) {
  std::vector<std::string> lines = absl::StrSplit(text, '\n');
  if (!lines.empty() && lines.back().empty()) lines.pop_back();
  return lines;
}

TEST_F(DataTools, DataSplitPutsEachRowIntoOneFileAlways) {
  std::string text = "user,n\n", shuffled = "user,n\n";
  std::vector<std::string> rows;
  for (int i = 0; i < 5000; ++i) rows.push_back(absl::StrCat("user", i % 1000, ",", i));
  for (const std::string& row : rows) absl::StrAppend(&text, row, "\n");
  for (size_t i = rows.size(); i > 0; --i) absl::StrAppend(&shuffled, rows[i - 1], "\n");
  Write("rows.csv", text);
  Write("reversed.csv", shuffled);
  RunOk(
      "data_split --input $/rows.csv --header --column user --splits train=0.7,eval=0.2,test=0.1 "
      "--output_dir $/a");
  RunOk(
      "data_split --input $/reversed.csv --header --column user "
      "--splits train=0.7,eval=0.2,test=0.1 --output_dir $/b");
  std::map<std::string, std::string> part_of_user;
  size_t total = 0;
  for (const std::string name : {"train", "eval", "test"}) {
    std::vector<std::string> first = Lines(Read(absl::StrCat("a/", name, ".csv")));
    std::vector<std::string> second = Lines(Read(absl::StrCat("b/", name, ".csv")));
    ASSERT_FALSE(first.empty());
    EXPECT_EQ(first[0], "user,n");
    total += first.size() - 1;
    // Rows keep their order.
    std::reverse(second.begin() + 1, second.end());
    EXPECT_EQ(first, second) << name;
    for (size_t i = 1; i < first.size(); ++i) {
      const std::string user = first[i].substr(0, first[i].find(','));
      EXPECT_EQ(part_of_user.emplace(user, name).first->second, name) << "users stay together";
    }
  }
  EXPECT_EQ(total, 5000u);
  std::map<std::string, int> users;
  for (const auto& [user, name] : part_of_user) ++users[name];
  EXPECT_NEAR(users["train"], 700, 60);
  EXPECT_NEAR(users["eval"], 200, 50);
  EXPECT_NEAR(users["test"], 100, 40);

  // Another seed is another split; the last part may be left out.
  RunOk(
      "data_split --input $/rows.csv --header --column user --splits train=0.7 --seed x "
      "--output_dir $/c");
  EXPECT_NE(Read("c/train.csv"), Read("a/train.csv"));
  EXPECT_NEAR(static_cast<double>(Lines(Read("c/train.csv")).size()), 3500, 300);
}

TEST_F(DataTools, DataSplitKnowsTheBucketsOfItsFirstRelease) {
  // What a split was must not change with the program: models are compared on it. (Computed by
  // FarmHash's own library.)
  std::string text;
  for (int i = 0; i < 20; ++i) absl::StrAppend(&text, "row ", i, "\n");
  Write("rows.txt", text);
  RunOk("data_split --input $/rows.txt --splits a=0.5,b=0.5 --output_dir $/out");
  EXPECT_EQ(absl::StrJoin(Lines(Read("out/b.txt")), ","),
            "row 3,row 6,row 7,row 8,row 9,row 12,row 14,row 15,row 16,row 18,row 19");
}

TEST_F(DataTools, DataSplitCopiesRecordsAsTheyAre) {
  auto writer = RecordWriter::Open(kFiles, Path("in"));
  ASSERT_OK(writer.status());
  data::ExampleBuilder example;
  for (int i = 0; i < 200; ++i) {
    example.AddInts("key", {i % 50});
    example.AddInts("n", {i});
    ASSERT_OK((*writer)->Write(example.Finish()));
  }
  ASSERT_OK((*writer)->Close());
  RunOk(
      "data_split --input $/in --feature key --splits a=0.5,b=0.5 --output_dir $ "
      "--output_compression GZIP");
  std::map<int64_t, std::string> part;
  size_t total = 0;
  for (const std::string name : {"a", "b"}) {
    for (const tensorflow::Example& one : Examples(absl::StrCat(name, ".tfrecord"))) {
      ++total;
      const int64_t key = one.features().feature().at("key").int64_list().value(0);
      EXPECT_EQ(part.emplace(key, name).first->second, name);
    }
  }
  EXPECT_EQ(total, 200u);
  RunOk("data_split --input $/in --records --splits a=0.25,b=0.75 --output_dir $/whole");
  EXPECT_EQ(Examples("whole/a.tfrecord").size() + Examples("whole/b.tfrecord").size(), 200u);
}

TEST_F(DataTools, DataSplitSaysWhatIsWrong) {
  Write("rows.txt", "a\n");
  Write("empty.txt", "");
  Write("bad.csv", "a,b\n1\n");
  const std::vector<std::pair<const char*, const char*>> cases = {
      {"--splits a=0.5,b=0.6", "--splits must sum to at most 1, got 1.1"},
      {"--splits a", "'a' must be NAME=RATIO"},
      {"--splits a=0", "'a=0' must be NAME=RATIO with a ratio in (0, 1]"},
      {"--splits a=nan", "must be NAME=RATIO"},
      {"--splits a=0.1,a=0.2", "names must be different"},
      {"--splits ../a=0.1", "names must be different and of letters"},
      {"--splits ,", "--splits must name files"},
      {"--splits a=1 --output_compression GZIP", "--output_compression is for TFRecords"},
      {"--splits a=1 --column 0 --records", "--column and --csv are for CSV files"},
      {"--splits a=1 --csv --feature x", "--column and --csv are for CSV files"},
      {"--splits a=1 --input $/empty.txt", "there must be at least one row, got none in"},
      {"--splits a=1 --input $/bad.csv --header --column a",
       "line 2: a record must have 2 fields, got 1"},
  };
  for (const auto& [flags, message] : cases) {
    const Ended ended =
        Run(absl::StrCat("data_split --input $/rows.txt --output_dir $/out ", flags));
    EXPECT_EQ(ended.code, 1) << flags << "\n" << ended.text;
    EXPECT_THAT(ended.text, HasSubstr(message)) << flags;
  }
  EXPECT_FALSE(Exists("out/a.csv"));
  EXPECT_EQ(Run("data_split --input x --splits a=1").code, 2);
}

// --- csv_to_tfrecord -----------------------------------------------------------------------------

std::string FeatureText(const tensorflow::Example& example, const std::string& name) {
  const auto found = example.features().feature().find(name);
  if (found == example.features().feature().end()) return "-";
  const tensorflow::Feature& feature = found->second;
  if (feature.has_int64_list()) return absl::StrJoin(feature.int64_list().value(), " ");
  if (feature.has_float_list()) return absl::StrJoin(feature.float_list().value(), " ");
  return absl::StrJoin(feature.bytes_list().value(), "|");
}

TEST_F(DataTools, CsvToTfrecordTypesItsColumns) {
  Write("people.csv", kPeople);
  RunOk(
      "csv_to_tfrecord --input $/people.csv --header --schema 'age:int64=-1,job:string' "
      "--output $/people.tfrecord");
  std::vector<tensorflow::Example> examples = Examples("people.tfrecord");
  ASSERT_EQ(examples.size(), 8u);
  EXPECT_EQ(FeatureText(examples[0], "age"), "30");
  EXPECT_EQ(FeatureText(examples[0], "id"), "-");
  EXPECT_EQ(FeatureText(examples[2], "age"), "-1") << "the default";
  EXPECT_EQ(FeatureText(examples[3], "job"), "smith, black");
  EXPECT_EQ(FeatureText(examples[5], "job"), "-") << "missing";

  // By place; lists; blanks around numbers; a text that stands for missing.
  Write("rows.csv", "1;2, 2.5,x,a\n,?,y,b\n");
  RunOk(
      "csv_to_tfrecord --input $/rows.csv --schema 'ids:int64[],rate:float,-,name:string' "
      "--na_value '?' --output $/rows.tfrecord");
  examples = Examples("rows.tfrecord");
  ASSERT_EQ(examples.size(), 2u);
  EXPECT_EQ(FeatureText(examples[0], "ids"), "1 2");
  EXPECT_EQ(FeatureText(examples[0], "rate"), "2.5");
  EXPECT_EQ(FeatureText(examples[0], "name"), "a");
  EXPECT_EQ(FeatureText(examples[1], "ids"), "-");
  EXPECT_EQ(FeatureText(examples[1], "rate"), "-");
}

TEST_F(DataTools, CsvToTfrecordWritesShardsThatOthersFind) {
  std::string text;
  for (int i = 0; i < 100; ++i) absl::StrAppend(&text, i, "\n");
  Write("rows.csv", text);
  for (const char* compression : {"GZIP", "ZLIB"}) {
    RunOk(
        absl::StrCat("csv_to_tfrecord --input $/rows.csv --schema n:int64 --shards 3 "
                     "--output $/out/part-r --output_compression ",
                     compression));
    EXPECT_TRUE(Exists("out/part-r-00002"));
    EXPECT_FALSE(Exists("out/part-r-00003"));
    std::vector<std::string> numbers;
    for (const tensorflow::Example& one : Examples("out/part-r-*")) {
      numbers.push_back(FeatureText(one, "n"));
    }
    ASSERT_EQ(numbers.size(), 100u);
    EXPECT_EQ(numbers[0], "0");
    EXPECT_EQ(numbers[1], "3");
  }
}

TEST_F(DataTools, CsvToTfrecordSaysWhatIsWrongAndWhere) {
  Write("rows.csv", "1,a\n2,b\nx,c\n");
  Write("head.csv", "n,t\n1,a\n");
  Write("none.csv", "n,t\n");
  const std::vector<std::pair<const char*, std::string>> cases = {
      {"--schema n:int64,t:string",
       absl::StrCat("'", Path("rows.csv"), "' line 3: column 'n' must be int64, got 'x'")},
      {"--schema n:int64", "line 1: a record must have 1 fields, got 2"},
      {"--schema n:int64,t:string,u:float",
       "line 1: a record must have 3 fields, got 2; column 'u' is missing"},
      {"--schema n:int64 --header --input $/none.csv", "must be at least one row, got none in"},
      {"--schema n:int32,t:string", "the type of 'n' must be int64, float or string"},
      {"--schema n,t:string", "'n' must be NAME:TYPE or -"},
      {"--schema n:int64,n:string", "names must be different, got 'n' twice"},
      {"--schema -,-", "--schema must have a column"},
      {"--schema n:int64=x,t:string", "--schema: column 'n' must be int64, got 'x'"},
      {"--schema m:int64 --header --input $/head.csv", "column 'm' must be one of n, t"},
      {"--schema n:int64,t:string --shards 0", "shards"},
      {"--schema n:int64,t:string --output_compression LZ4", "compression_type must be"},
      {"--schema n:int64,t:string --list_delim ab", "--list_delim must be one character"},
  };
  for (const auto& [flags, message] : cases) {
    const Ended ended =
        Run(absl::StrCat("csv_to_tfrecord --input $/rows.csv --output $/out.tfrecord ", flags));
    EXPECT_EQ(ended.code, 1) << flags << "\n" << ended.text;
    EXPECT_THAT(ended.text, HasSubstr(message)) << flags;
  }
  EXPECT_EQ(NumFiles(), 3u) << "a failed run leaves nothing";
}

// --- Files as the world writes them --------------------------------------------------------------

TEST_F(DataTools, FilesBeginBehindAByteOrderMark) {
  const std::string mark = "\xef\xbb\xbf";
  Write("bom.csv", mark + "id,text\r\n1,a\r\n2,b\r\n");
  Write("bom_nohead.csv", mark + "1,a\n2,b\n");
  RunOk("vocab_gen --input $/bom.csv --header --column id --output $/v.txt");
  EXPECT_EQ(Read("v.txt"), "1\n2\n");
  RunOk("vocab_gen --input $/bom_nohead.csv --column 0 --output $/w.txt");
  EXPECT_EQ(Read("w.txt"), "1\n2\n");
  RunOk("csv_to_tfrecord --input $/bom_nohead.csv --schema id:int64,text:string --output $/r");
  EXPECT_EQ(FeatureText(Examples("r").at(0), "id"), "1");
  RunOk("data_split --input $/bom.csv --header --column id --splits a=1 --output_dir $");
  EXPECT_EQ(Read("a.csv"), "id,text\n1,a\n2,b\n");
}

TEST_F(DataTools, DataSplitDoesNotTearARecord) {
  std::string text = "id;text\r\n";
  std::vector<std::string> want;
  for (int i = 0; i < 50; ++i) {
    want.push_back(absl::StrCat(i, ";\"a\n\"\"b\"\";\r\nc ", i, "\""));
    absl::StrAppend(&text, want.back(), "\r\n");
  }
  Write("rows.csv", text);
  Write("part-0", text);
  const std::vector<std::pair<const char*, const char*>> cases = {
      {"--input $/part-0 --field_delim ';' --column id", ".csv"},
      {"--input $/part-0 --field_delim ';' --csv", ".csv"},
      {"--input $/rows.csv --field_delim ';'", ".txt"},
  };
  for (const auto& [flags, ending] : cases) {
    RunOk(absl::StrCat("data_split --header --splits a=0.5,b=0.5 --output_dir $/out ", flags));
    std::vector<std::string> got;
    for (const char* name : {"a", "b"}) {
      const std::string part = absl::StrCat("out/", name, ending);
      ASSERT_TRUE(absl::StartsWith(Read(part), "id;text\n")) << flags;
      auto rows = data::RowFiles::Open(
          {Path(part)}, {.format = data::RowFormat::kCsv, .field_delim = ';', .has_header = true});
      ASSERT_OK(rows.status());
      while (true) {
        const StatusOr<bool> more = (*rows)->Next();
        ASSERT_OK(more.status()) << flags;
        if (!*more) break;
        got.emplace_back((*rows)->row());
      }
    }
    EXPECT_THAT(got, ::testing::UnorderedElementsAreArray(want)) << flags;
  }
}

TEST_F(DataTools, BlanksMayStandAroundAMissingValue) {
  Write("rows.csv", "1, ,a\n ? ,2.5, ? \n3,4, \n");
  RunOk(
      "csv_to_tfrecord --input $/rows.csv --schema 'id:int64,rate:float=9,word:string=none' "
      "--na_value '?' --output $/r");
  const std::vector<tensorflow::Example> examples = Examples("r");
  ASSERT_EQ(examples.size(), 3u);
  EXPECT_EQ(FeatureText(examples[0], "rate"), "9");
  EXPECT_EQ(FeatureText(examples[1], "id"), "-");
  EXPECT_EQ(FeatureText(examples[1], "word"), "none");
  EXPECT_EQ(FeatureText(examples[2], "word"), " ") << "a text";
}

// --- Bad rows ------------------------------------------------------------------------------------

TEST_F(DataTools, BadRowsAreLeftOutCountedAndKeptWhenThatIsWanted) {
  Write("rows.csv", "id,price\n1,2\n2\n3,x\n4,\"5\n5,6\n");
  // vocab_gen takes the third row: it looks at another column.
  Ended ended =
      Run("vocab_gen --input $/rows.csv --header --column id --output $/ids --ignore_errors "
          "--refused_rows $/bad.csv");
  EXPECT_EQ(ended.code, 0) << ended.text;
  EXPECT_EQ(Read("ids"), "1\n3\n5\n");
  EXPECT_EQ(Read("bad.csv"), "id,price\n2\n4,\"5\n");
  EXPECT_THAT(ended.text, HasSubstr(absl::StrCat("vocab_gen: left out: '", Path("rows.csv"),
                                                 "' line 3: a record must have 2 fields, got 1; "
                                                 "column 'price' is missing\n")));
  EXPECT_THAT(ended.text, HasSubstr("vocab_gen: left out 2 of 5 rows (40 %), the first: "));
  EXPECT_THAT(ended.text, HasSubstr("3 of 3 words (0 too rare) of 3 values in 3 rows"));

  ended =
      Run("data_split --input $/rows.csv --header --column id --splits a=1 --output_dir $ "
          "--max_errors 2");
  EXPECT_EQ(ended.code, 0) << ended.text;
  EXPECT_EQ(Read("a.csv"), "id,price\n1,2\n3,x\n5,6\n");
  EXPECT_THAT(ended.text, HasSubstr("data_split: left out 2 of 5 rows"));

  ended =
      Run("csv_to_tfrecord --input $/rows.csv --header --schema id:int64,price:int64 --output $/r "
          "--refused_rows $/bad2.csv");
  EXPECT_EQ(ended.code, 0) << ended.text;
  const std::vector<tensorflow::Example> examples = Examples("r");
  ASSERT_EQ(examples.size(), 2u);
  EXPECT_EQ(FeatureText(examples[1], "id"), "5");
  EXPECT_EQ(FeatureText(examples[1], "price"), "6") << "nothing is left of the bad one before";
  EXPECT_EQ(Read("bad2.csv"), "id,price\n2\n3,x\n4,\"5\n");
  EXPECT_THAT(ended.text, HasSubstr("2 examples in 1 files"));
  // What was refused can be mended and read again.
  EXPECT_EQ(Run("vocab_gen --input $/bad2.csv --header --column id --output $/i").code, 1);
  Write("bad2.csv", absl::StrReplaceAll(Read("bad2.csv"), {{"2\n", "2,0\n"}, {"\"", ""}}));
  EXPECT_EQ(Run("vocab_gen --input $/bad2.csv --header --column id --output $/i").code, 0);
  EXPECT_EQ(Read("i"), "2\n3\n4\n");
}

TEST_F(DataTools, RefusedRowsAreNeverWrittenOverOtherFiles) {
  Write("rows.csv", "id,price\n1,2\n3\n");
  const std::string rows = Read("rows.csv");
  const char* const kRuns[] = {
      "vocab_gen --input $/rows.csv --header --column 0 --output $/w --refused_rows $/w",
      "vocab_gen --input $/rows.csv --header --column 0 --output $/w --refused_rows $/./w",
      "vocab_gen --input $/rows.csv --header --column 0 --output $/w --refused_rows $/rows.csv",
      "data_split --input $/rows.csv --header --column 0 --splits a=1 --output_dir $ "
      "--refused_rows $/a.csv",
      "csv_to_tfrecord --input $/rows.csv --header --schema id:int64,price:int64 --output $/r "
      "--shards 2 --refused_rows $/r-00001"};
  for (const char* run : kRuns) {
    const Ended ended = Run(run);
    EXPECT_EQ(ended.code, 1) << run;
    EXPECT_THAT(ended.text, HasSubstr("--refused_rows must be a file of its own, got")) << run;
    EXPECT_EQ(Read("rows.csv"), rows) << run;
  }
}

TEST_F(DataTools, ABlankHeaderIsNone) {
  Write("rows.csv", "\nid,text\n1,a\n");
  const Ended ended = Run("vocab_gen --input $/rows.csv --header --column 0 --output $/w");
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(ended.text, HasSubstr("the header must name columns, got a blank line"));
}

// The files count, not how they were asked for.
TEST_F(DataTools, SplittingTearsNoRecord) {
  Write("part.csv", "1;\"a\nb\"\n2;\"c\nd\"\n3;x\n");
  for (const char* input : {"$/part.csv", "$/part*"}) {
    const Ended ended =
        Run(absl::StrCat("data_split --input '", input, "' --splits a=1 --output_dir $/out"));
    EXPECT_EQ(ended.code, 0) << ended.text;
    EXPECT_THAT(ended.text, HasSubstr("3")) << input;
    EXPECT_EQ(Read("out/a.txt"), Read("part.csv"));
  }
}

TEST_F(DataTools, TooManyBadRowsEndAProgram) {
  std::string text;
  for (int i = 0; i < 2000; ++i) absl::StrAppend(&text, i, i % 50 == 0 ? "\n" : ",a\n");
  Write("rows.csv", "x,y\n" + text);
  const std::string flags = "vocab_gen --input $/rows.csv --column 1 --output $/words ";
  Ended ended = Run(flags + "--ignore_errors --refused_rows $/bad");
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(ended.text,
              HasSubstr(absl::StrCat("vocab_gen: --max_errors: at most 1 % of the rows may be "
                                     "dropped, got 20 of 1000 rows (2 %), the first: '",
                                     Path("rows.csv"), "' line 2: ")));
  EXPECT_THAT(ended.text, HasSubstr("; '--max_errors 100%' allows any number\n"));
  EXPECT_FALSE(Exists("words"));
  // To look at.
  EXPECT_EQ(Lines(Read("bad")).size(), 20u);
  ended = Run(flags + "--max_errors 3");
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(ended.text, HasSubstr("at most 3 rows may be dropped, got 4 of "));
  RunOk(flags + "--max_errors 3%");
  RunOk(flags + "--max_errors 40");
  EXPECT_EQ(Read("words"), "a\ny\n");

  // Where none is good there is nothing to write.
  Write("none.csv", "a,b\n1\n2\n");
  ended =
      Run("csv_to_tfrecord --input $/none.csv --header --schema a:int64 --output $/r "
          "--ignore_errors");
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(ended.text, HasSubstr("there must be at least one good row, got none; left out "
                                    "2 of 2 rows (100 %), the first: "));
  EXPECT_FALSE(Exists("r"));
}

TEST_F(DataTools, BadRecordsAreLeftOutAsRecords) {
  auto writer = RecordWriter::Open(kFiles, Path("in"));
  ASSERT_OK(writer.status());
  data::ExampleBuilder example;
  example.AddInts("key", {1});
  ASSERT_OK((*writer)->Write(example.Finish()));
  ASSERT_OK((*writer)->Write("no example"));
  ASSERT_OK((*writer)->Close());
  const Ended ended =
      Run("data_split --input $/in --feature key --splits a=1 --output_dir $ --refused_rows $/bad");
  EXPECT_EQ(ended.code, 0) << ended.text;
  EXPECT_THAT(ended.text, HasSubstr("it must be a tf.Example, got other bytes"));
  EXPECT_EQ(Examples("a.tfrecord").size(), 1u);
  auto rows = data::RowFiles::Open({Path("bad")}, {.format = data::RowFormat::kExamples});
  ASSERT_OK(rows.status());
  ASSERT_TRUE(*(*rows)->Next());
  EXPECT_EQ((*rows)->row(), "no example");
}

TEST_F(DataTools, TheCensusGoesThroughAllOfThem) {
  const std::string census = SharedDataPath("census/adult.data.csv");
  if (census.empty()) GTEST_SKIP() << "MILLRACE_SHARED has no census";
  RunOk(absl::StrCat("vocab_gen --input ", census, " --column 6 --counts --output $/jobs.txt"));
  const std::vector<std::string> jobs = Lines(Read("jobs.txt"));
  EXPECT_EQ(jobs.size(), 15u);
  RunOk(absl::StrCat("data_split --input ", census, " --splits a=0.9,b=0.1 --output_dir $/split"));
  const size_t a = Lines(Read("split/a.txt")).size(), b = Lines(Read("split/b.txt")).size();
  EXPECT_EQ(a + b, Lines(*ReadFileToString(kFiles, census)).size());
  RunOk(
      "csv_to_tfrecord --input $/split/b.txt --output $/b.tfrecord --schema "
      "age:int64,workclass:string,fnlwgt:int64,education:string,education_num:int64,"
      "marital_status:string,occupation:string,relationship:string,race:string,gender:string,"
      "capital_gain:int64,capital_loss:int64,hours_per_week:int64,native_country:string,"
      "income_bracket:string");
  EXPECT_EQ(Examples("b.tfrecord").size(), b);
}

}  // namespace
}  // namespace millrace
