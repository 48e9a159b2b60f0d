// SPDX-License-Identifier: Apache-2.0
#include "core/fingerprint64.h"

#include <string>

#include "gtest/gtest.h"

// covers: input: strings hash to the buckets that TensorFlow published (FarmHash, SipHash, its old
//   hash)

namespace millrace {
namespace {

TEST(Fingerprint64, HasTheValuesThatTensorFlowPublished) {
  EXPECT_EQ(Fingerprint64("Hello"), 15404698994557526151u);
  EXPECT_EQ(Fingerprint64("World"), 18308117990299812472u);
}

TEST(Fingerprint64, GivesTheBucketsOfOldModels) {
  const struct {
    const char* text;
    int64_t buckets, bucket;
  } cases[] = {
      {"a", 10, 9},
      {"b", 10, 2},
      {"c", 10, 2},
      {"d", 10, 5},
      {" Machine-op-inspct", 100, 46},
      {" Adm-clerical", 100, 49},
      {" Exec-managerial", 100, 4},
      {" Handlers-cleaners", 100, 70},
      {" ?", 100, 0},
      {" Prof-specialty", 100, 42},
      {"Machine-op-inspct", 100, 11},
      {"Adm-clerical", 100, 96},
      {" United-States", 100, 48},
      {" Cuba", 100, 38},
      {" Holand-Netherlands", 100, 54},
      {"United-States", 100, 87},
  };
  for (const auto& c : cases) EXPECT_EQ(FingerprintBucket(c.text, c.buckets), c.bucket) << c.text;
}

TEST(FingerprintCat64, CrossesAsTensorFlowDoes) {
  constexpr uint64_t kDefaultKey = 0xDECAFCAFFE;
  const auto cross = [](uint64_t key) {
    for (const char* text : {"batch1-FC1-F1", "batch1-FC2-F1", "batch1-FC3-F1"}) {
      key = FingerprintCat64(key, Fingerprint64(text));
    }
    return key;
  };
  constexpr uint64_t kMost = (uint64_t{1} << 63) - 1;
  EXPECT_EQ(cross(kDefaultKey) % kMost, 1971693436396284976u);
  EXPECT_EQ(cross(kDefaultKey) % 100, 83u);
  EXPECT_EQ(cross(kDefaultKey + 1) % kMost, 4847552627144134031u);
  EXPECT_EQ(cross(kDefaultKey + 1) % 100, 31u);
  EXPECT_NE(FingerprintCat64(1, 2), FingerprintCat64(2, 1));
}

// Each length class of the hash has code of its own.
TEST(Fingerprint64, DependsOnEveryByteOfEveryLength) {
  for (size_t size = 1; size < 300; ++size) {
    const std::string text(size, 'x');
    const uint64_t whole = Fingerprint64(text);
    for (size_t i = 0; i < size; ++i) {
      std::string other = text;
      other[i] = 'y';
      EXPECT_NE(Fingerprint64(other), whole) << size << " bytes, byte " << i;
    }
  }
  EXPECT_EQ(FingerprintBucket("anything", 1), 0);
}

}  // namespace
}  // namespace millrace
