// SPDX-License-Identifier: Apache-2.0
#include "core/parse_number.h"

#include <cmath>
#include <limits>
#include <string>

#include "gtest/gtest.h"

// covers: input: texts are numbers by TensorFlow's rules

namespace millrace {
namespace {

template <typename T>
std::string Parsed(absl::string_view text) {
  T value{};
  if (!ParseNumber(text, &value)) return "no number";
  char out[64];
  const std::to_chars_result end = std::to_chars(out, out + sizeof(out), value);
  return std::string(out, end.ptr);
}

TEST(ParseNumber, ReadsIntegersThatFit) {
  EXPECT_EQ(Parsed<int32_t>("0"), "0");
  EXPECT_EQ(Parsed<int32_t>("-17"), "-17");
  EXPECT_EQ(Parsed<int32_t>(" 39"), "39");
  EXPECT_EQ(Parsed<int32_t>("\t 39 \r\n"), "39");
  EXPECT_EQ(Parsed<int32_t>("+5"), "5");
  EXPECT_EQ(Parsed<int32_t>("007"), "7");
  EXPECT_EQ(Parsed<int32_t>("2147483647"), "2147483647");
  EXPECT_EQ(Parsed<int32_t>("-2147483648"), "-2147483648");
  EXPECT_EQ(Parsed<int64_t>("-9223372036854775808"), "-9223372036854775808");
  for (const char* text : {"", " ", "-", "+", "+-5", "--5", "- 5", "5 5", "1.0", "1e3", "0x10",
                           "2147483648", "-2147483649", "5x", "x", "nan"}) {
    EXPECT_EQ(Parsed<int32_t>(text), "no number") << text;
  }
  EXPECT_EQ(Parsed<int64_t>("9223372036854775808"), "no number");
}

TEST(ParseNumber, ReadsTheNearestFloat) {
  EXPECT_EQ(Parsed<float>("1.12"), "1.12");
  EXPECT_EQ(Parsed<float>("   -10.5 "), "-10.5");
  EXPECT_EQ(Parsed<float>("3.40282e+38"), "3.40282e+38");
  EXPECT_EQ(Parsed<float>(".5"), "0.5");
  EXPECT_EQ(Parsed<float>("5."), "5");
  EXPECT_EQ(Parsed<float>("+.5e1"), "5");
  EXPECT_EQ(Parsed<float>("0xF"), "15");
  EXPECT_EQ(Parsed<double>("-0Xff"), "-255");
  EXPECT_EQ(Parsed<double>("0.1000000000000000055511151231257827021181583404541015625"), "0.1");
  EXPECT_EQ(Parsed<double>("-0"), "-0");
  for (const char* text : {"", "  ", ".", "-", "+", "+-1", "e5", "1e", "1e+", "1.2.3", "1,5", "0x",
                           "0xg", "0x1p3", "10foobar", "- 1", "infinit", "1 2"}) {
    EXPECT_EQ(Parsed<float>(text), "no number") << text;
    EXPECT_EQ(Parsed<double>(text), "no number") << text;
  }
}

// The short way and the library's agree in every bit.
TEST(ParseNumber, ShortNumbersAreTheNearestOnes) {
  uint64_t x = 1;
  const auto next = [&](uint64_t n) {
    return (x = x * 6364136223846793005u + 1) / 4294967296u % n;
  };
  for (int i = 0; i < 200000; ++i) {
    std::string text = next(3) == 0 ? "-" : "";
    const uint64_t whole = next(10), part = next(12);
    for (uint64_t d = 0; d < whole; ++d) text += static_cast<char>('0' + next(10));
    if (next(3) > 0) text += '.';
    for (uint64_t d = 0; d < part; ++d) text += static_cast<char>('0' + next(10));
    const auto compare = [&](auto value) {
      auto wanted = value;
      const std::from_chars_result result =
          std::from_chars(text.data(), text.data() + text.size(), wanted);
      const bool valid = result.ec == std::errc() && result.ptr == text.data() + text.size();
      ASSERT_EQ(ParseNumber(text, &value), valid) << text;
      if (valid) {
        ASSERT_EQ(value, wanted) << text;
      }
    };
    compare(0.0f);
    compare(0.0);
    compare(int32_t{0});
    compare(int64_t{0});
  }
}

TEST(ParseNumber, SaturatesAndReadsWhatIsNoNumberByName) {
  EXPECT_EQ(Parsed<float>("3.40283e+38"), "inf");
  EXPECT_EQ(Parsed<float>("-3.40283e+38"), "-inf");
  EXPECT_EQ(Parsed<double>("1e400"), "inf");
  EXPECT_EQ(Parsed<double>(" -1e400 "), "-inf");
  EXPECT_EQ(Parsed<float>("1e-60"), "0");
  EXPECT_EQ(Parsed<float>("-1e-60"), "-0");
  EXPECT_EQ(Parsed<float>("0x" + std::string(40, 'f')), "inf");
  for (const char* text : {"inf", "INF", "+Inf", "Infinity"}) {
    EXPECT_EQ(Parsed<float>(text), "inf") << text;
  }
  EXPECT_EQ(Parsed<double>("-inf"), "-inf");
  for (const char* text : {"nan", "NaN", " NAN ", "-nan"}) {
    float value = 0;
    EXPECT_TRUE(ParseNumber(text, &value)) << text;
    EXPECT_TRUE(std::isnan(value)) << text;
  }
}

}  // namespace
}  // namespace millrace
