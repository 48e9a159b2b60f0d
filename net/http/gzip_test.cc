// SPDX-License-Identifier: Apache-2.0
#include "net/http/gzip.h"

#include <zlib.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/byte_budget.h"
#include "gtest/gtest.h"
#include "net/http/growing_bytes.h"

// covers: serving: gzip bodies are inflated within a size, a ratio and a budget; what is cut off,
// is
//   followed by other bytes or fails its checksum is refused

namespace millrace {
namespace {

std::string Packed(absl::string_view bytes) {
  const StatusOr<std::string> packed = Gzip(bytes);
  EXPECT_TRUE(packed.ok()) << packed.status();
  return packed.ok() ? *packed : "";
}

// Bytes that do not compress: the same ones in each run.
std::string Noise(size_t size) {
  std::string bytes(size, '\0');
  uint32_t state = 1;
  for (char& byte : bytes) {
    state = state * 1'664'525 + 1'013'904'223;
    byte = static_cast<char>(state >> 24);
  }
  return bytes;
}

TEST(GzipTest, WhatIsPackedComesOutAgain) {
  for (const std::string& bytes : {std::string(), std::string("{\"instances\": [1, 2]}"),
                                   std::string(3'000'000, 'x'), Noise(700'000)}) {
    const StatusOr<GrowingBytes> out = Gunzip(Packed(bytes), {});
    ASSERT_TRUE(out.ok()) << out.status();
    EXPECT_EQ(out->size(), bytes.size());
    EXPECT_TRUE(out->view() == absl::string_view(bytes));
  }
}

TEST(GzipTest, SeveralMembersAreOneText) {
  const StatusOr<GrowingBytes> out =
      Gunzip(absl::StrCat(Packed("ab"), Packed(""), Packed("c")), {});
  ASSERT_TRUE(out.ok()) << out.status();
  EXPECT_EQ(out->view(), "abc");
}

TEST(GzipTest, WhatIsCutOffAnywhereIsRefused) {
  const std::string packed = absl::StrCat(Packed("first"), Packed("second member"));
  const size_t first = Packed("first").size();
  for (size_t size = 0; size < packed.size(); ++size) {
    const StatusOr<GrowingBytes> out = Gunzip(absl::string_view(packed).substr(0, size), {});
    if (size == first) {
      EXPECT_TRUE(out.ok()) << "a whole member is a whole text";
      continue;
    }
    EXPECT_TRUE(absl::IsInvalidArgument(out.status())) << size << " " << out.status();
  }
}

TEST(GzipTest, OtherBytesAreRefused) {
  const std::string packed = Packed("text");
  std::string wrong_checksum = packed, wrong_size = packed;
  wrong_checksum[packed.size() - 8] ^= 1;  // RFC 1952: the CRC is there, the size behind it
  wrong_size[packed.size() - 1] ^= 1;
  for (const std::string& bytes :
       {std::string("plain text"), packed + "garbage", packed + std::string(1, '\0'),
        wrong_checksum, wrong_size, std::string("\x78\x9c zlib, not gzip"),
        std::string(100, '\xff')}) {
    const StatusOr<GrowingBytes> out = Gunzip(bytes, {});
    EXPECT_TRUE(absl::IsInvalidArgument(out.status())) << out.status();
  }
}

TEST(GzipTest, TheSizeIsBounded) {
  const std::string packed = Packed(std::string(1'000, 'x'));
  EXPECT_TRUE(Gunzip(packed, {.max_bytes = 1'000}).ok());
  for (const int64_t max_bytes : {int64_t{999}, int64_t{1}, int64_t{0}}) {
    EXPECT_TRUE(absl::IsOutOfRange(Gunzip(packed, {.max_bytes = max_bytes}).status()));
  }
  // Nor may members add up to more.
  EXPECT_TRUE(absl::IsOutOfRange(Gunzip(packed + packed, {.max_bytes = 1'999}).status()));
}

// The bomb would be 16 MiB. Until it is refused it may have twice what the ratio allows, and what
// is free: what it took is seen in a budget that is smaller than the bomb.
TEST(GzipTest, ABombIsRefusedLongBeforeItIsLarge) {
  const std::string bomb = Packed(std::string(size_t{16} << 20, '\0'));
  auto budget = std::make_shared<ByteBudget>(int64_t{8} << 20);
  const Status status = Gunzip(bomb, {.max_ratio = 10}, budget).status();
  EXPECT_TRUE(absl::IsOutOfRange(status)) << status;
  EXPECT_EQ(budget->left(), int64_t{8} << 20) << "all of it is given back";
}

TEST(GzipTest, TheBudgetBoundsAllTogether) {
  auto budget = std::make_shared<ByteBudget>(100'000);
  const std::string packed = Packed(std::string(60'000, 'x'));
  {
    const StatusOr<GrowingBytes> first = Gunzip(packed, {}, budget);
    ASSERT_TRUE(first.ok()) << first.status();
    EXPECT_TRUE(absl::IsResourceExhausted(Gunzip(packed, {}, budget).status()));
  }
  EXPECT_EQ(budget->left(), 100'000);
  EXPECT_TRUE(Gunzip(packed, {}, budget).ok());
}

TEST(GzipTest, ClientsSayWhetherTheyTakeGzip) {
  const std::vector<std::pair<std::string, bool>> cases = {
      {"gzip", true},
      {"GZIP", true},
      {"x-gzip", true},
      {"deflate, gzip;q=0.5", true},
      {"br;q=1.0, gzip ; q=0.8, *;q=0.1", true},
      {"*", true},
      {"", false},
      {"identity", false},
      {"gzip;q=0", false},
      {"gzip; q=0.000", false},
      {"*;q=0", false},
      {"*, gzip;q=0", false},
      {"gzip;q=wrong", false},
      {"gzipped", false},
      {",,;,", false},
  };
  for (const auto& [header, takes] : cases) EXPECT_EQ(AcceptsGzip(header), takes) << header;
}

TEST(GrowingBytesTest, GrowToTheirSizeAndNoFurther) {
  auto budget = std::make_shared<ByteBudget>(1'000'000);
  GrowingBytes bytes(budget);
  EXPECT_TRUE(bytes.Append(std::string(10'000, 'a'), 12'000));
  EXPECT_TRUE(bytes.Append(std::string(2'000, 'b'), 12'000));
  EXPECT_EQ(bytes.size(), 12'000u);
  EXPECT_LE(bytes.capacity(), 12'000u);
  EXPECT_EQ(budget->left(), 1'000'000 - static_cast<int64_t>(bytes.capacity()));
  // Beyond what was said: still whole.
  EXPECT_TRUE(bytes.Append("c", 12'000));
  EXPECT_EQ(bytes.view().substr(9'999, 2), "ab");
  EXPECT_EQ(bytes.view().back(), 'c');
  EXPECT_FALSE(bytes.Append(std::string(1'000'000, 'd')));
  EXPECT_EQ(bytes.size(), 12'001u);
  bytes = GrowingBytes();
  EXPECT_EQ(budget->left(), 1'000'000);
}

}  // namespace
}  // namespace millrace
