// SPDX-License-Identifier: Apache-2.0
#include "serving/rest/json_scan.h"

#include <cstdlib>
#include <limits>
#include <string>

#include "gtest/gtest.h"

// covers: programs: numbers of REST replies have the digits that TensorFlow Serving gives them

namespace millrace {
namespace {

template <typename T>
std::string Decimal(T value) {
  char text[kMaxJsonDecimal];
  return std::string(text, WriteJsonDecimal(value, text));
}

TEST(JsonScanTest, FloatsHaveSixDigitsIfTheseReadBackElseNine) {
  EXPECT_EQ(Decimal(0.0f), "0.0");
  EXPECT_EQ(Decimal(-0.0f), "-0.0");
  EXPECT_EQ(Decimal(2.5f), "2.5");
  EXPECT_EQ(Decimal(-3.0f), "-3.0");
  EXPECT_EQ(Decimal(0.1f), "0.1");
  EXPECT_EQ(Decimal(1.0f / 3), "0.333333343");
  // The cases of TensorFlow Serving's own test of six digits.
  EXPECT_EQ(Decimal(9000000.0f), "9e+06");
  EXPECT_EQ(Decimal(999999.0f), "999999.0");
  EXPECT_EQ(Decimal(0.5f), "0.5");
  EXPECT_EQ(Decimal(0.0003f), "0.0003");
  EXPECT_EQ(Decimal(0.00003f), "3e-05");
  EXPECT_EQ(Decimal(555557.5f), "555557.5");
  EXPECT_EQ(Decimal(16777216.0f), "16777216.0");
  EXPECT_EQ(Decimal(std::numeric_limits<float>::max()), "3.40282347e+38");
}

TEST(JsonScanTest, DoublesHaveSixDigitsIfTheseReadBackElseSeventeen) {
  EXPECT_EQ(Decimal(0.1), "0.1");
  EXPECT_EQ(Decimal(1.0 / 3), "0.33333333333333331");
  EXPECT_EQ(Decimal(123456789.0), "123456789.0");
  EXPECT_EQ(Decimal(1e22), "1e+22");
  EXPECT_EQ(Decimal(std::numeric_limits<double>::max()), "1.7976931348623157e+308");
}

TEST(JsonScanTest, WhatIsNoNumberHasItsName) {
  EXPECT_EQ(Decimal(std::numeric_limits<float>::quiet_NaN()), "NaN");
  EXPECT_EQ(Decimal(std::numeric_limits<double>::infinity()), "Infinity");
  EXPECT_EQ(Decimal(-std::numeric_limits<float>::infinity()), "-Infinity");
}

TEST(JsonScanTest, EveryDecimalReadsBack) {
  // Patterns over the whole range of floats, a prime step apart.
  for (uint64_t bits = 0; bits < uint64_t{1} << 32; bits += 15485863) {
    const auto pattern = static_cast<uint32_t>(bits);
    float value;
    static_assert(sizeof(value) == sizeof(pattern));
    __builtin_memcpy(&value, &pattern, sizeof(value));
    if (value != value) continue;
    EXPECT_EQ(std::strtof(Decimal(value).c_str(), nullptr), value) << Decimal(value);
  }
}

TEST(JsonScanTest, ShownValuesAreThoseOfThePrettyWriter) {
  const std::string body = R"(  {"a":[1,2.50,{}],"b":"x\n","a":null})";
  EXPECT_EQ(ShownJson(body, 0, 1000),
            "{\n    \"a\": [\n        1,\n        2.5,\n        {}\n    ],\n"
            "    \"b\": \"x\\n\",\n    \"a\": null\n}");
  // A value inside.
  EXPECT_EQ(ShownJson(body, body.find('['), 1000), "[\n    1,\n    2.5,\n    {}\n]");
}

TEST(JsonScanTest, ShownValuesAreCut) {
  const std::string body = "[" + std::string(1000, ' ') + "1, 22, 333]";
  EXPECT_EQ(ShownJson(body, 0, 8), "[\n    1,...TRUNCATED");
  EXPECT_EQ(QuotedJson("abcdef", 4), "\"abc...TRUNCATED");
  EXPECT_EQ(QuotedJson("abcdef", 100), "\"abcdef\"");
  // Not within a character.
  EXPECT_EQ(QuotedJson("a\xe2\x82\xac", 3), "\"a...TRUNCATED");
  EXPECT_EQ(QuotedJson("a\xe2\x82\xac", 5), "\"a\xe2\x82\xac...TRUNCATED");
  EXPECT_EQ(ShownJson("\"a\xe2\x82\xac\"", 0, 4), "\"a...TRUNCATED");
}

// RapidJSON 1.1 adds the exponent to minus the number of decimals: the sum of these overflows, and
// what it indexes with it is not its table's.
TEST(JsonScanTest, LongExponentsAreShortenedOutsideOfStrings) {
  const std::string plain = R"({"x": [1e-05, "1e-123456789", 2e-000000007]})";
  EXPECT_EQ(JsonBody(plain).text(), plain);
  EXPECT_EQ(JsonBody("[1e-123456789]").text(), "[1e-000099999]");
  EXPECT_EQ(JsonBody(R"(["\"1e-123456789", 0.01E-21474836399])").text(),
            R"(["\"1e-123456789", 0.01E-00000099999])");
}

}  // namespace
}  // namespace millrace
