// SPDX-License-Identifier: Apache-2.0
#include "core/record.h"

#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "core/coding.h"
#include "core/crc32c.h"
#include "core/testing/shared_data.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

// covers: input: each cut and each wrong byte of a record is named
// covers: events: a cut record is the end of the file or a named loss

namespace millrace {
namespace {

using Records = std::vector<std::string>;

std::string TestPath() {
  return JoinPath(
      testing::TempDir(),
      absl::StrCat("record_", testing::UnitTest::GetInstance()->current_test_info()->name()));
}

void WriteBytes(const std::string& path, absl::string_view bytes) {
  auto file = FileSystem::Posix()->NewWritableFile(path);
  ASSERT_EQ(file.status(), absl::OkStatus());
  ASSERT_EQ((*file)->Append(bytes), absl::OkStatus());
  ASSERT_EQ((*file)->Close(), absl::OkStatus());
}

std::string ReadBytes(const std::string& path) {
  auto bytes = ReadFileToString(FileSystem::Posix(), path);
  EXPECT_EQ(bytes.status(), absl::OkStatus());
  return bytes.ok() ? *bytes : "";
}

std::string FileOf(const Records& records, RecordCompression compression) {
  const std::string path = TestPath();
  auto writer = RecordWriter::Open(FileSystem::Posix(), path, compression);
  EXPECT_EQ(writer.status(), absl::OkStatus());
  for (const std::string& record : records) EXPECT_EQ((*writer)->Write(record), absl::OkStatus());
  EXPECT_EQ((*writer)->Close(), absl::OkStatus());
  return path;
}

// All records up to the end or the first error.
Status ReadAll(const std::string& path, RecordCompression compression, Records* records,
               uint64_t offset = 0, bool* is_cut = nullptr) {
  records->clear();
  auto reader = RecordReader::Open(FileSystem::Posix(), path, compression, offset);
  if (!reader.ok()) return reader.status();
  for (;;) {
    const auto record = (*reader)->Next();
    if (!record.ok()) {
      EXPECT_EQ((*reader)->Next().status(), record.status()) << "the end repeats";
      if (is_cut != nullptr) *is_cut = (*reader)->is_cut();
      return record.status();
    }
    records->emplace_back(*record);
  }
}

const RecordCompression kAll[] = {RecordCompression::kNone, RecordCompression::kZlib,
                                  RecordCompression::kGzip};

Records SomeRecords() {
  return {"",
          "a",
          std::string("\0\xff", 2),
          std::string(300'000, 'x'),
          std::string(1'000'000, '\0'),
          "the last"};
}

TEST(RecordTest, TheBytesOfARecord) {
  const std::string path = FileOf({"The Quick Brown Fox"}, RecordCompression::kNone);
  const std::string bytes = ReadBytes(path);
  ASSERT_EQ(bytes.size(), 12u + 19 + 4);
  EXPECT_EQ(DecodeFixed64(bytes.data()), 19u);
  EXPECT_EQ(DecodeFixed32(bytes.data() + 8), MaskCrc32c(Crc32c(bytes.substr(0, 8))));
  EXPECT_EQ(bytes.substr(12, 19), "The Quick Brown Fox");
  EXPECT_EQ(DecodeFixed32(bytes.data() + 31), MaskCrc32c(Crc32c("The Quick Brown Fox")));
}

TEST(RecordTest, WhatIsWrittenIsReadInEveryCompression) {
  for (const RecordCompression compression : kAll) {
    const std::string path = FileOf(SomeRecords(), compression);
    Records records;
    const Status end = ReadAll(path, compression, &records);
    EXPECT_EQ(end.code(), absl::StatusCode::kOutOfRange) << end;
    EXPECT_EQ(records, SomeRecords());
  }
}

TEST(RecordTest, AnEmptyFileIsAnEnd) {
  WriteBytes(TestPath(), "");
  for (const RecordCompression compression : kAll) {
    Records records;
    EXPECT_EQ(ReadAll(TestPath(), compression, &records).code(), absl::StatusCode::kOutOfRange);
    EXPECT_TRUE(records.empty());
  }
}

TEST(RecordTest, EveryCutIsAnEndInsideTheHeaderAndALossAfterIt) {
  const Records written = {"first", "", "third record"};
  const std::string bytes = ReadBytes(FileOf(written, RecordCompression::kNone));
  const std::vector<size_t> starts = {0, 21, 37, bytes.size()};
  for (size_t cut = 0; cut <= bytes.size(); ++cut) {
    WriteBytes(TestPath(), absl::string_view(bytes).substr(0, cut));
    Records records;
    bool is_cut = false;
    const Status end = ReadAll(TestPath(), RecordCompression::kNone, &records, 0, &is_cut);
    EXPECT_EQ(is_cut, absl::IsDataLoss(end)) << cut;
    size_t whole = 0;
    while (whole + 1 < starts.size() && starts[whole + 1] <= cut) ++whole;
    EXPECT_EQ(records, Records(written.begin(), written.begin() + static_cast<long>(whole)));
    if (cut - starts[whole] < 12) {
      EXPECT_EQ(end.code(), absl::StatusCode::kOutOfRange) << cut << ": " << end;
    } else {
      EXPECT_EQ(end.code(), absl::StatusCode::kDataLoss) << cut;
      EXPECT_NE(end.message().find(absl::StrCat("truncated record at ", starts[whole])),
                std::string::npos)
          << end;
    }
  }
}

TEST(RecordTest, EveryFlippedByteIsDetectedAtItsPlace) {
  const Records written = {"first", "second"};
  const std::string bytes = ReadBytes(FileOf(written, RecordCompression::kNone));
  for (size_t at = 0; at < bytes.size(); ++at) {
    for (const int mask : {0x01, 0x80, 0xff}) {
      std::string bad = bytes;
      bad[at] = static_cast<char>(bad[at] ^ mask);
      WriteBytes(TestPath(), bad);
      Records records;
      bool is_cut = false;
      const Status end = ReadAll(TestPath(), RecordCompression::kNone, &records, 0, &is_cut);
      EXPECT_FALSE(is_cut) << at;
      const size_t start = at < 21 ? 0 : 21;
      const size_t place = at - start < 12 ? start : start + 12;
      EXPECT_EQ(records.size(), at < 21 ? 0u : 1u);
      EXPECT_EQ(end.code(), absl::StatusCode::kDataLoss) << at;
      EXPECT_NE(end.message().find(absl::StrCat("corrupted record at ", place)), std::string::npos)
          << end;
    }
  }
}

TEST(RecordTest, AHugeLengthWithAGoodChecksumAllocatesNothing) {
  for (const uint64_t length :
       {uint64_t{1} << 40, uint64_t{1} << 62, UINT64_MAX, UINT64_MAX - 15}) {
    std::string bytes(12, '\0');
    EncodeFixed64(bytes.data(), length);
    EncodeFixed32(bytes.data() + 8, MaskCrc32c(Crc32c(bytes.substr(0, 8))));
    bytes += "some data";
    WriteBytes(TestPath(), bytes);
    Records records;
    const Status end = ReadAll(TestPath(), RecordCompression::kNone, &records);
    EXPECT_EQ(end.code(), absl::StatusCode::kDataLoss);
    EXPECT_NE(end.message().find("truncated record at 0"), std::string::npos) << end;
  }
}

TEST(RecordTest, EveryCutOrFlipOfACompressedFileGivesAPrefixOrAnError) {
  const Records written = {"first", "second second second", "third"};
  for (const RecordCompression compression : {RecordCompression::kZlib, RecordCompression::kGzip}) {
    const std::string bytes = ReadBytes(FileOf(written, compression));
    for (size_t cut = 1; cut < bytes.size(); ++cut) {
      WriteBytes(TestPath(), absl::string_view(bytes).substr(0, cut));
      Records records;
      EXPECT_EQ(ReadAll(TestPath(), compression, &records).code(), absl::StatusCode::kDataLoss)
          << cut;
      EXPECT_LE(records.size(), written.size());
      for (size_t i = 0; i < records.size(); ++i) EXPECT_EQ(records[i], written[i]);
    }
    int harmless = 0;
    for (size_t at = 0; at < bytes.size(); ++at) {
      std::string bad = bytes;
      bad[at] = static_cast<char>(bad[at] ^ 0x10);
      WriteBytes(TestPath(), bad);
      Records records;
      const Status end = ReadAll(TestPath(), compression, &records);
      for (size_t i = 0; i < records.size(); ++i) EXPECT_EQ(records[i], written[i]);
      if (absl::IsOutOfRange(end)) {
        EXPECT_EQ(records, written);
        ++harmless;
      } else {
        EXPECT_EQ(end.code(), absl::StatusCode::kDataLoss) << end;
      }
    }
    // The bits that fill the last byte before the checksum; in a gzip header also six bytes (time,
    // extra flags, system) that mean nothing to us.
    EXPECT_LE(harmless, compression == RecordCompression::kGzip ? 7 : 1);
  }
}

TEST(RecordTest, SeveralCompressedStreamsInARowAreOneFile) {
  const std::string one = ReadBytes(FileOf({"a", "b"}, RecordCompression::kGzip));
  const std::string two = ReadBytes(FileOf({"c"}, RecordCompression::kGzip));
  WriteBytes(TestPath(), one + two);
  Records records;
  EXPECT_EQ(ReadAll(TestPath(), RecordCompression::kGzip, &records).code(),
            absl::StatusCode::kOutOfRange);
  EXPECT_EQ(records, (Records{"a", "b", "c"}));
}

TEST(RecordTest, AReaderMayGoOnWhereAnEarlierOneEnded) {
  const std::string path = TestPath();
  auto writer = RecordWriter::Open(FileSystem::Posix(), path);
  ASSERT_EQ(writer.status(), absl::OkStatus());
  ASSERT_EQ((*writer)->Write("one"), absl::OkStatus());
  ASSERT_EQ((*writer)->Flush(), absl::OkStatus());
  auto reader = RecordReader::Open(FileSystem::Posix(), path);
  ASSERT_EQ(reader.status(), absl::OkStatus());
  EXPECT_EQ(*(*reader)->Next(), "one");
  EXPECT_EQ((*reader)->offset(), 19u);
  EXPECT_EQ((*reader)->Next().status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ((*reader)->offset(), 19u);
  ASSERT_EQ((*writer)->Write("two"), absl::OkStatus());
  ASSERT_EQ((*writer)->Sync(), absl::OkStatus());
  Records records;
  EXPECT_EQ(ReadAll(path, RecordCompression::kNone, &records, 19).code(),
            absl::StatusCode::kOutOfRange);
  EXPECT_EQ(records, Records{"two"});
}

TEST(RecordTest, FlushMakesCompressedRecordsReadable) {
  const std::string path = TestPath();
  auto writer = RecordWriter::Open(FileSystem::Posix(), path, RecordCompression::kZlib);
  ASSERT_EQ((*writer)->Write("one"), absl::OkStatus());
  ASSERT_EQ((*writer)->Flush(), absl::OkStatus());
  auto reader = RecordReader::Open(FileSystem::Posix(), path, RecordCompression::kZlib);
  EXPECT_EQ(*(*reader)->Next(), "one");
}

TEST(RecordTest, MisuseIsAStatus) {
  auto writer = RecordWriter::Open(FileSystem::Posix(), TestPath());
  ASSERT_EQ((*writer)->Close(), absl::OkStatus());
  EXPECT_EQ((*writer)->Write("x").code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ((*writer)->Close(), absl::OkStatus());
  EXPECT_EQ(RecordReader::Open(FileSystem::Posix(), TestPath(), RecordCompression::kGzip, 5)
                .status()
                .code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(RecordReader::Open(FileSystem::Posix(), TestPath() + ".missing").status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(*ParseRecordCompression("GZIP"), RecordCompression::kGzip);
  EXPECT_EQ(*ParseRecordCompression(""), RecordCompression::kNone);
  EXPECT_EQ(ParseRecordCompression("LZ4").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(RecordTest, FilesOfTensorFlowHaveTheExpectedRecords) {
  const std::string data = SharedDataPath("");
  if (data.empty()) GTEST_SKIP() << "MILLRACE_SHARED is not set";
  std::ifstream stream(JoinPath(data, "cases.json"));
  const nlohmann::json cases = nlohmann::json::parse(stream, nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(cases.is_object());
  int files = 0;
  for (const auto& item : cases["cases"]) {
    if (item["kind"] != "tfrecord") continue;
    ++files;
    const std::string path = item["path"];
    const RecordCompression compression =
        item["compression"] == "gzip" ? RecordCompression::kGzip : RecordCompression::kNone;
    Records records;
    EXPECT_EQ(ReadAll(JoinPath(data, path), compression, &records).code(),
              absl::StatusCode::kOutOfRange)
        << path;
    EXPECT_EQ(records.size(), item["records"].get<size_t>()) << path;
    size_t bytes = 0;
    for (const std::string& record : records) bytes += record.size();
    EXPECT_EQ(bytes, item["payload_bytes"].get<size_t>()) << path;
    if (item.contains("payloads_b64")) {
      for (size_t i = 0; i < records.size(); ++i) {
        EXPECT_EQ(absl::Base64Escape(records[i]), item["payloads_b64"][i].get<std::string>());
      }
    }
    if (compression == RecordCompression::kNone) {  // our writer makes the same bytes
      EXPECT_EQ(ReadBytes(FileOf(records, compression)), ReadBytes(JoinPath(data, path))) << path;
    }
  }
  EXPECT_GE(files, 7);
}

// What was found in memory stays readable while it is held, and nothing is found twice or lost.
TEST(RecordReader, RecordsInMemoryStayWhereTheyAre) {
  Records written;
  for (size_t i = 0; i < 3000; ++i) {
    written.push_back(std::string(i * 131 % 1000, static_cast<char>('a' + i % 26)));
  }
  for (const RecordCompression compression :
       {RecordCompression::kNone, RecordCompression::kZlib, RecordCompression::kGzip}) {
    const std::string path = FileOf(written, compression);
    auto reader = RecordReader::Open(FileSystem::Posix(), path, compression);
    ASSERT_EQ(reader.status(), absl::OkStatus());
    std::vector<absl::string_view> all, some;
    std::vector<BufferRef> held;
    Status end;
    for (size_t most = 1;; most = most % 700 + 13) {
      end = (*reader)->NextInMemory(most, &some);
      if (!end.ok()) break;
      ASSERT_FALSE(some.empty());
      ASSERT_LE(some.size(), most);
      held.push_back((*reader)->owner());
      all.insert(all.end(), some.begin(), some.end());
    }
    EXPECT_EQ(end.code(), absl::StatusCode::kOutOfRange) << end;
    EXPECT_EQ(Records(all.begin(), all.end()), written);
  }
}

}  // namespace
}  // namespace millrace
