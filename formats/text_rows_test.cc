// SPDX-License-Identifier: Apache-2.0
#include "formats/text_rows.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/byte_reader.h"
#include "core/file_system.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"

// covers: input: CSV records go on over the end of a line inside quotes, wherever the file is cut
//   for reading; a stray quote costs one row

namespace millrace {
namespace {

const std::string kMark = "\xef\xbb\xbf";

TextRows Open(const std::string& text, const TextRowsOptions& options, size_t chunk = 4096) {
  const std::string path = JoinPath(::testing::TempDir(), "text_rows_test");
  EXPECT_OK(WriteFileAtomically(FileSystem::Posix(), path, text));
  auto bytes = ByteReader::Open(FileSystem::Posix(), path, "Text", Compression::kNone, 0, chunk);
  EXPECT_OK(bytes.status());
  return TextRows(*std::move(bytes), options);
}

// "<line>:<row>" of all rows; the last is the error, if there is one.
std::vector<std::string> All(TextRows rows, size_t most) {
  std::vector<std::string> all;
  std::vector<absl::string_view> some;
  while (true) {
    const Status status = rows.Next(most, &some);
    if (!status.ok()) all.emplace_back(status.message());
    if (!status.ok() || some.empty()) return all;
    EXPECT_LE(some.size(), most);
    for (size_t i = 0; i < some.size(); ++i) {
      all.push_back(absl::StrCat(rows.line() + static_cast<int64_t>(i), ":", some[i]));
    }
  }
}

using Rows = std::vector<std::string>;

TEST(TextRows, AreCsvRecords) {
  const struct {
    std::string text;
    Rows rows;
  } cases[] = {
      {"", {}},
      {kMark, {}},
      {"a", {"1:a"}},
      {"a,b\r\nc,d\r\n", {"1:a,b", "2:c,d"}},
      {kMark + "\"a\",b\nc", {"1:\"a\",b", "2:c"}},
      {"a\n" + kMark + "b\n", {"1:a", "2:" + kMark + "b"}},
      {"\n\nx\n", {"1:", "2:", "3:x"}},
      {"1,\"a\nb\"\n2,c\n", {"1:1,\"a\nb\"", "3:2,c"}},
      {"1,\"a\r\n\r\nb\"\r\n2,c\r", {"1:1,\"a\r\n\r\nb\"", "4:2,c"}},
      {"\"a\n\"\"\nb\",2\n3,4", {"1:\"a\n\"\"\nb\",2", "4:3,4"}},
      {"\"\"\"\n\"\n1\n", {"1:\"\"\"\n\"", "3:1"}},
      {"1,\"\"\n2,\"\"\"\"\n3", {"1:1,\"\"", "2:2,\"\"\"\"", "3:3"}},
      // The last one may end with the file.
      {"1,\"a\nb\"", {"1:1,\"a\nb\""}},
      // Quotes that open nothing, or are never closed.
      {"5\" disk,\"x\"\n2\n", {"1:5\" disk,\"x\"", "2:2"}},
      {"a \"b\nc\" d\n", {"1:a \"b", "2:c\" d"}},
      {"1,\"a\n2,b\n3,c", {"1:1,\"a", "2:2,b", "3:3,c"}},
      {"1,\"a\n2,\"b\"\n3,c\n", {"1:1,\"a", "2:2,\"b\"", "3:3,c"}},
      {"1,\"a\"b\n2,c\n", {"1:1,\"a\"b", "2:2,c"}},
      {"1,\"", {"1:1,\""}},
      {"\"", {"1:\""}},
      {"\"\n", {"1:\""}},
  };
  for (const auto& c : cases) {
    for (const size_t most : {1u, 2u, 100u}) {
      EXPECT_EQ(All(Open(c.text, {.quotes = true}), most), c.rows) << c.text;
    }
  }
  EXPECT_EQ(All(Open("1;\"a\nb\"\n2,\"c\n", {.quotes = true, .field_delim = ';'}), 9),
            (Rows{"1:1;\"a\nb\"", "3:2,\"c"}));
}

TEST(TextRows, AreLines) {
  const std::string text = kMark + "1,\"a\r\nb\"\n\nc\r";
  EXPECT_EQ(All(Open(text, {}), 9), (Rows{"1:1,\"a", "2:b\"", "3:", "4:c"}));
  EXPECT_EQ(All(Open(text, {.keep_last_return = true}), 9),
            (Rows{"1:1,\"a", "2:b\"", "3:", "4:c\r"}));
}

// The file is read in pieces that end anywhere; the rows are the same.
TEST(TextRows, DoNotDependOnThePiecesOfTheFile) {
  std::string text = kMark;
  Rows want;
  int64_t line = 1;
  for (int i = 0; i < 3000; ++i) {
    std::string row = absl::StrCat(i, ",plain");
    const size_t some = static_cast<size_t>(i % 80);
    if (i % 5 == 1) row = absl::StrCat(i, ",\"", std::string(some, 'x'), "\"");
    if (i % 5 == 3) row = absl::StrCat(i, ",\"\"\"a\"\"\n", std::string(some, '\n'), "\"");
    if (i % 5 == 4) row = absl::StrCat(i, ",6\" ", i);
    want.push_back(absl::StrCat(line, ":", row));
    for (const char c : row) line += c == '\n';
    ++line;
    absl::StrAppend(&text, row, i % 2 == 0 ? "\n" : "\r\n");
  }
  for (const size_t chunk : {1u, 4096u, 10'000u, 1'000'000u}) {
    for (const size_t most : {1u, 64u}) {
      EXPECT_EQ(All(Open(text, {.quotes = true}, chunk), most), want) << chunk;
    }
  }
}

// Where the row at `begin` ends, byte by byte.
size_t EndOfRow(const std::string& text, size_t begin) {
  const size_t size = text.size();
  for (size_t i = begin; i < size; ++i) {
    if (text[i] == '\n') return i;
    if (text[i] != '"' || (i > begin && text[i - 1] != ',')) continue;
    ++i;
    while (i < size && (text[i] != '"' || text.compare(i, 2, "\"\"") == 0)) {
      i += text[i] == '"' ? size_t{2} : size_t{1};
    }
    const bool is_closed =
        i < size && (i + 1 == size || std::string(",\n\r").find(text[i + 1]) != std::string::npos);
    if (!is_closed) return std::min(text.find('\n', begin), size);
  }
  return size;
}

TEST(TextRows, AreThoseOfAReaderByteByByte) {
  for (uint32_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    // Few quotes, or many; a piece of the file is 1,024 bytes.
    const std::string characters =
        std::string(seed % 7, 'x') + std::string(seed % 13, 'y') + "\"\",,\n\r\"";
    std::string text;
    while (text.size() < 2500) text += characters[random() % characters.size()];
    Rows want;
    int64_t line = 1;
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = EndOfRow(text, begin);
      std::string row = text.substr(begin, end - begin);
      if (!row.empty() && row.back() == '\r') row.pop_back();
      want.push_back(absl::StrCat(line, ":", row));
      line += 1 + std::count(row.begin(), row.end(), '\n');
      begin = end + 1;
    }
    ASSERT_EQ(All(Open(text, {.quotes = true}, 1), 1 + seed % 10), want);
  }
}

TEST(TextRows, KnowTheirPlaces) {
  const std::string text = kMark + "a\nb,\"c\nd\"\ne";
  TextRows rows = Open(text, {.quotes = true});
  std::vector<absl::string_view> some;
  ASSERT_OK(rows.Next(9, &some));
  ASSERT_EQ(some.size(), 2u);
  EXPECT_EQ(rows.OffsetOf(some[0]), 3u);
  EXPECT_EQ(rows.OffsetOf(some[1]), 5u);
  EXPECT_EQ(rows.offset(), text.size() - 1);
  EXPECT_EQ(rows.next_line(), 4);
}

TEST(TextRows, AFieldThatIsNotClosedInTimeTakesNoOtherLine) {
  const std::string long_field(9000, 'x');
  const std::string text = absl::StrCat("\"a\n", long_field, "\n", long_field, "\"\nb\n");
  EXPECT_EQ(All(Open(text, {.quotes = true, .most_quoted_bytes = 8000}), 9),
            (Rows{"1:\"a", "2:" + long_field, "3:" + long_field + "\"", "4:b"}));
  EXPECT_EQ(All(Open(text, {.quotes = true}), 9).size(), 2u);
  // Its length counts, not that of its row, and wherever its end is found.
  const std::string several = absl::StrCat(long_field, ",\"a\n", long_field, "\"\nb\n");
  EXPECT_EQ(All(Open(several, {.quotes = true, .most_quoted_bytes = 9100}), 9).size(), 2u);
  const std::string small = "\"a\n" + std::string(50, 'x') + "\"\nb\n";
  EXPECT_EQ(All(Open(small, {.quotes = true, .most_quoted_bytes = 20}), 9).size(), 3u);
  EXPECT_EQ(All(Open(small, {.quotes = true, .most_quoted_bytes = 60}), 9).size(), 2u);
}

TEST(TextRows, QuotesOpenBehindAnyDelimiterWhereNoneIsKnown) {
  const std::string text = "1;\"a\nb\"\n2\t\"a\nb\"\n3|\"a\nb\"\n4,\"a\nb\"\n5:\"a\n";
  EXPECT_EQ(All(Open(text, {.quotes = true, .any_delim = true}), 9).size(), 5u);
  EXPECT_EQ(All(Open(text, {.quotes = true}), 9).size(), 8u);
}

TEST(TextRows, RefuseCsvInUtf16) {
  const std::string text(
      "\xff\xfe"
      "1\0\n\0",
      6);
  EXPECT_EQ(All(Open(text, {.quotes = true, .label = "'f'"}), 9),
            (Rows{"'f': it must be UTF-8, got UTF-16's byte order mark"}));
  EXPECT_EQ(All(Open(text, {}), 9).size(), 2u);
}

TEST(TextRows, RefuseALineAboveTheLimitByItsNumber) {
  const TextRowsOptions options = {.max_row_bytes = 10, .label = "'f'"};
  EXPECT_EQ(All(Open("short\n" + std::string(100, 'x') + "\nshort\n", options), 9),
            (Rows{"1:short", "'f' line 2: a line must have at most 10 bytes, got more"}));
  EXPECT_EQ(All(Open(std::string(10, 'x') + "\n" + std::string(11, 'x'), options), 9),
            (Rows{"1:xxxxxxxxxx", "'f' line 2: a line must have at most 10 bytes, got more"}));
}

}  // namespace
}  // namespace millrace
