// SPDX-License-Identifier: Apache-2.0
#include "core/coding.h"

#include <limits>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

std::string Hex(absl::string_view bytes) { return absl::BytesToHexString(bytes); }
std::string Unhex(absl::string_view hex) { return absl::HexStringToBytes(hex); }

TEST(CodingTest, FixedWordsAreLittleEndian) {
  std::string out;
  PutFixed32(&out, 0x01020304u);
  PutFixed64(&out, 0x05060708090a0b0cull);
  EXPECT_EQ(Hex(out), "040302010c0b0a0908070605");
  absl::string_view in = out;
  uint32_t narrow = 0;
  EXPECT_TRUE(GetFixed32(&in, &narrow));
  EXPECT_EQ(narrow, 0x01020304u);
  EXPECT_EQ(DecodeFixed64(in.data()), 0x05060708090a0b0cull);
  in = absl::string_view(out).substr(0, 3);
  EXPECT_FALSE(GetFixed32(&in, &narrow));
  EXPECT_EQ(in.size(), 3u);
}

TEST(CodingTest, VarintsOfKnownBytes) {
  const struct {
    uint64_t value;
    const char* hex;
  } cases[] = {{0, "00"},
               {1, "01"},
               {127, "7f"},
               {128, "8001"},
               {300, "ac02"},
               {0xffffffffull, "ffffffff0f"},
               {0x100000000ull, "8080808010"},
               {std::numeric_limits<uint64_t>::max(), "ffffffffffffffffff01"}};
  for (const auto& c : cases) {
    std::string out;
    PutVarint64(&out, c.value);
    EXPECT_EQ(Hex(out), c.hex);
    EXPECT_EQ(VarintLength(c.value), out.size());
    uint64_t value = 7;
    absl::string_view in = out;
    EXPECT_TRUE(GetVarint64(&in, &value));
    EXPECT_EQ(value, c.value);
    EXPECT_TRUE(in.empty());
    for (size_t cut = 0; cut < out.size(); ++cut) {
      absl::string_view part = absl::string_view(out).substr(0, cut);
      EXPECT_FALSE(GetVarint64(&part, &value)) << c.hex << " cut to " << cut;
      EXPECT_EQ(part.size(), cut);
    }
  }
}

TEST(CodingTest, VarintsThatDoNotFitAreRefused) {
  uint32_t narrow = 1;
  uint64_t wide = 1;
  std::string bytes = Unhex("8080808010");  // 2^32
  absl::string_view in = bytes;
  EXPECT_FALSE(GetVarint32(&in, &narrow));
  EXPECT_EQ(in.size(), 5u);
  for (const char* hex :
       {"ffffffffffffffffff02", "ffffffffffffffffffff01", "80808080808080808080"}) {
    bytes = Unhex(hex);
    in = bytes;
    EXPECT_FALSE(GetVarint64(&in, &wide)) << hex;
  }
  EXPECT_EQ(narrow, 1u);
  EXPECT_EQ(wide, 1u);
}

TEST(CodingTest, LongFormsAreRead) {
  for (const char* hex : {"8500", "858000", "85808000"}) {
    const std::string bytes = Unhex(hex);
    absl::string_view in = bytes;
    uint32_t value = 0;
    EXPECT_TRUE(GetVarint32(&in, &value));
    EXPECT_EQ(value, 5u);
  }
}

TEST(OrderedCodeTest, KnownBytes) {
  const struct {
    uint64_t value;
    const char* hex;
  } unsigned_cases[] = {{0, "00"},
                        {1, "0101"},
                        {255, "01ff"},
                        {256, "020100"},
                        {std::numeric_limits<uint64_t>::max(), "08ffffffffffffffff"}};
  for (const auto& c : unsigned_cases) {
    std::string out;
    PutOrderedUint(&out, c.value);
    EXPECT_EQ(Hex(out), c.hex);
  }
  const struct {
    int64_t value;
    const char* hex;
  } signed_cases[] = {{0, "80"},
                      {1, "81"},
                      {-1, "7f"},
                      {63, "bf"},
                      {-64, "40"},
                      {64, "c040"},
                      {-65, "3fbf"},
                      {8191, "dfff"},
                      {-8192, "2000"},
                      {8192, "e02000"},
                      {100000, "e186a0"},
                      {std::numeric_limits<int64_t>::max(), "ffc07fffffffffffffff"},
                      {std::numeric_limits<int64_t>::min(), "003f8000000000000000"}};
  for (const auto& c : signed_cases) {
    std::string out;
    PutOrderedInt(&out, c.value);
    EXPECT_EQ(Hex(out), c.hex) << c.value;
  }
  std::string out;
  PutOrderedString(&out, absl::string_view("a\0\xff", 3));
  EXPECT_EQ(Hex(out), "6100ffff000001");
}

