// SPDX-License-Identifier: Apache-2.0
#include "core/line_reader.h"

#include <memory>
#include <string>
#include <vector>

#include "core/file_system.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

std::string Write(const std::string& name, const std::string& text) {
  const std::string path = JoinPath(::testing::TempDir(), "line_reader_" + name);
  EXPECT_OK(WriteFileAtomically(FileSystem::Posix(), path, text));
  return path;
}

LineReader Open(const std::string& path, size_t max_line_bytes = LineReader::kMaxLineBytes,
                size_t chunk = 4) {
  auto bytes = ByteReader::Open(FileSystem::Posix(), path, "Lines", Compression::kNone, 0, chunk);
  EXPECT_OK(bytes.status());
  return LineReader("Lines", *std::move(bytes), max_line_bytes);
}

std::vector<std::string> All(LineReader reader) {
  std::vector<std::string> lines;
  while (true) {
    const auto line = reader.Next();
    EXPECT_OK(line.status());
    if (!line.ok() || !*line) return lines;
    lines.emplace_back(**line);
    EXPECT_EQ(reader.line_number(), static_cast<int64_t>(lines.size()));
  }
}

using Lines = std::vector<std::string>;

TEST(LineReader, EndsLinesAtNewlinesOfBothKindsAndTheEndOfTheFile) {
  EXPECT_EQ(All(Open(Write("a", "one\ntwo\r\n\n\r\nlast line"))),
            (Lines{"one", "two", "", "", "last line"}));
  EXPECT_EQ(All(Open(Write("b", "one\n"))), Lines{"one"});
  EXPECT_EQ(All(Open(Write("c", ""))), Lines{});
  EXPECT_EQ(All(Open(Write("d", "a\rb\r\n\r"))), (Lines{"a\rb", ""}));
}

TEST(LineReader, RefusesALineAboveTheLimitByItsNumber) {
  const std::string path = Write("e", "short\n" + std::string(100, 'x') + "\nshort\n");
  LineReader reader = Open(path, /*max_line_bytes=*/16);
  ASSERT_OK(reader.Next().status());
  EXPECT_STATUS(reader.Next(), absl::StatusCode::kInvalidArgument,
                "Lines line 2: a line must have at most 16 bytes, got more");
  // At the limit is fine, whatever the pieces in which the file is read.
  for (const size_t chunk : {size_t{1}, size_t{7}, size_t{64}}) {
    EXPECT_EQ(All(Open(path, 200, chunk)).size(), 3u);
  }
}

}  // namespace
}  // namespace millrace
