// SPDX-License-Identifier: Apache-2.0
#include "serving/cut_text.h"

#include <cstddef>
#include <string>

#include "gtest/gtest.h"

// covers: serving: texts of clients are cut at a bound, never within a character

namespace millrace {
namespace {

TEST(CutTextTest, ShortTextsStay) {
  EXPECT_EQ(CutText("", 0), "");
  EXPECT_EQ(CutText("abc", 3), "abc");
  EXPECT_EQ(CutText("abcd", 3), "abc...TRUNCATED");
  EXPECT_EQ(CutText("a", 0), "...TRUNCATED");
}

TEST(CutTextTest, CharactersAreNotCut) {
  // Two, three and four bytes.
  for (const std::string character : {"\xc3\xa4", "\xe2\x82\xac", "\xf0\x9f\x98\x80"}) {
    const std::string text = "ab" + character + "z";
    for (size_t most = 2; most < 2 + character.size(); ++most) {
      EXPECT_EQ(CutText(text, most), "ab...TRUNCATED") << most;
    }
    EXPECT_EQ(CutText(text, 2 + character.size()), "ab" + character + "...TRUNCATED");
    EXPECT_EQ(CutText(text, text.size()), text);
  }
}

// What is no UTF-8 has no characters to keep whole.
TEST(CutTextTest, OtherBytesAreCutAnywhere) {
  const std::string bytes(10, '\x80');
  EXPECT_EQ(CutText(bytes, 5), std::string(5, '\x80') + "...TRUNCATED");
  const std::string leads(10, '\xf0');
  EXPECT_EQ(CutText(leads, 5), std::string(5, '\xf0') + "...TRUNCATED");
}

}  // namespace
}  // namespace millrace
