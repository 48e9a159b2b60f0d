// SPDX-License-Identifier: Apache-2.0
#include "core/utf8.h"

#include <cstdint>
#include <string>

#include "gtest/gtest.h"

namespace millrace {
namespace {

// What the definition says of a code point, by arithmetic of its own.
std::string Encoded(unsigned point) {
  const auto byte = [](unsigned b) { return std::string(1, static_cast<char>(b)); };
  const auto rest = [&](int shift) { return byte(0x80 | (point >> shift & 0x3f)); };
  if (point < 0x80) return byte(point);
  if (point < 0x800) return byte(0xc0 | point >> 6) + rest(0);
  if (point < 0x10000) return byte(0xe0 | point >> 12) + rest(6) + rest(0);
  return byte(0xf0 | point >> 18) + rest(12) + rest(6) + rest(0);
}

TEST(Utf8LengthTest, AllCodePointsButSurrogatesAreCharacters) {
  for (unsigned point = 0; point < 0x110000; ++point) {
    const std::string text = Encoded(point);
    const bool surrogate = point >= 0xd800 && point < 0xe000;
    ASSERT_EQ(Utf8Length(text), surrogate ? 0 : text.size()) << point;
    if (surrogate) continue;
    ASSERT_EQ(Utf8Length(text + "x"), text.size()) << point;
    // Cut short.
    if (text.size() > 1) {
      ASSERT_EQ(Utf8Length(text.substr(0, text.size() - 1)), 0u) << point;
    }
  }
}

TEST(AppendUtf8Test, AppendsEachCodePoint) {
  for (uint32_t point = 0; point < 0x110000; ++point) {
    if (point >= 0xd800 && point < 0xe000) continue;
    std::string text = "x";
    AppendUtf8(point, &text);
    ASSERT_EQ(text, "x" + Encoded(point)) << point;
  }
}

TEST(Utf8LengthTest, OtherBytesAreNone) {
  for (const char* text : {"\x80", "\xbf", "\xc0\x80", "\xc1\xbf", "\xc3\x28", "\xe0\x80\x80",
                           "\xe0\x9f\xbf", "\xe2\x28\xa1", "\xf0\x8f\xbf\xbf", "\xf0\x28\x8c\xbc",
                           "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff"}) {
    EXPECT_EQ(Utf8Length(text), 0u) << text;
  }
}

}  // namespace
}  // namespace millrace
