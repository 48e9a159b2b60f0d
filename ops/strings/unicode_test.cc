// SPDX-License-Identifier: Apache-2.0
#include "ops/strings/unicode.h"

#include <string>

#include "gtest/gtest.h"

// covers: input: the unicode ops give TensorFlow's values

namespace millrace {
namespace {

TEST(Unicode, CountsCharactersByTheirFirstBytes) {
  EXPECT_EQ(CountCharacters(""), 0);
  EXPECT_EQ(CountCharacters("abc"), 3);
  EXPECT_EQ(CountCharacters("\u00dc\u65e5\U0001f600!"), 4);
  EXPECT_EQ(CountCharacters("\x80\xbf"), 0);
  EXPECT_EQ(CountCharacters("\xc3"), 1);
}

TEST(Unicode, SkipsUpToTheEnds) {
  const std::string text = "\u00dc\u65e5!";  // 2 + 3 + 1 bytes
  size_t at = 0;
  EXPECT_TRUE(SkipCharacters(text, 2, &at));
  EXPECT_EQ(at, 5u);
  EXPECT_FALSE(SkipCharacters(text, 2, &at));
  EXPECT_EQ(at, 6u);
  EXPECT_TRUE(SkipCharactersBack(text, 2, &at));
  EXPECT_EQ(at, 2u);
  EXPECT_FALSE(SkipCharactersBack(text, 2, &at));
  EXPECT_EQ(at, 0u);
  EXPECT_FALSE(SkipCharacters(text, -1, &at));
  EXPECT_EQ(at, 0u);
}

TEST(Unicode, HasTheCasesOfAllScripts) {
  EXPECT_EQ(Utf8ToLower("ABC xyz \u00c4\u00d6\u00dc"), "abc xyz \u00e4\u00f6\u00fc");
  EXPECT_EQ(Utf8ToUpper("abc xyz \u00e4\u00f6\u00fc"), "ABC XYZ \u00c4\u00d6\u00dc");
  EXPECT_EQ(Utf8ToUpper("\u0436\u0259\u0561"), "\u0416\u018f\u0531");
  EXPECT_EQ(Utf8ToLower("\U00010400"), "\U00010428");  // Deseret: four bytes
  EXPECT_EQ(Utf8ToLower("\u65e5\U0001f600"), "\u65e5\U0001f600");
}

TEST(Unicode, OneCharacterMayBecomeSeveral) {
  EXPECT_EQ(Utf8ToUpper("stra\u00dfe"), "STRASSE");
  EXPECT_EQ(Utf8ToUpper("\ufb03"), "FFI");
  EXPECT_EQ(Utf8ToUpper("\u0149"), "\u02bcN");
  EXPECT_EQ(Utf8ToUpper("\u1f80\u1f97\u1fa8\u1faf"),
            "\u1f08\u0399\u1f2f\u0399\u1f68\u0399\u1f6f\u0399");
  EXPECT_EQ(Utf8ToUpper("\u1ffc\ufb17"), "\u03a9\u0399\u0544\u053d");
  EXPECT_EQ(Utf8ToLower("\u0130"), "i\u0307");
}

TEST(Unicode, ASigmaAtTheEndOfAWordIsAFinalOne) {
  EXPECT_EQ(Utf8ToLower("\u039f\u03a3"), "\u03bf\u03c2");
  EXPECT_EQ(Utf8ToLower("\u039f\u03a3."), "\u03bf\u03c2.");
  EXPECT_EQ(Utf8ToLower("\u039f\u03a3\u0391"), "\u03bf\u03c3\u03b1");
  EXPECT_EQ(Utf8ToLower("\u03a3"), "\u03c3");
  EXPECT_EQ(Utf8ToLower("A\u03a3 \u03a3A"), "a\u03c2 \u03c3a");
}

// One replacement character for each longest part of a character, as Unicode recommends.
TEST(Unicode, WhatIsNoUtf8IsReplaced) {
  const struct {
    const char* bytes;
    const char* text;
  } cases[] = {
      {"a\x80z", "A\ufffdZ"},
      {"\xff\xfe", "\ufffd\ufffd"},
      {"\xc3", "\ufffd"},
      {"\xc0\xaf", "\ufffd\ufffd"},            // '/' in two bytes
      {"\xe6\x97z", "\ufffdZ"},                // cut
      {"\xed\xa0\x80", "\ufffd\ufffd\ufffd"},  // a surrogate
      {"\xf0\x80\x80\x80", "\ufffd\ufffd\ufffd\ufffd"},
      {"\xf4\x90\x80\x80", "\ufffd\ufffd\ufffd\ufffd"},  // above U+10FFFF
      {"\xf0\x9f\x98", "\ufffd"},
  };
  for (const auto& c : cases) EXPECT_EQ(Utf8ToUpper(c.bytes), c.text) << c.text;
}

}  // namespace
}  // namespace millrace
