// SPDX-License-Identifier: Apache-2.0
#include "core/crc32c.h"

#include <string>

#include "gtest/gtest.h"

namespace millrace {
namespace {

// Bit by bit, from the definition of the polynomial.
uint32_t SlowCrc32c(absl::string_view data) {
  uint32_t crc = 0xffffffffu;
  for (const char c : data) {
    crc ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1u) != 0 ? 0x82f63b78u : 0u);
  }
  return ~crc;
}

std::string Bytes(size_t n) {
  std::string bytes(n, '\0');
  uint32_t x = 12345;
  for (char& c : bytes) {
    x = x * 1664525u + 1013904223u;
    c = static_cast<char>(x >> 24);
  }
  return bytes;
}

TEST(Crc32cTest, PublishedVectors) {
  EXPECT_EQ(Crc32c(""), 0u);
  EXPECT_EQ(Crc32c("123456789"), 0xe3069283u);
  // RFC 3720, B.4.
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(Crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  std::string up, down;
  for (int i = 0; i < 32; ++i) {
    up.push_back(static_cast<char>(i));
    down.push_back(static_cast<char>(31 - i));
  }
  EXPECT_EQ(Crc32c(up), 0x46dd794eu);
  EXPECT_EQ(Crc32c(down), 0x113fdb5cu);
}

TEST(Crc32cTest, EveryLengthAgreesWithTheDefinition) {
  const std::string bytes = Bytes(1001);
  for (size_t n = 0; n <= 1000; ++n) {
    const absl::string_view data = absl::string_view(bytes).substr(n % 2, n);
    ASSERT_EQ(Crc32c(data), SlowCrc32c(data)) << n;
  }
}

TEST(Crc32cTest, LongInputsAgreeWithTheDefinition) {
  const std::string bytes = Bytes(40'000);
  for (const size_t n : {12'287u, 12'288u, 12'289u, 13'056u, 24'576u, 30'001u, 40'000u}) {
    const absl::string_view data = absl::string_view(bytes).substr(0, n);
    EXPECT_EQ(Crc32c(data), SlowCrc32c(data)) << n;
  }
}

TEST(Crc32cTest, EverySplitGivesTheSame) {
  const std::string bytes = Bytes(13'000);
  const uint32_t whole = SlowCrc32c(bytes);
  const absl::string_view view(bytes);
  for (size_t cut = 0; cut <= bytes.size(); cut += cut < 1000 ? 1 : 97) {
    ASSERT_EQ(ExtendCrc32c(Crc32c(view.substr(0, cut)), view.substr(cut)), whole) << cut;
  }
}

TEST(Crc32cTest, ChecksumsOfPartsJoinToThatOfTheWhole) {
  const std::string data = Bytes(100'000);
  const absl::string_view whole = data;
  for (const size_t split : {size_t{0}, size_t{1}, size_t{63}, size_t{65'536}, data.size()}) {
    const absl::string_view a = whole.substr(0, split), b = whole.substr(split);
    EXPECT_EQ(JoinCrc32c(Crc32c(a), Crc32c(b), b.size()), Crc32c(whole)) << split;
  }
}

TEST(Crc32cTest, MaskIsTheRotationPlusAConstantAndInvertible) {
  EXPECT_EQ(MaskCrc32c(0), 0xa282ead8u);
  EXPECT_EQ(MaskCrc32c(0x8000u), 0xa282ead9u);
  EXPECT_EQ(MaskCrc32c(1), 0xa284ead8u);
  for (const uint32_t crc : {0u, 1u, 0xe3069283u, 0xffffffffu, 0x80000000u}) {
    EXPECT_EQ(UnmaskCrc32c(MaskCrc32c(crc)), crc);
    EXPECT_NE(MaskCrc32c(crc), crc);
  }
}

}  // namespace
}  // namespace millrace