std::vector<int64_t> InterestingInts() {
  std::vector<int64_t> values;
  for (int bit = 0; bit < 63; ++bit) {
    for (int64_t d = -2; d <= 2; ++d) {
      values.push_back((int64_t{1} << bit) + d);
      values.push_back(-(int64_t{1} << bit) + d);
    }
  }
  values.push_back(std::numeric_limits<int64_t>::min());
  values.push_back(std::numeric_limits<int64_t>::max());
  return values;
}

TEST(OrderedCodeTest, IntsKeepTheirOrder) {
  const std::vector<int64_t> values = InterestingInts();
  std::vector<std::string> codes;
  for (const int64_t value : values) {
    codes.emplace_back();
    PutOrderedInt(&codes.back(), value);
  }
  for (size_t i = 0; i < values.size(); ++i) {
    for (size_t j = 0; j < values.size(); ++j) {
      ASSERT_EQ(codes[i] < codes[j], values[i] < values[j]) << values[i] << " " << values[j];
    }
  }
}

TEST(OrderedCodeTest, StringsKeepTheirOrderWhateverFollowsThem) {
  const std::string sorted[] = {
      "", std::string("\0", 1), std::string("\0\0", 2), "a", "ab", "a\xff", "\xff", "\xff\xff"};
  std::string last;
  for (const std::string& value : sorted) {
    std::string code;
    PutOrderedString(&code, value);
    EXPECT_LT(last, code);
    last = code + "\xff\xff";
  }
}

// The slice [0:all] x [100000:+64] of "w", as in a checkpoint's index.
TEST(OrderedCodeTest, IsReadBackWhateverFollows) {
  const std::string texts[] = {"", "a", std::string("\0", 1), std::string("\0\1\xff\xff\0", 5)};
  for (const std::string& text : texts) {
    for (const uint64_t number : {uint64_t{0}, uint64_t{255}, uint64_t{256}, ~uint64_t{0}}) {
      std::string key;
      PutOrderedString(&key, text);
      PutOrderedUint(&key, number);
      key += "rest";
      absl::string_view in = key;
      std::string got;
      uint64_t got_number = 1;
      ASSERT_TRUE(GetOrderedString(&in, &got));
      EXPECT_EQ(got, text);
      ASSERT_TRUE(GetOrderedUint(&in, &got_number));
      EXPECT_EQ(got_number, number);
      EXPECT_EQ(in, "rest");
    }
  }
  std::string text;
  uint64_t number = 0;
  for (const absl::string_view bad :
       {absl::string_view(), absl::string_view("abc"), absl::string_view("a\0", 2),
        absl::string_view("a\0x", 3), absl::string_view("\xff\xff\0\1", 4)}) {
    absl::string_view in = bad;
    EXPECT_FALSE(GetOrderedString(&in, &text));
  }
  for (const absl::string_view bad :
       {absl::string_view(), absl::string_view("\1", 1), absl::string_view("\11123456789", 10)}) {
    absl::string_view in = bad;
    EXPECT_FALSE(GetOrderedUint(&in, &number));
  }
}

TEST(OrderedCodeTest, ASliceKeyIsTheSequenceOfItsParts) {
  std::string key;
  PutOrderedUint(&key, 0);
  PutOrderedString(&key, "w");
  PutOrderedUint(&key, 2);
  for (const int64_t part : {0, -1, 100000, 64}) PutOrderedInt(&key, part);
  EXPECT_EQ(Hex(key), "007700010102807fe186a0c040");
}

}  // namespace
}  // namespace millrace
