// SPDX-License-Identifier: Apache-2.0
#include "formats/json_value.h"

#include <cmath>
#include <complex>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

// covers: training: values of tensors are JSON by one rule, and are read back

namespace millrace {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

template <typename T>
std::string Text(const T& value) {
  std::string text;
  AppendJson(value, &text);
  return text;
}

// The tree's text, and that of AppendJson, which must be equal to it when it is parsed.
template <typename T>
std::string Tree(const T& value) {
  const ordered_json tree = ToJson(value);
  EXPECT_EQ(ordered_json::parse(Text(value)), tree) << Text(value);
  return tree.dump();
}

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

TEST(JsonValueTest, NumbersAndBools) {
  EXPECT_EQ(Tree(true), "true");
  EXPECT_EQ(Tree(int8_t{-128}), "-128");
  EXPECT_EQ(Tree(uint8_t{65}), "65");
  EXPECT_EQ(Tree(std::numeric_limits<int64_t>::min()), "-9223372036854775808");
  EXPECT_EQ(Tree(~uint64_t{0}), "18446744073709551615");
  EXPECT_EQ(Tree(QInt8{-7}), "-7");
  EXPECT_EQ(Tree(QUInt8{200}), "200");
  EXPECT_EQ(Tree(0.1f), "0.1");
  EXPECT_EQ(Tree(0.1), "0.1");
  EXPECT_EQ(Tree(-3.0f), "-3.0");
  EXPECT_EQ(Text(-3.0f), "-3");
  EXPECT_EQ(Text(0.1f), "0.1");
  // An integer has no sign where it is 0.
  EXPECT_TRUE(std::signbit(ordered_json::parse(Text(-0.0f)).get<double>()));
  EXPECT_EQ(Tree(-0.0), "-0.0");
  EXPECT_EQ(Text(0.0f), "0");
  EXPECT_EQ(Tree(ToHalf(1.5f)), "1.5");
  EXPECT_EQ(Tree(ToBfloat16(2.0f)), "2.0");
  EXPECT_EQ(Tree(std::complex<float>(0.1f, -2)), "[0.1,-2.0]");
}

TEST(JsonValueTest, WhatJsonHasNoNumberForIsText) {
  EXPECT_EQ(Tree(kNan), "\"nan\"");
  EXPECT_EQ(Tree(-kInf), "\"-inf\"");
  EXPECT_EQ(Tree(std::numeric_limits<float>::infinity()), "\"inf\"");
  EXPECT_EQ(Tree(ToHalf(std::numeric_limits<float>::quiet_NaN())), "\"nan\"");
  EXPECT_EQ(Tree(std::complex<double>(kInf, 1)), "[\"inf\",1.0]");
}

TEST(JsonValueTest, StringsAreTextOrBytes) {
  EXPECT_EQ(Tree(std::string()), "\"\"");
  EXPECT_EQ(Tree(std::string("a\"b\\c\n\t\r")), R"("a\"b\\c\n\t\r")");
  EXPECT_EQ(Tree(std::string("\0", 1)), R"({"b64":"AA=="})");
  EXPECT_EQ(Tree(std::string("a\x1f")), R"({"b64":"YR8="})");
  EXPECT_EQ(Tree(std::string("a\x7f")), R"({"b64":"YX8="})");
  EXPECT_EQ(Tree(std::string("Z\xC3\xBCrich \xF0\x9F\x98\x80")),
            "\"Z\xC3\xBCrich \xF0\x9F\x98\x80\"");
  EXPECT_EQ(Tree(std::string("\xFF\xFE")), R"({"b64":"//4="})");
  EXPECT_EQ(Tree(std::string("text, then \xC3")), R"({"b64":"dGV4dCwgdGhlbiDD"})");
}

TEST(JsonValueTest, TextIsUtf8WithoutControlCharacters) {
  for (const char* text : {"", " ~", "a\t\r\n", "\xC3\xBC"}) EXPECT_TRUE(IsJsonText(text)) << text;
  EXPECT_FALSE(IsJsonText(absl::string_view("a\0", 2)));
  for (const char* text : {"\x1b[0m", "\b", "\x7f", "\xC3", "a\xFFz"}) {
    EXPECT_FALSE(IsJsonText(text)) << text;
  }
}

template <typename T>
void ExpectReadBack(const T& value) {
  T read{};
  ASSERT_TRUE(FromJson(json::parse(Text(value)), &read)) << Text(value);
  EXPECT_EQ(read, value) << Text(value);
  ASSERT_TRUE(FromJson(json::parse(ToJson(value).dump()), &read)) << ToJson(value).dump();
  EXPECT_EQ(read, value) << ToJson(value).dump();
}

TEST(JsonValueTest, ValuesAreReadBack) {
  for (const float value :
       {0.0f, 0.1f, 16777217.0f, 1e10f, -1e-10f, std::numeric_limits<float>::denorm_min(),
        std::numeric_limits<float>::max(), -std::numeric_limits<float>::infinity()}) {
    ExpectReadBack(value);
    ExpectReadBack(static_cast<double>(value) / 3);
  }
  float nan = 0;
  ASSERT_TRUE(FromJson(ToJson(kNan), &nan));
  EXPECT_TRUE(std::isnan(nan));
  ExpectReadBack(std::numeric_limits<int64_t>::min());
  ExpectReadBack(~uint64_t{0});
  ExpectReadBack(int8_t{-128});
  ExpectReadBack(false);
  for (const char* text : {"", "a\"b\\c\n", "nan", "\xC3\xBC", "\xFF\xFE"}) {
    ExpectReadBack(std::string(text));
  }
}

TEST(JsonValueTest, WhatIsNoValueOfTheTypeIsRefused) {
  const auto is = [](const char* text, auto element) {
    return FromJson(json::parse(text), &element);
  };
  EXPECT_TRUE(is("3", 0.0f)) << "an integer is a float";
  EXPECT_FALSE(is("\"NaN\"", 0.0f));
  EXPECT_FALSE(is("\"1\"", 0.0f));
  EXPECT_FALSE(is("true", 0.0f));
  EXPECT_FALSE(is("null", 0.0));
  EXPECT_TRUE(is("1e39", 0.0));
  EXPECT_FALSE(is("1e39", 0.0f));
  EXPECT_FALSE(is("-1e39", 0.0f));
  EXPECT_FALSE(is("1.0", int32_t{}));
  EXPECT_FALSE(is("\"nan\"", int32_t{}));
  EXPECT_TRUE(is("127", int8_t{}));
  EXPECT_FALSE(is("128", int8_t{}));
  EXPECT_TRUE(is("-128", int8_t{}));
  EXPECT_FALSE(is("-129", int8_t{}));
  EXPECT_FALSE(is("-1", uint64_t{}));
  EXPECT_FALSE(is("18446744073709551615", int64_t{}));
  EXPECT_FALSE(is("1", false));
  EXPECT_FALSE(is("1", std::string()));
  EXPECT_TRUE(is(R"({"b64": "AAE="})", std::string()));
  EXPECT_FALSE(is(R"({"b64": "*"})", std::string()));
  EXPECT_FALSE(is(R"({"b64": 1})", std::string()));
  EXPECT_FALSE(is(R"({"b64": "AAE=", "more": 1})", std::string()));
}

}  // namespace
}  // namespace millrace
