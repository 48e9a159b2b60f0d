// SPDX-License-Identifier: Apache-2.0
#include "examples/wide_deep/census.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/testing/shared_data.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

constexpr char kPerson[] =
    "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, "
    "2174, 0, 40, United-States, >50K\n";

StatusOr<Census> Read(const std::string& text) {
  const std::string path =
      JoinPath(::testing::TempDir(), absl::StrCat("census_", RandomHexName(), ".csv"));
  MR_RETURN_IF_ERROR(WriteFileAtomically(FileSystem::Posix(), path, text));
  return ReadCensus(path);
}

TEST(CensusTest, APersonIsNumbersAndIds) {
  ASSERT_OK_AND_ASSIGN(const Census census, Read(absl::StrCat(kPerson, "\n", kPerson)));
  ASSERT_EQ(census.size(), 2);
  ASSERT_OK_AND_ASSIGN(const CensusBatch batch, MakeBatch(census, {1, 0, 1}));
  EXPECT_EQ(batch.numbers.shape().ToString(), "[3,5]");
  EXPECT_EQ(batch.categories.shape().ToString(), "[3,8]");
  EXPECT_EQ(batch.crosses.shape().ToString(), "[3,2]");
  EXPECT_EQ(batch.labels, Tensor::Of<float>({{1}, {1}, {1}}));
  EXPECT_FLOAT_EQ(batch.numbers.at<float>(0, 0), 0.39f);
  for (int64_t i = 0; i < kCategories; ++i) {
    EXPECT_EQ(batch.categories.at<int64_t>(2, i) / kCategoryIds, i);
  }
  for (int64_t i = 0; i < kCrosses; ++i) {
    EXPECT_EQ(batch.crosses.at<int64_t>(2, i) / kCrossIds, i);
  }
}

TEST(CensusTest, ALineThatIsNoPersonIsNamed) {
  EXPECT_STATUS(Read(absl::StrCat(kPerson, "39, State-gov\n")).status(),
                absl::StatusCode::kDataLoss, "line 2: must have 15 columns of a person");
  std::string text(kPerson);
  text.replace(0, 2, "old");
  EXPECT_STATUS(Read(text).status(), absl::StatusCode::kDataLoss, "line 1: must have 15 columns");
  EXPECT_STATUS(ReadCensus("/nothing.csv").status(), absl::StatusCode::kNotFound, "/nothing.csv");
}

TEST(CensusTest, DrawnPeopleAreOfBothKindsAndTheSameForASeed) {
  const Census census = DrawCensus(1000, 7);
  EXPECT_EQ(census.numbers, DrawCensus(1000, 7).numbers);
  float rich = 0;
  for (const float label : census.labels) rich += label;
  EXPECT_GT(rich, 200);
  EXPECT_LT(rich, 800);
}

TEST(CensusTest, UcisFileIsRead) {
  const std::string path = SharedDataPath("census/adult.data.csv");
  if (path.empty()) GTEST_SKIP() << "MILLRACE_SHARED has no census/adult.data.csv";
  ASSERT_OK_AND_ASSIGN(const Census census, ReadCensus(path));
  EXPECT_EQ(census.size(), 32561);
  double rich = 0;
  for (const float label : census.labels) rich += static_cast<double>(label);
  EXPECT_EQ(rich, 7841);
}

}  // namespace
}  // namespace millrace
