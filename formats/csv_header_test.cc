// SPDX-License-Identifier: Apache-2.0
#include "formats/csv_header.h"

#include <string>
#include <vector>

#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"

// covers: input: a header that does not match names the column that is missing or elsewhere, and
//   the delimiter that the file seems to have

namespace millrace {
namespace {

using Names = std::vector<std::string>;

TEST(CsvHeader, HasNamesWithoutBlanksAndQuotes) {
  const auto names = [](const char* record, char delim) {
    const auto header = CsvHeader(record, delim, /*quotes=*/true);
    EXPECT_OK(header.status());
    return header.value_or(Names());
  };
  EXPECT_EQ(names("id,text", ','), (Names{"id", "text"}));
  EXPECT_EQ(names("id; text\t", ';'), (Names{"id", "text"}));
  EXPECT_EQ(names("\"a, b\",\"c \"\"d\"\"\"", ','), (Names{"a, b", "c \"d\""}));
  EXPECT_EQ(names("", ','), Names{});
  EXPECT_STATUS(CsvHeader("a,b\"c", ',', true), absl::StatusCode::kInvalidArgument,
                "Unquoted fields cannot have quotes");
}

TEST(CsvHeader, NamesTheColumnThatIsMissingOrElsewhere) {
  const Names columns = {"id", "text", "price"};
  EXPECT_OK(CheckCsvHeader(columns, columns, /*is_whole=*/true));
  EXPECT_OK(CheckCsvHeader({"id", "", "price"}, columns, true));
  EXPECT_OK(CheckCsvHeader({"id"}, columns, /*is_whole=*/false));
  const struct {
    Names columns, header;
    const char* error;
  } cases[] = {
      {columns, {"id", "price", "text"}, "column 'text' in place 2, got it in place 3"},
      {columns, {"id", "text"}, "column 'price' in place 3, got 'id', 'text'"},
      {columns, {"id", "Text", "price"}, "column 'text' in place 2, got 'id', 'Text', 'price'"},
      {columns, {}, "column 'id' in place 1, got none"},
      {{"id"}, {"id", "text"}, "the header must have 1 columns, got 2; 'text' is too much"},
      {{"id", ""}, {"id"}, "the header must have at least 2 columns, got 'id'"},
      {columns, {"id;text;price"}, "got 'id;text;price'; is the delimiter ';'?"},
      {columns, {"id\ttext"}, "; is the delimiter '\\t'?"},
  };
  for (const auto& c : cases) {
    EXPECT_STATUS(CheckCsvHeader(c.columns, c.header, true), absl::StatusCode::kInvalidArgument,
                  c.error);
  }
  EXPECT_STATUS(CheckCsvHeader(columns, Names(21, "x"), true), absl::StatusCode::kInvalidArgument,
                "'x', ...");
  EXPECT_EQ(CsvDelimiterHint({"id", "a;b"}), "");
}

}  // namespace
}  // namespace millrace
