// SPDX-License-Identifier: Apache-2.0
#include "data/example_wire.h"

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/file_system.h"
#include "core/record.h"
#include "core/testing/shared_data.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "proto/example.pb.h"

// covers: input: Examples are read by their bytes; cut and flipped bytes are named

namespace millrace {
namespace {

// The features of an example as text, by this reader; "malformed" when it refuses.
std::string Describe(absl::string_view bytes) {
  std::map<std::string, std::string> texts;
  FeatureEntries entries(bytes);
  for (FeatureEntry entry; entries.Next(&entry);) {
    FeatureValues view;
    if (!ReadValues(entry.feature, &view)) return "malformed";
    std::string text;
    const size_t n = static_cast<size_t>(view.count);
    if (view.kind == FeatureKind::kBytes) {
      std::vector<std::string> values(n);
      CopyValues(view, absl::MakeSpan(values));
      text = "bytes";
      for (const std::string& v : values) absl::StrAppend(&text, " ", v.size(), ":", v);
    } else if (view.kind == FeatureKind::kFloat) {
      std::vector<float> values(n, -1);
      CopyValues(view, absl::MakeSpan(values));
      text = "float";
      for (const float v : values) absl::StrAppend(&text, " ", v);
    } else if (view.kind == FeatureKind::kInt64) {
      std::vector<int64_t> values(n, -1);
      CopyValues(view, absl::MakeSpan(values));
      text = "int64";
      for (const int64_t v : values) absl::StrAppend(&text, " ", v);
    }
    texts[std::string(entry.key)] = text;
  }
  if (!entries.ok()) return "malformed";
  std::string all;
  for (const auto& [key, text] : texts) absl::StrAppend(&all, key, "=", text, "\n");
  return all;
}

// The same by protobuf.
std::string DescribeMessage(const tensorflow::Example& example) {
  std::map<std::string, std::string> texts;
  for (const auto& [key, feature] : example.features().feature()) {
    std::string& text = texts[key];
    if (feature.has_bytes_list()) {
      text = "bytes";
      for (const std::string& v : feature.bytes_list().value()) {
        absl::StrAppend(&text, " ", v.size(), ":", v);
      }
    } else if (feature.has_float_list()) {
      text = "float";
      for (const float v : feature.float_list().value()) absl::StrAppend(&text, " ", v);
    } else if (feature.has_int64_list()) {
      text = "int64";
      for (const int64_t v : feature.int64_list().value()) absl::StrAppend(&text, " ", v);
    }
  }
  std::string all;
  for (const auto& [key, text] : texts) absl::StrAppend(&all, key, "=", text, "\n");
  return all;
}

tensorflow::Example SmallExample() {
  tensorflow::Example example;
  auto& features = *example.mutable_features()->mutable_feature();
  for (const float v : {1.5f, -2.0f}) features["f"].mutable_float_list()->add_value(v);
  for (const int64_t v : {int64_t{-1}, int64_t{300}, INT64_MIN, INT64_MAX}) {
    features["i"].mutable_int64_list()->add_value(v);
  }
  features["s"].mutable_bytes_list()->add_value("abc");
  features["s"].mutable_bytes_list()->add_value("");
  features["empty"].mutable_float_list();
  features["unset"];
  return example;
}

// field << 3 | 2, length, bytes
std::string Field(int field, absl::string_view bytes) {
  return absl::StrCat(std::string(1, static_cast<char>(field << 3 | 2)),
                      std::string(1, static_cast<char>(bytes.size())), bytes);
}
std::string OneFeature(absl::string_view key, absl::string_view feature) {
  return Field(1, Field(1, Field(1, key) + Field(2, feature)));
}

TEST(ExampleWire, ReadsWhatProtobufWrites) {
  const tensorflow::Example example = SmallExample();
  EXPECT_EQ(Describe(example.SerializeAsString()), DescribeMessage(example));
  EXPECT_EQ(Describe(""), "");
}

TEST(ExampleWire, NumbersMayComeUnpacked) {
  const std::string floats = std::string("\x0d\x00\x00\xc0\x3f", 5) +
                             std::string("\x0a\x04\x00\x00\x00\x40", 6);  // 1.5, then packed 2
  EXPECT_EQ(Describe(OneFeature("x", Field(2, floats))), "x=float 1.5 2\n");
  const std::string ints = std::string("\x08\x07\x08\xac\x02\x0a\x02\x01\x02", 9);
  EXPECT_EQ(Describe(OneFeature("x", Field(3, ints))), "x=int64 7 300 1 2\n");
}

TEST(ExampleWire, PartsOfOneMessageAreMerged) {
  const std::string list = Field(1, Field(1, "a")), list2 = Field(1, Field(1, "b"));
  EXPECT_EQ(Describe(OneFeature("x", list + list2)), "x=bytes 1:a 1:b\n");
  EXPECT_EQ(Describe(OneFeature("x", list) + OneFeature("y", list2)), "x=bytes 1:a\ny=bytes 1:b\n");
}

TEST(ExampleWire, TheLastOfTwoCounts) {
  const std::string a = Field(1, Field(1, "a"));
  const std::string five = Field(3, "\x08\x05");
  EXPECT_EQ(Describe(OneFeature("x", a) + OneFeature("x", five)), "x=int64 5\n");
  // Another kind replaces, also when the first comes again.
  EXPECT_EQ(Describe(OneFeature("x", a + five)), "x=int64 5\n");
  EXPECT_EQ(Describe(OneFeature("x", a + five + a)), "x=bytes 1:a\n");
}

TEST(ExampleWire, UnknownFieldsAreSkipped) {
  const std::string unknown = std::string("\x38\x01", 2) +                          // 7: varint
                              std::string("\x39\0\0\0\0\0\0\0\0", 9) +              // 7: fixed64
                              std::string("\x3d\0\0\0\0", 5) +                      // 7: fixed32
                              Field(7, "zz") + std::string("\x3b\x38\x01\x3c", 4);  // 7: group
  const std::string feature = unknown + Field(3, unknown + "\x08\x05") + unknown;
  EXPECT_EQ(Describe(unknown + OneFeature("x", feature) + unknown), "x=int64 5\n");
  tensorflow::Example parsed;  // protobuf agrees that this is an Example
  ASSERT_TRUE(parsed.ParseFromString(unknown + OneFeature("x", feature) + unknown));
  EXPECT_EQ(DescribeMessage(parsed), "x=int64 5\n");
}

TEST(ExampleWire, MalformedBytesAreRefused) {
  struct Case {
    const char* what;
    std::string bytes;
  };
  std::string deep(200, '\x3b');
  const Case cases[] = {
      {"length beyond the end", std::string("\x0a\x05", 2)},
      {"length of 2^62", std::string("\x0a\x80\x80\x80\x80\x80\x80\x80\x80\x40", 10)},
      {"tag without end", std::string("\x80", 1)},
      {"varint of 11 bytes", std::string("\x38\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 12)},
      {"field number 0", std::string("\x02\x00", 2)},
      {"wire type 7", std::string("\x0f", 1)},
      {"end of a group that did not begin", std::string("\x3c", 1)},
      {"group without end", std::string("\x3b\x38\x01", 3)},
      {"group that ends as another", std::string("\x3b\x44", 2)},
      {"groups without bound", deep},
      {"packed floats of 5 bytes", OneFeature("x", Field(2, Field(1, "12345")))},
      {"packed varint without end", OneFeature("x", Field(3, Field(1, "\x80")))},
      {"cut float", OneFeature("x", Field(2, "\x0d\x01"))},
  };
  for (const Case& c : cases) EXPECT_EQ(Describe(c.bytes), "malformed") << c.what;
}

TEST(ExampleWire, EveryTruncationAndFlippedByteEndsAsWithProtobuf) {
  const std::string good = SmallExample().SerializeAsString();
  int accepted = 0;
  const auto check = [&](const std::string& bytes) {
    const std::string got = Describe(bytes);
    if (got == "malformed") return;
    ++accepted;
    tensorflow::Example message;
    // Protobuf refuses keys that are not UTF-8; all else must be equal.
    if (message.ParseFromString(bytes)) {
      EXPECT_EQ(got, DescribeMessage(message));
    }
  };
  for (size_t size = 0; size <= good.size(); ++size) check(good.substr(0, size));
  for (size_t i = 0; i < good.size(); ++i) {
    for (int flip = 1; flip < 256; ++flip) {
      std::string bad = good;
      bad[i] = static_cast<char>(bad[i] ^ flip);
      check(bad);
    }
  }
  EXPECT_GT(accepted, 100);  // flipped values and keys
}

TEST(ExampleWire, FilesOfTensorFlowReadAsProtobufReadsThem) {
  const struct {
    const char* path;
    RecordCompression compression;
    int records;
  } files[] = {
      {"tfrecords/mnist_train_sample.tfrecord", RecordCompression::kNone, 20},
      {"tfrecords/penguin_train.tfrecord.gz", RecordCompression::kGzip, 234},
      {"tfrecords/taxi_csv_eval_00000.tfrecord.gz", RecordCompression::kGzip, 424},
  };
  for (const auto& file : files) {
    const std::string path = SharedDataPath(file.path);
    if (path.empty()) GTEST_SKIP() << "MILLRACE_SHARED has no " << file.path;
    ASSERT_OK_AND_ASSIGN(const std::unique_ptr<RecordReader> reader,
                         RecordReader::Open(FileSystem::Posix(), path, file.compression));
    int records = 0;
    while (true) {
      const StatusOr<absl::string_view> record = reader->Next();
      if (!record.ok()) {
        EXPECT_EQ(record.status().code(), absl::StatusCode::kOutOfRange) << record.status();
        break;
      }
      ++records;
      tensorflow::Example message;
      ASSERT_TRUE(message.ParseFromArray(record->data(), static_cast<int>(record->size())));
      ASSERT_EQ(Describe(*record), DescribeMessage(message));
    }
    EXPECT_EQ(records, file.records) << file.path;
  }
}

}  // namespace
}  // namespace millrace
