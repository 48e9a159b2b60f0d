// SPDX-License-Identifier: Apache-2.0
#include "data/parse_rows.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/arena.h"
#include "core/file_system.h"
#include "core/record.h"
#include "core/testing/tensor_testing.h"
#include "data/dataset.h"
#include "data/testing/dataset_testing.h"
#include "data/testing/test_example.h"
#include "gtest/gtest.h"

namespace millrace::data {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

FeatureSpecs Specs() {
  return {{"n", FixedLenFeature{.dtype = DT_INT64}},
          {"word", FixedLenFeature{.dtype = DT_STRING, .default_value = Tensor::Scalar("none")}},
          {"x", FixedLenFeature{.shape = {2}}}};
}
std::string Row(int64_t n) {
  const float x = static_cast<float>(n);
  return TestExample().Ints("n", {n}).Floats("x", {x, -x});
}
std::string Write(const std::string& name, const std::vector<std::string>& records) {
  const std::string path = testing::TempDir() + "/parse_rows_" + name;
  auto writer = RecordWriter::Open(FileSystem::Posix(), path);
  EXPECT_OK(writer);
  for (const std::string& record : records) EXPECT_OK((*writer)->Write(record));
  EXPECT_OK((*writer)->Close());
  return path;
}

TEST(ParseExampleRows, ComponentsAreTheFeaturesByName) {
  const Dataset rows =
      Dataset::Records({Write("good", {Row(1), Row(2), Row(3)})}).Map(ParseExampleRows(Specs()));
  ASSERT_OK(rows.status());
  EXPECT_EQ(SpecText(rows.spec()), "(int64 [] 'n', string [] 'word', float [2] 'x')");
  EXPECT_EQ(TextOf(rows.Batch(2)), TextOf(rows.Batch(2)));
  ASSERT_OK_AND_ASSIGN(const auto iterator, rows.Batch(3).MakeIterator());
  Element batch;
  ASSERT_OK(iterator->Next(&batch).status());
  ExpectTensorEqual(batch[0], Tensor::Of<int64_t>({1, 2, 3}));
  ExpectTensorEqual(batch[1], Tensor::Of({"none", "none", "none"}));
  ExpectTensorEqual(batch[2], Tensor::Of<float>({{1, -1}, {2, -2}, {3, -3}}));
}

// Blocks, rows one by one and batches of strings give the same.
TEST(ParseExampleRows, GivesTheSameInBlocksAndOneByOne) {
  std::vector<std::string> records;
  for (int64_t n = 0; n < 500; ++n) records.push_back(Row(n));
  const Dataset strings = Dataset::Records({Write("many", records)});
  const auto parse = ParseExampleRows(Specs());
  ASSERT_OK(parse);
  const std::string blocks = TextOf(strings.Map(parse).Batch(50));
  const MapFunction one = [parse](Element element) {
    return (*parse)->Call(element, Arena::Default());
  };
  EXPECT_EQ(TextOf(strings.Map(one).Batch(50)), blocks);
  EXPECT_EQ(TextOf(strings.Batch(50).Map(parse)), blocks);
}

TEST(ParseExampleRows, BadRecordsAreToldWithTheirFile) {
  const std::string path =
      Write("bad", {Row(1), "garbage", TestExample().Ints("n", {1}), Row(4),
                    TestExample().Floats("n", {1}).Floats("x", {1, 2}), Row(6)});
  const std::vector<std::string> want = {
      absl::StrCat("Records '", path, "', record 2: Name: <unknown>, Index: 0.  Could not parse"),
      absl::StrCat("Records '", path,
                   "', record 3: Name: <unknown>, Feature: x (data type: float) is required"),
      absl::StrCat("Records '", path,
                   "', record 5: Name: <unknown>, Key: n, Index: 0.  Data types don't match.")};
  const Dataset rows = Dataset::Records({path}).Map(ParseExampleRows(Specs()));
  for (const Dataset& dataset : {rows, rows.Batch(1)}) {
    ASSERT_OK_AND_ASSIGN(const auto iterator, dataset.MakeIterator());
    size_t errors = 0, good = 0;
    for (Element element;;) {
      const StatusOr<bool> more = iterator->Next(&element);
      if (more.ok() && !*more) break;
      if (more.ok()) {
        ++good;
        continue;
      }
      ASSERT_LT(errors, want.size()) << more.status();
      EXPECT_STATUS(more, kInvalid, want[errors]);
      ++errors;
    }
    EXPECT_EQ(errors, want.size());
    EXPECT_EQ(good, 3u);
  }
}

TEST(ParseExampleRows, OtherFeaturesAndElementsAreRefused) {
  const Dataset strings = Dataset::FromTensorSlices({Tensor::Of({"a"})});
  EXPECT_STATUS(strings.Map(ParseExampleRows({})).status(), kInvalid,
                "there must be at least one feature, got none");
  EXPECT_STATUS(strings.Map(ParseExampleRows({{"v", VarLenFeature{}}})).status(), kInvalid,
                "feature 'v' must be a FixedLenFeature");
  EXPECT_STATUS(
      strings.Map(ParseExampleRows({{"d", FixedLenFeature{.dtype = DT_DOUBLE}}})).status(),
      kInvalid, "feature 'd' must be float, int64 or string, got double");
  EXPECT_STATUS(Dataset::Range(3).Map(ParseExampleRows(Specs())).status(), kInvalid,
                "elements must be one string component");
}

}  // namespace
}  // namespace millrace::data
