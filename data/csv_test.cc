// SPDX-License-Identifier: Apache-2.0
#include "data/csv.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "core/arena.h"
#include "core/file_system.h"
#include "core/testing/shared_data.h"
#include "core/testing/tensor_testing.h"
#include "data/block.h"
#include "data/dataset.h"
#include "data/iterator_state.h"
#include "data/row_function.h"
#include "data/testing/dataset_testing.h"
#include "gtest/gtest.h"

// covers: input: CSV datasets have TensorFlow's values and errors; a bad record names file and
//   line, also after a header, in several files, with CRLF; the census is read whole
// covers: input: CSV files as the world writes them: byte order mark, CRLF, newlines in quotes,
//   blanks around a missing value, a ragged last line, other delimiters, headers; errors name
//   file, line and column
// covers: article 0-8, 0-9: 15 columns, a blank after every comma that is part of words and labels

namespace millrace::data {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

template <typename T>
Tensor Required() {
  return Tensor::Vector<T>({});
}
Tensor Int(int32_t value) { return Tensor::Scalar(value); }
Tensor Text(const char* value) { return Tensor::Scalar(value); }

// What the op gives for these records, or its error.
std::string Decoded(const CsvOptions& options, const std::vector<std::string>& records) {
  const Tensor lines = Tensor::Vector<std::string>(records);
  return TextOf(Dataset::FromTensors({lines}).Map(DecodeCsv(options)));
}

// The cases of TensorFlow's own test of the op.
TEST(DecodeCsv, HasTensorFlowsValues) {
  EXPECT_EQ(Decoded({.defaults = {Int(1)}}, {"1", "2", "\"3\""}), "[1 2 3]");
  EXPECT_EQ(Decoded({.defaults = {Int(1), Int(2)}}, {"1,4", "2,5", "3,6"}), "[1 2 3]|[4 5 6]");
  EXPECT_EQ(Decoded({.defaults = {Text("")}, .use_quote_delim = false}, {"1", "2", "\"3\""}),
            "[1 2 \"3\"]");
  EXPECT_EQ(Decoded({.defaults = {Int(3), Int(4)}}, {"1,\"\""}), "[1]|[4]");
  EXPECT_EQ(Decoded({.defaults = {Required<double>()}}, {"1.0", "-1.79e+308", "\"1.79e+308\""}),
            "[1 -1.79e+308 1.79e+308]");
  EXPECT_EQ(Decoded({.defaults = {Required<int64_t>()}}, {"1", "2", "\"2147483648\""}),
            "[1 2 2147483648]");
  EXPECT_EQ(Decoded({.defaults = {Text("1")}},
                    {"\"1.0\"", "\"ab , c\"", "\"a\nbc\"", "\"ab\"\"c\"", " abc "}),
            "[1.0 ab , c a\nbc ab\"c  abc ]");
  EXPECT_EQ(Decoded({.defaults = {Tensor::Scalar(1.0f), Int(1), Text("aa")}},
                    {"1.0,4,aa", "0.2,5,bb", "3,6,cc"}),
            "[1 0.2 3]|[4 5 6]|[aa bb cc]");
  EXPECT_EQ(Decoded({.defaults = {Tensor::Scalar(0.0f), Int(0), Text("")}, .na_value = "NA"},
                    {"2.0,NA,aa", "NA,5,bb", "3,6,NA"}),
            "[2 0 3]|[0 5 6]|[aa bb ]");
  EXPECT_EQ(Decoded({.defaults = {Tensor::Scalar(1.0f), Int(0), Text("a")}},
                    {",1,", "0.2,3,bcd", "3.0,,"}),
            "[1 0.2 3]|[1 3 0]|[a bcd a]");
  EXPECT_EQ(
      Decoded({.defaults = {Tensor::Scalar(1.0f), Int(0), Text("a")}, .use_quote_delim = false},
              {",1,", "0.2,3,bcd", "3.0,,\""}),
      "[1 0.2 3]|[1 3 0]|[a bcd \"]");
  EXPECT_EQ(Decoded({.defaults = {Tensor::Scalar(1.0f), Int(0)}, .field_delim = "\t"},
                    {"1\t1", "0.2\t3", "3.0\t"}),
            "[1 0.2 3]|[1 3 0]");
  EXPECT_EQ(Decoded({.defaults = {Int(1), Int(2)}, .select_cols = {0, 1}}, {",,", "4,5,6"}),
            "[1 4]|[2 5]");
  EXPECT_EQ(
      Decoded({.defaults = {Int(0), Int(1), Int(2)}, .select_cols = {0, 1, 2}}, {",,", "4,5,6"}),
      "[0 4]|[1 5]|[2 6]");
}

TEST(DecodeCsv, HasTensorFlowsErrors) {
  const Tensor one = Tensor::Scalar(1.0f);
  const struct {
    CsvOptions options;
    std::vector<std::string> records;
    std::string error;
  } cases[] = {
      {{.defaults = {one, Required<int32_t>()}},
       {",1", "0.2,3", "3.0,"},
       "Field 1 is required but missing in record 2!"},
      {{.defaults = {one, Required<int32_t>()}},
       {",1", "0.2,234a", "3.0,2"},
       "Field 1 in record 1 is not a valid int32: 234a"},
      {{.defaults = {Int(1)}},
       {"1", "9999999999999999999999999", "3"},
       "Field 0 in record 1 is not a valid int32: 9999999999999999999999999"},
      {{.defaults = {one, Required<int32_t>()}},
       {",1", "0.2,2", "3.0adf,3"},
       "Field 0 in record 2 is not a valid float: 3.0adf"},
      {{.defaults = {Required<int64_t>()}},
       {"1.5"},
       "Field 0 in record 0 is not a valid int64: 1.5"},
      {{.defaults = {Required<double>()}}, {"x"}, "Field 0 in record 0 is not a valid double: x"},
      {{.defaults = {Text("a")}},
       {"\"1,a,\"", "0.22", "a\"bc"},
       "Unquoted fields cannot have quotes/CRLFs inside"},
      {{.defaults = {Text("a")}}, {"a\rb"}, "Unquoted fields cannot have quotes/CRLFs inside"},
      {{.defaults = {Text("a")}, .use_quote_delim = false},
       {"a\nb"},
       "Unquoted fields cannot have quotes/CRLFs inside"},
      {{.defaults = {Text("a")}},
       {"\"a\"b"},
       "Quote inside a string has to be escaped by another quote"},
      {{.defaults = {one}}, {",1", "0.2,2"}, "Expect 1 fields but have 2 in record 0"},
      {{.defaults = {one, one}}, {"1,2", ""}, "Expect 2 fields but have 0 in record 1"},
      {{.defaults = {one}}, {"x,2"}, "Expect 1 fields but have 2 in record 0"},
      {{.defaults = {Text("default")}},
       {"\""},
       "Quoted field has to end with quote followed by delim or end"},
      {{.defaults = {Text("default")}},
       {"\"a\"\""},
       "Quoted field has to end with quote followed by delim or end"},
      {{.defaults = {Int(0), Int(1)}, .select_cols = {0, 3}},
       {"1,2,3"},
       "Expect 2 fields but have 1 in record 0"},
  };
  for (const auto& c : cases) {
    EXPECT_EQ(Decoded(c.options, c.records), absl::StrCat("<", c.error, ">"));
  }
}

TEST(DecodeCsv, NumbersMayHaveBlanksStringsKeepThem) {
  const CsvOptions options = {.defaults = {Int(0), Tensor::Scalar(0.0f), Tensor::Scalar(0.0),
                                           Tensor::Scalar(int64_t{0}), Text("")}};
  EXPECT_EQ(Decoded(options, {" 39, 1.5 , 2.5,\t-7, <=50K"}), "[39]|[1.5]|[2.5]|[-7]|[ <=50K]");
  EXPECT_EQ(Decoded(options, {"-1,+1e2,-.5,+3, "}), "[-1]|[100]|[-0.5]|[3]|[ ]");
  EXPECT_EQ(Decoded(options, {"0,1e99,-1e999,0,"}), "[0]|[inf]|[-inf]|[0]|[]");
  EXPECT_EQ(Decoded(options, {"0,inf,nan,0,"}), "[0]|[inf]|[nan]|[0]|[]");
  EXPECT_EQ(Decoded(options, {"2147483648,0,0,0,"}),
            "<Field 0 in record 0 is not a valid int32: 2147483648>");
}

TEST(DecodeCsv, BlanksMayStandAroundAMissingValue) {
  const CsvOptions options = {.defaults = {Int(7), Tensor::Scalar(0.5f), Text("none")},
                              .na_value = "NA"};
  EXPECT_EQ(Decoded(options, {" ,\t , "}), "[7]|[0.5]|[ ]");
  EXPECT_EQ(Decoded(options, {" NA,NA , NA "}), "[7]|[0.5]|[none]");
  EXPECT_EQ(Decoded(options, {"\" \",\"NA \",\" NA\""}), "[7]|[0.5]|[none]");
  EXPECT_EQ(Decoded(options, {"1,2, NAN "}), "[1]|[2]|[ NAN ]");
  EXPECT_EQ(Decoded({.defaults = {Required<int32_t>()}}, {" "}),
            "<Field 0 is required but missing in record 0!>");
  EXPECT_EQ(Decoded({.defaults = {Int(7)}, .na_value = "?"}, {" ? x"}),
            "<Field 0 in record 0 is not a valid int32:  ? x>");
  EXPECT_EQ(Decoded({.defaults = {Text("none")}, .na_value = " ?"}, {" ?", "?"}), "[none ?]");
}

// Of records that come from elsewhere than a file.
TEST(DecodeCsv, AByteOrderMarkIsNamed) {
  EXPECT_EQ(Decoded({.defaults = {Int(0)}}, {"\xef\xbb\xbf" + std::string("1")}),
            "<Field 0 in record 0 is not a valid int32: \xef\xbb\xbf" +
                std::string("1; a byte order mark is in front of it>"));
}

TEST(DecodeCsv, ErrorsNameTheColumn) {
  const CsvOptions options = {.defaults = {Required<int32_t>(), Tensor::Scalar(0.5f), Text("")},
                              .names = {"id", "price", "word"}};
  const struct {
    const char *record, *error;
  } cases[] = {
      {"x,1,a", "column 'id': Field 0 in record 0 is not a valid int32: x"},
      {",1,a", "column 'id': Field 0 is required but missing in record 0!"},
      {"1,x,\"a\"", "column 'price': Field 1 in record 0 is not a valid float: x"},
      {"1,2,a\"b", "column 'word': Unquoted fields cannot have quotes/CRLFs inside"},
      {"1,\"2", "column 'price': Quoted field has to end with quote followed by delim or end"},
      {"1,2", "Expect 3 fields but have 2 in record 0; column 'word' is missing"},
      {"", "Expect 3 fields but have 0 in record 0; column 'id' is missing"},
      {"1,2,3,4", "Expect 3 fields but have 4 in record 0"},
      {"1,2,3,\"", "Quoted field has to end with quote followed by delim or end"},
  };
  for (const auto& c : cases) {
    EXPECT_EQ(Decoded(options, {c.record}), absl::StrCat("<", c.error, ">"));
  }
  const CsvOptions some = {
      .defaults = {Int(0), Int(0)}, .names = {"b", "d"}, .select_cols = {1, 3}};
  EXPECT_EQ(Decoded(some, {"a,1,c,x,e"}),
            "<column 'd': Field 1 in record 0 is not a valid int32: x>");
  EXPECT_EQ(Decoded(some, {"a,1,c"}),
            "<Expect 2 fields but have 1 in record 0; column 'd' is missing>");
}

TEST(DecodeCsv, SelectedColumnsAreAllThatIsLookedAt) {
  EXPECT_EQ(Decoded({.defaults = {Int(0), Text("")}, .select_cols = {1, 3}},
                    {"x,1,y,z,\"not looked at", "\"q,\"\"\",2,,w"}),
            "[1 2]|[z w]");
}

TEST(DecodeCsv, TakesAnyShape) {
  const CsvOptions options = {.defaults = {Int(5)}, .names = {"n"}};
  const Dataset matrix =
      Dataset::FromTensors({TensorOf<std::string>({2, 2}, {"1", "2", "\"\"", "4"})});
  EXPECT_EQ(TextOf(matrix.Map(DecodeCsv(options))), "[[1 2][5 4]]");
  EXPECT_EQ(TextOf(Dataset::FromTensors({Text("7")}).Map(DecodeCsv(options))), "7");
  EXPECT_EQ(TextOf(Dataset::FromTensors({TensorOf<std::string>({0}, {})}).Map(DecodeCsv(options))),
            "[]");
  const Dataset mapped = matrix.Map(DecodeCsv(options));
  EXPECT_EQ(SpecText(mapped.spec()), "(int32 [2,2] 'n')");
  ExpectKeepsItsSpec(mapped);
  // Rows of two records: numbers of records are those of the element.
  const Dataset pairs =
      Dataset::FromTensorSlices({TensorOf<std::string>({2, 2}, {"1", "2", "3", "x"})})
          .Map(DecodeCsv(options));
  const std::string error = "<column 'n': Field 0 in record 1 is not a valid int32: x>";
  EXPECT_EQ(TextOf(pairs), "[1 2] " + error);
  EXPECT_EQ(TextOf(pairs.Batch(1)), "[[1 2]] " + error);
}

TEST(DecodeCsv, RefusesWhatCannotWork) {
  const struct {
    CsvOptions options;
    std::string error;
  } cases[] = {
      {{}, "at least one column"},
      {{.defaults = {Tensor()}}, "the default of column 0 must be int32, int64, float, double or"},
      {{.defaults = {Tensor::Scalar(true)}}, "got bool"},
      {{.defaults = {TensorOf<int32_t>({2}, {1, 2})}}, "must have one element or none"},
      {{.defaults = {TensorOf<int32_t>({1, 1}, {1})}}, "must have one element or none"},
      {{.defaults = {Int(0)}, .names = {"a", "b"}}, "there must be 1 names, got 2"},
      {{.defaults = {Int(0)}, .field_delim = ""}, "field_delim must be one character, got ''"},
      {{.defaults = {Int(0)}, .field_delim = "::"}, "field_delim must be one character, got '::'"},
      {{.defaults = {Int(0)}, .field_delim = "\""}, "no newline and no quote"},
      {{.defaults = {Int(0)}, .field_delim = "\n"}, "no newline and no quote"},
      {{.defaults = {Int(0)}, .select_cols = {0, 1}}, "one column for each of 1 defaults, got 2"},
      {{.defaults = {Int(0), Int(0)}, .select_cols = {1, 0}}, "strictly increasing, got 0 after 1"},
      {{.defaults = {Int(0), Int(0)}, .select_cols = {-1, 0}}, "must be >= 0"},
  };
  for (const auto& c : cases) EXPECT_STATUS(DecodeCsv(c.options), kInvalid, c.error);
  EXPECT_STATUS(Dataset::Range(1).Map(DecodeCsv({.defaults = {Int(0)}})).status(), kInvalid,
                "elements must be one string component, got (int64 [])");
}

TEST(DecodeCsv, AnyBytesEndInValuesOrAnError) {
  const std::string seed = "1, 2.5,\"a\"\"b,c\",x\n,\"\",-7";
  const CsvOptions options = {
      .defaults = {Int(0), Tensor::Scalar(0.0f), Text(""), Text(""), Required<int64_t>()}};
  for (size_t i = 0; i < seed.size(); ++i) {
    for (const char c : {'"', ',', '\n', '\r', '\0', 'e', '9'}) {
      std::string changed = seed;
      changed[i] = c;
      EXPECT_FALSE(Decoded(options, {changed}).empty());
      EXPECT_FALSE(Decoded(options, {changed.substr(0, i)}).empty());
    }
  }
}

// Lines of a file: one by one, in blocks, on one thread and on several.
TEST(DecodeCsv, ParsesWholeBatchesOfAFile) {
  const std::string path = JoinPath(testing::TempDir(), "csv_lines");
  std::string bytes = "n,text\n";
  std::vector<std::string> want;
  for (int i = 0; i < 1000; ++i) {
    if (i % 300 == 299) {
      absl::StrAppend(&bytes, i, ",\"a ", i, "\",too,many\n");
      want.push_back(absl::StrCat("<Text lines '", path, "', line ", i + 2,
                                  ": Expect 2 fields but have 4 in record 0>"));
    } else {
      absl::StrAppend(&bytes, " ", i, ",\"a ", i, "\"\n");
      want.push_back(absl::StrCat(i, "|a ", i));
    }
  }
  ASSERT_OK(WriteFileAtomically(FileSystem::Posix(), path, bytes));
  const Dataset rows =
      Dataset::TextLines({path}).Skip(1).Map(DecodeCsv({.defaults = {Int(0), Text("")}}));
  const auto arena = Arena::Make(3);
  for (Arena* const threads : {static_cast<Arena*>(nullptr), arena.get()}) {
    const IteratorOptions options = {.arena = threads};
    EXPECT_EQ(ElementsOf(rows, options), want);
    EXPECT_EQ(ElementsOf(rows.Batch(1).Unbatch(), options), want);
    // An error ends its batch; the rows before it in the batch are lost.
    const std::vector<std::string> batches = ElementsOf(rows.Batch(100).Unbatch(), options);
    EXPECT_EQ(batches.size(), 1000u - 3 * 99);
    EXPECT_EQ(std::count_if(batches.begin(), batches.end(),
                            [](const std::string& text) { return text[0] == '<'; }),
              3);
  }
}

// Texts of blocks stay in the file's memory, in that of defaults, or are put together elsewhere:
// what comes out, at once or out of a shuffle's buffer, is what records one by one give.
TEST(DecodeCsv, TextsOfBlocksAreThoseOfRecords) {
  const std::string path = JoinPath(testing::TempDir(), "csv_texts");
  std::string bytes;
  for (size_t i = 0; i < 900; ++i) {
    const std::string fields[] = {absl::StrCat("plain ", i),
                                  "",
                                  "NA",
                                  absl::StrCat("\"quoted, ", i, "\""),
                                  absl::StrCat("\"a \"\"doubled\"\" ", i, "\""),
                                  "\"\"\"\"",
                                  "\"\"",
                                  std::string(i % 600, 'x')};
    absl::StrAppend(&bytes, fields[i % 8], ",", i, ",", fields[i / 8 % 8], "\r\n");
  }
  ASSERT_OK(WriteFileAtomically(FileSystem::Posix(), path, bytes));
  ASSERT_OK_AND_ASSIGN(const auto parse,
                       DecodeCsv({.defaults = {Text("a default that is long"), Int(0), Text("")},
                                  .na_value = "NA"}));
  // A file is read in pieces, so that records end one and begin the next.
  const Dataset lines = Dataset::TextLines({path}, {.buffer_size = 4096});
  const Dataset blocks = lines.Map(parse);
  const Dataset records =
      lines.Map([parse](Element line) { return parse->Call(line, Arena::Default()); },
                {.spec = blocks.spec()});
  const std::vector<std::string> want = ElementsOf(records);
  ASSERT_EQ(want.size(), 900u);
  EXPECT_EQ(ElementsOf(blocks), want);
  EXPECT_EQ(ElementsOf(blocks.Batch(7).Unbatch()), want);
  EXPECT_EQ(ElementsOf(blocks.Batch(500)), ElementsOf(records.Batch(500)));
  const ShuffleOptions seeds = {.seed = 3, .seed2 = 4};
  for (const int64_t buffer : {50, 300, 5000}) {
    SCOPED_TRACE(buffer);
    EXPECT_EQ(ElementsOf(blocks.Shuffle(buffer, seeds)),
              ElementsOf(records.Shuffle(buffer, seeds)));
    EXPECT_EQ(ElementsOf(blocks.Shuffle(buffer, seeds).Repeat(2).Batch(40)),
              ElementsOf(records.Shuffle(buffer, seeds).Repeat(2).Batch(40)));
    EXPECT_EQ(ElementsOf(blocks.ShuffleAndRepeat(buffer, 2, seeds).Skip(5).Batch(300)),
              ElementsOf(records.ShuffleAndRepeat(buffer, 2, seeds).Skip(5).Batch(300)));
  }
}

TEST(DecodeCsv, ReadsTheCensus) {
  const std::string path = SharedDataPath("census/adult.data.csv");
  if (path.empty()) GTEST_SKIP() << "MILLRACE_SHARED has no census/adult.data.csv";
  const Tensor number = Tensor::Scalar(0.0f), text = Text("");
  const Dataset rows = Dataset::TextLines({path}).Map(
      DecodeCsv({.defaults = {number, text, number, text, number, text, text, text, text, text,
                              number, number, number, text, text}}));
  int64_t count = 0, rich = 0;
  ASSERT_OK_AND_ASSIGN(const auto iterator, rows.Batch(40).MakeIterator());
  for (Element batch;;) {
    ASSERT_OK_AND_ASSIGN(const bool more, iterator->Next(&batch));
    if (!more) break;
    for (const std::string& label : batch[14].flat<std::string>()) {
      ++count;
      if (label == " >50K") ++rich;
    }
  }
  EXPECT_EQ(count, 32561);
  EXPECT_EQ(rich, 7841);
}

// --- Bad records of files

class CsvFileTest : public testing::Test {
 protected:
  std::string Write(const std::string& name, const std::string& bytes) {
    const std::string path = testing::TempDir() + "/csv_file_test_" + name;
    EXPECT_OK(WriteFileAtomically(FileSystem::Posix(), path, bytes));
    return path;
  }
  // Both columns are required.
  static CsvOptions TwoInts() { return {.defaults = {Required<int32_t>(), Required<int32_t>()}}; }
  // All errors of one pass, one per line.
  static std::string Errors(const Dataset& dataset) {
    std::string errors;
    const auto iterator = dataset.MakeIterator();
    EXPECT_OK(iterator);
    if (!iterator.ok()) return errors;
    for (Element element;;) {
      const StatusOr<bool> more = (*iterator)->Next(&element);
      if (more.ok() && !*more) return errors;
      if (!more.ok()) absl::StrAppend(&errors, more.status().message(), "\n");
    }
  }
};

TEST_F(CsvFileTest, FileLineAndFieldAreNamed) {
  const std::string a = Write("a", "1,2\n3,4\n5,x\n7,8\n"),
                    b = Write("b", "1,2\r\n,2\r\n\r\n9\r\n");
  const std::string want =
      absl::StrCat("Text lines '", a, "', line 3: Field 1 in record 0 is not a valid int32: x\n",
                   "Text lines '", b, "', line 2: Field 0 is required but missing in record 0!\n",
                   "Text lines '", b, "', line 3: Expect 2 fields but have 0 in record 0\n",
                   "Text lines '", b, "', line 4: Expect 2 fields but have 1 in record 0\n");
  const Dataset parsed = Dataset::TextLines({a, b}).Map(DecodeCsv(TwoInts()));
  EXPECT_EQ(Errors(parsed), want);           // row by row
  EXPECT_EQ(Errors(parsed.Batch(1)), want);  // in blocks
  // The header is skipped, the lines keep their numbers.
  const std::string header = Write("header", "first,second\n1,2\nx,2\n");
  EXPECT_EQ(Errors(Dataset::TextLines({header}).Skip(1).Map(DecodeCsv(TwoInts()))),
            absl::StrCat("Text lines '", header,
                         "', line 3: Field 0 in record 0 is not a valid int32: x\n"));
}

// Skip leaves out lines of the whole sequence: of several files with headers only the first one's.
// A function of the rows that DecodeCsv gives fails at a row of the file.
TEST_F(CsvFileTest, FunctionsOfItsRowsAreToldTheirPlaceToo) {
  class Odd : public RowFunction {
   public:
    std::string Name() const override { return "Odd"; }
    StatusOr<ElementSpec> OutputSpec(const ElementSpec& input) const override { return input; }
    StatusOr<Element> Call(const Element& element, Arena*) const override {
      MR_RETURN_IF_ERROR(Check(element[0].raw<int32_t>()[0]));
      return element;
    }
    Status CallBlock(const Block& in, Arena*, Block* out, Status* error) const override {
      int64_t row = 0;
      for (const int32_t value : in.columns[0].stacked.raw<int32_t>()) {
        *error = Check(value);
        if (!error->ok()) break;
        ++row;
      }
      *out = Slice(in, 0, row);
      return absl::OkStatus();
    }

   private:
    static Status Check(int32_t value) {
      return value % 2 != 0 ? absl::OkStatus() : InvalidArgument("even: ", value);
    }
  };
  const std::string path = Write("odd", "1,2\n3,4\n6,5\n7,8\n8,8\n9,0\n");
  const Dataset rows = Dataset::TextLines({path}).Map(DecodeCsv(TwoInts()));
  const std::string want = absl::StrCat("Text lines '", path, "', line 3: even: 6\nText lines '",
                                        path, "', line 5: even: 8\n");
  const Dataset odd = rows.Map(std::make_shared<const Odd>());
  EXPECT_EQ(Errors(odd), want);
  EXPECT_EQ(Errors(odd.Batch(2)), want);
  EXPECT_EQ(ElementsOf(odd.IgnoreErrors()), (std::vector<std::string>{"1|2", "3|4", "7|8", "9|0"}));
}

TEST_F(CsvFileTest, AHeaderInEachFileIsSkippedFileByFile) {
  const std::vector<std::string> paths = {Write("h1", "first,second\n1,2\n"),
                                          Write("h2", "first,second\n3,4\n")};
  EXPECT_EQ(Errors(Dataset::TextLines(paths).Skip(1).Map(DecodeCsv(TwoInts()))),
            absl::StrCat("Text lines '", paths[1],
                         "', line 1: Field 0 in record 0 is not a valid int32: first\n"));
  const Dataset rows = Dataset::FromTensorSlices({Tensor::Vector<std::string>(paths)})
                           .FlatMap([](const Element& path) -> StatusOr<Dataset> {
                             return Dataset::TextLines({path[0].scalar<std::string>()}).Skip(1);
                           })
                           .Map(DecodeCsv(TwoInts()))
                           .Batch(4);
  EXPECT_EQ(TextOf(rows), "[1 3]|[2 4]");
}

// --- Files as the world writes them

const std::string kMark = "\xef\xbb\xbf";

TEST_F(CsvFileTest, FilesAreReadAsTheWorldWritesThem) {
  const CsvOptions two = {.defaults = {Int(0), Text("")}, .names = {"id", "text"}};
  CsvOptions semicolons = two, tabs = two, na = two;
  semicolons.field_delim = ";";
  tabs.field_delim = "\t";
  na.na_value = "NA";
  const struct {
    std::string bytes;
    const CsvOptions& options;
    bool has_header;
    std::string want;
  } cases[] = {
      {kMark + "1,a\n2,b\n", two, false, "1|a 2|b"},
      {kMark + "id,text\n1,a\n2,b", two, true, "1|a 2|b"},
      {kMark + "\"id\",\"text\"\r\n1,a\r\n2,b\r\n", two, true, "1|a 2|b"},
      {kMark + "\"1\",a\n", two, false, "1|a"},
      {kMark, two, false, ""},
      {"id, text \n", two, true, ""},
      {"1,\"a\nb\"\n2,\"c\r\n\r\nd\"\r\n3,e\r", two, false, "1|a\nb 2|c\r\n\r\nd 3|e"},
      {"id,\"text\"\n1,\"\"\"a\"\"\n\"", two, true, "1|\"a\"\n"},
      {"1;a,b\n2;\"c;\nd\"", semicolons, false, "1|a,b 2|c;\nd"},
      {"id\ttext\n1\ta b\n", tabs, true, "1|a b"},
      {" ,a\n NA , NA\n", na, false, "0|a 0|"},
  };
  for (const auto& c : cases) {
    const Dataset rows =
        CsvDataset({Write("world", c.bytes)}, c.options, {.has_header = c.has_header});
    EXPECT_EQ(TextOf(rows), c.want) << c.bytes;
    EXPECT_EQ(TextOf(rows.Batch(1).Unbatch()), c.want) << c.bytes;
    ExpectStatesGoOn(rows);
  }
}

TEST_F(CsvFileTest, WhatIsWrongIsNamedByFileLineAndColumn) {
  const CsvOptions two = {.defaults = {Int(0), Text("")}, .names = {"id", "text"}};
  const struct {
    std::string bytes;
    bool has_header;
    std::string want;  // "$": the file
  } cases[] = {
      {"", true, "<CSV '$': it must begin with a header, got an empty file>"},
      {kMark, true, "<CSV '$': it must begin with a header, got an empty file>"},
      {"id,word\n1,a\n", true,
       "<CSV '$': the header must have column 'text' in place 2, got 'id', 'word'>"},
      {"text,id\n1,a\n", true,
       "<CSV '$': the header must have column 'id' in place 1, got it in place 2>"},
      {"id,text,more\n1,a,b\n", true,
       "<CSV '$': the header must have 2 columns, got 3; 'more' is too much>"},
      {"id;text\n1;a\n", true,
       "<CSV '$': the header must have column 'id' in place 1, got 'id;text'; is the delimiter "
       "';'?>"},
      {"\xff\xfe" + std::string("i\0d\0", 4), true,
       "<CSV '$': it must be UTF-8, got UTF-16's byte order mark>"},
      // The record that goes on over lines counts them.
      {"1,\"a\nb\"\nx,c\n3,d\n", false,
       "1|a\nb <CSV '$', line 3: column 'id': Field 0 in record 0 is not a valid int32: x> 3|d"},
      // The last line lacks a column.
      {"id,text\n1,a\n2", true,
       "1|a <CSV '$', line 3: Expect 2 fields but have 1 in record 0; column 'text' is missing>"},
      // A quote that is never closed costs its row.
      {"1,\"a\n2,b\n3,c\n", false,
       "<CSV '$', line 1: column 'text': Quoted field has to end with quote followed by delim or "
       "end> 2|b 3|c"},
  };
  for (const auto& c : cases) {
    const std::string path = Write("wrong", c.bytes);
    const std::string want = absl::StrReplaceAll(c.want, {{"$", path}});
    const Dataset rows = CsvDataset({path}, two, {.has_header = c.has_header});
    EXPECT_EQ(TextOf(rows), want);
    EXPECT_EQ(TextOf(rows.Batch(1).Unbatch()), want);
  }
}

TEST_F(CsvFileTest, HeadersAreThoseOfTheColumnsInEachFile) {
  const std::string a = Write("names_a", "x,b,y,d,z\n0,1,0,2,0\n"),
                    b = Write("names_b", kMark + "x,\"b\",y,d\r\n0,3,0,4\r\n"),
                    wrong = Write("names_c", "x,d,y,b\n0,3,0,4\n");
  const CsvOptions some = {
      .defaults = {Int(0), Int(0)}, .names = {"b", "d"}, .select_cols = {1, 3}};
  EXPECT_EQ(TextOf(CsvDataset({a, b}, some, {.has_header = true})), "1|2 3|4");
  // A file whose header is another one is left out with one error.
  EXPECT_EQ(TextOf(CsvDataset({a, wrong, b}, some, {.has_header = true})),
            absl::StrCat("1|2 <CSV '", wrong,
                         "': the header must have column 'b' in place 2, got it in place 4> 3|4"));
  // Without names it is skipped in each file.
  EXPECT_EQ(TextOf(CsvDataset({a, wrong}, {.defaults = {Int(0), Int(0)}, .select_cols = {1, 3}},
                              {.has_header = true})),
            "1|2 3|4");
  EXPECT_STATUS(CsvDataset({a}, {}).status(), kInvalid, "there must be at least one column");
  EXPECT_STATUS(CsvDataset({a}, some, {.file = {.buffer_size = -1}}).status(), kInvalid,
                "buffer_size must be >= 0, got -1");
  EXPECT_STATUS(Dataset::CsvRecords({a}, {.columns = {"x"}}).status(), kInvalid,
                "columns must be those of a header");
  EXPECT_STATUS(Dataset::CsvRecords({a}, {.field_delim = '\n'}).status(), kInvalid,
                "field_delim must be no newline and no quote");
}

// A line keeps its number through a saved and restored iterator.
TEST_F(CsvFileTest, LinesAreCountedFromTheFilesBeginningAfterARestore) {
  const std::string path = Write("state", "1,2\n3,4\nbad\n");
  for (const bool blocks : {false, true}) {
    Dataset rows = Dataset::TextLines({path}).Map(DecodeCsv(TwoInts()));
    if (blocks) rows = rows.Batch(1);
    ASSERT_OK_AND_ASSIGN(const auto first, rows.MakeIterator());
    Element element;
    ASSERT_OK(first->Next(&element).status());
    ASSERT_OK_AND_ASSIGN(const std::string state, first->Save());
    ASSERT_OK_AND_ASSIGN(const auto second, rows.MakeIterator());
    ASSERT_OK(second->Restore(state));
    ASSERT_OK(second->Next(&element).status());
    const Status error = second->Next(&element).status();
    EXPECT_EQ(error.message(), absl::StrCat("Text lines '", path,
                                            "', line 3: Expect 2 fields but have 1 in record 0"));
  }
}

// Rows that wait for their turn are saved with their place: the states are between the bad ones.
TEST_F(CsvFileTest, ABadRowThatWaitedInAStateNamesItsFileAndLine) {
  const std::string good = Write("state_good", "7,8\n");
  const std::string path = Write("state_bad", "1,2\n3,4\nbad\nworse\n5,6\n");
  const std::string bad =
      absl::StrCat("<CSV '", path, "', line 3: Expect 2 fields but have 1 in ", "record 0> <CSV '",
                   path, "', line 4: Expect 2 fields but have 1 in record 0>");
  const Dataset rows = CsvDataset({good, path}, TwoInts());
  EXPECT_EQ(TextOf(rows), absl::StrCat("7|8 1|2 3|4 ", bad, " 5|6"));
  ExpectStatesGoOn(rows);
  // The first batch was lost with the first bad row.
  EXPECT_EQ(TextOf(rows.Batch(5)), absl::StrCat(bad, " [5]|[6]"));
  ExpectStatesGoOn(rows.Batch(5));
  ExpectStatesGoOn(Dataset::TextLines({good, path}).Map(DecodeCsv(TwoInts())));
}

// What a state of an earlier version lacks is not known: the row's error has no place.
TEST_F(CsvFileTest, AnEarlierStateGoesOnWithoutThePlacesOfItsRows) {
  const std::string path = Write("state_earlier", "1,2\nbad\nworse\n");
  const Dataset rows = Dataset::TextLines({path}).Map(DecodeCsv(TwoInts()));
  const auto state_of = [&](absl::string_view version) {
    StateWriter state;
    state.PutBytes(absl::StrCat("millrace iterator ", version));
    state.PutBytes(rows.DebugString());
    state.PutUint(7);      // the seed
    state.PutBool(false);  // the end
    state.PutInt(1);       // rows that wait
    EXPECT_OK(state.PutElement({Tensor::Scalar(std::string("bad"))}));
    state.PutUint(0);     // the file,
    state.PutBool(true);  // open,
    state.PutUint(8);     // at this byte,
    state.PutInt(3);      // which begins this line
    return state.Take();
  };
  ASSERT_OK_AND_ASSIGN(const auto iterator, rows.MakeIterator());
  ASSERT_OK(iterator->Restore(state_of("1")));
  const std::string error = "Expect 2 fields but have 1 in record 0>";
  EXPECT_EQ(RestOf(iterator.get()),
            (std::vector<std::string>{"<" + error,
                                      absl::StrCat("<Text lines '", path, "', line 3: ", error)}));
  // As this version it is cut: the row's place is missing.
  EXPECT_EQ(iterator->Restore(state_of("2")).code(), absl::StatusCode::kDataLoss);
  EXPECT_STATUS(iterator->Restore(state_of("3")), absl::StatusCode::kUnimplemented,
                "Iterator state: its version must be at most 2, got 3; a later Millrace wrote it");
  for (const char* version : {"", "0", "-1", "two"}) {
    EXPECT_STATUS(iterator->Restore(state_of(version)), absl::StatusCode::kDataLoss,
                  "it must begin as one does");
  }
}

TEST(RowOrigin, RowsOfASliceAreWhereTheyWere) {
  Block block;
  block.rows = 3;
  block.columns.push_back({.stacked = Tensor::Of({1, 2, 3})});
  const Status wrong = absl::InvalidArgumentError("wrong");
  EXPECT_EQ(block.origin.Tell(2, wrong), wrong);
  block.origin = {.file = std::make_shared<const std::string>("f"), .first = 7};
  EXPECT_EQ(block.origin.Tell(2, wrong).message(), "Text lines 'f', line 9: wrong");
  EXPECT_EQ(Slice(block, 1, 3).origin.Tell(1, wrong).message(), "Text lines 'f', line 9: wrong");
}

TEST_F(CsvFileTest, TextsThatAreNoNumbersAreReadByName) {
  const std::string path = Write("nan", "nan\nNaN\ninf\n-INF\n1e400\n\"nan\"\n nan \n");
  ASSERT_OK_AND_ASSIGN(const auto iterator, Dataset::TextLines({path})
                                                .Map(DecodeCsv({.defaults = {Required<float>()}}))
                                                .Batch(9)
                                                .MakeIterator());
  Element batch;
  ASSERT_OK(iterator->Next(&batch).status());
  const absl::Span<const float> x = batch[0].flat<float>();
  ASSERT_EQ(x.size(), 7u);
  for (const size_t i : {0u, 1u, 5u, 6u}) EXPECT_TRUE(std::isnan(x[i])) << i;
  for (const size_t i : {2u, 4u}) EXPECT_EQ(x[i], INFINITY);
  EXPECT_EQ(x[3], -INFINITY);
}

}  // namespace
}  // namespace millrace::data
