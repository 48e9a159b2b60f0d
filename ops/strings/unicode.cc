// SPDX-License-Identifier: Apache-2.0
#include "ops/strings/unicode.h"

#include <locale.h>
#include <wctype.h>

#include <algorithm>
#include <iterator>

#include "core/utf8.h"

namespace millrace {
namespace {

constexpr char32_t kReplacement = 0xfffd;

// The next character of `text` from `*at` on, which is not its end; moves `*at` behind it.
char32_t NextCharacter(absl::string_view text, size_t* at) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte((*at)++);
  if (first < 0x80) return first;
  if (first < 0xc2 || first > 0xf4) return kReplacement;
  const int more = first < 0xe0 ? 1 : first < 0xf0 ? 2 : 3;
  // No character has two spellings, is a surrogate or above U+10FFFF: the second byte tells.
  uint8_t least = 0x80, most = 0xbf;
  if (first == 0xe0) least = 0xa0;
  if (first == 0xed) most = 0x9f;
  if (first == 0xf0) least = 0x90;
  if (first == 0xf4) most = 0x8f;
  char32_t character = first & (0x3fu >> more);
  for (int i = 0; i < more; ++i) {
    if (*at == text.size() || byte(*at) < least || byte(*at) > most) return kReplacement;
    character = character << 6 | (byte((*at)++) & 0x3fu);
    least = 0x80;
    most = 0xbf;
  }
  return character;
}

// The C library's tables for single characters. It has this locale built in; without it ASCII alone
// has cases.
locale_t Utf8Locale() {
  static const locale_t locale = [] {
    const locale_t utf8 = newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr);
    return utf8 != nullptr ? utf8 : newlocale(LC_CTYPE_MASK, "C", nullptr);
  }();
  return locale;
}

wint_t Wide(char32_t c) { return static_cast<wint_t>(c); }

// Unicode's SpecialCasing: what becomes several characters, in the order of what it is made of.
struct Expansion {
  char32_t from;
  const char32_t* to;
};
constexpr Expansion kUpper[] = {
    {0x00df, U"SS"},
    {0x0149, U"\u02bcN"},
    {0x01f0, U"J\u030c"},
    {0x0390, U"\u0399\u0308\u0301"},
    {0x03b0, U"\u03a5\u0308\u0301"},
    {0x0587, U"\u0535\u0552"},
    {0x1e96, U"H\u0331"},
    {0x1e97, U"T\u0308"},
    {0x1e98, U"W\u030a"},
    {0x1e99, U"Y\u030a"},
    {0x1e9a, U"A\u02be"},
    {0x1f50, U"\u03a5\u0313"},
    {0x1f52, U"\u03a5\u0313\u0300"},
    {0x1f54, U"\u03a5\u0313\u0301"},
    {0x1f56, U"\u03a5\u0313\u0342"},
    {0x1fb2, U"\u1fba\u0399"},
    {0x1fb3, U"\u0391\u0399"},
    {0x1fb4, U"\u0386\u0399"},
    {0x1fb6, U"\u0391\u0342"},
    {0x1fb7, U"\u0391\u0342\u0399"},
    {0x1fbc, U"\u0391\u0399"},
    {0x1fc2, U"\u1fca\u0399"},
    {0x1fc3, U"\u0397\u0399"},
    {0x1fc4, U"\u0389\u0399"},
    {0x1fc6, U"\u0397\u0342"},
    {0x1fc7, U"\u0397\u0342\u0399"},
    {0x1fcc, U"\u0397\u0399"},
    {0x1fd2, U"\u0399\u0308\u0300"},
    {0x1fd3, U"\u0399\u0308\u0301"},
    {0x1fd6, U"\u0399\u0342"},
    {0x1fd7, U"\u0399\u0308\u0342"},
    {0x1fe2, U"\u03a5\u0308\u0300"},
    {0x1fe3, U"\u03a5\u0308\u0301"},
    {0x1fe4, U"\u03a1\u0313"},
    {0x1fe6, U"\u03a5\u0342"},
    {0x1fe7, U"\u03a5\u0308\u0342"},
    {0x1ff2, U"\u1ffa\u0399"},
    {0x1ff3, U"\u03a9\u0399"},
    {0x1ff4, U"\u038f\u0399"},
    {0x1ff6, U"\u03a9\u0342"},
    {0x1ff7, U"\u03a9\u0342\u0399"},
    {0x1ffc, U"\u03a9\u0399"},
    {0xfb00, U"FF"},
    {0xfb01, U"FI"},
    {0xfb02, U"FL"},
    {0xfb03, U"FFI"},
    {0xfb04, U"FFL"},
    {0xfb05, U"ST"},
    {0xfb06, U"ST"},
    {0xfb13, U"\u0544\u0546"},
    {0xfb14, U"\u0544\u0535"},
    {0xfb15, U"\u0544\u053b"},
    {0xfb16, U"\u054e\u0546"},
    {0xfb17, U"\u0544\u053d"},
};

// Greek vowels with an iota written below them: the capital vowel and a capital iota.
constexpr char32_t kFirstWithIota = 0x1f80, kLastWithIota = 0x1faf;

void AppendUpper(char32_t c, std::string* text) {
  if (c >= kFirstWithIota && c <= kLastWithIota) {
    constexpr char32_t kCapitals[] = {0x1f08, 0x1f28, 0x1f68};
    AppendUtf8(kCapitals[(c - kFirstWithIota) / 16] + c % 8, text);
    AppendUtf8(0x399, text);
    return;
  }
  const Expansion* const found =
      std::lower_bound(std::begin(kUpper), std::end(kUpper), c,
                       [](const Expansion& e, char32_t wanted) { return e.from < wanted; });
  if (found != std::end(kUpper) && found->from == c) {
    for (const char32_t* to = found->to; *to != 0; ++to) AppendUtf8(*to, text);
    return;
  }
  AppendUtf8(static_cast<char32_t>(towupper_l(Wide(c), Utf8Locale())), text);
}

bool IsLetter(char32_t c) { return iswalpha_l(Wide(c), Utf8Locale()) != 0; }

// Does a word end at byte `at`? Marks that stand inside of words belong to them.
bool WordEnds(absl::string_view text, size_t at) {
  while (at < text.size()) {
    const char32_t c = NextCharacter(text, &at);
    const bool inside = c == '\'' || c == 0x2019 || c == 0xb7 || (c >= 0x300 && c <= 0x36f);
    if (!inside) return !IsLetter(c);
  }
  return true;
}

}  // namespace

int64_t CountCharacters(absl::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return !IsContinuationByte(c); });
}

bool SkipCharacters(absl::string_view text, int64_t count, size_t* byte) {
  int64_t skipped = 0;
  for (; skipped < count && *byte < text.size(); ++skipped) {
    do {
      ++*byte;
    } while (*byte < text.size() && IsContinuationByte(text[*byte]));
  }
  return skipped == count;
}

bool SkipCharactersBack(absl::string_view text, int64_t count, size_t* byte) {
  int64_t skipped = 0;
  for (; skipped<count&& * byte> 0; ++skipped) {
    do {
      --*byte;
    } while (*byte > 0 && IsContinuationByte(text[*byte]));
  }
  return skipped == count;
}

std::string Utf8ToLower(absl::string_view text) {
  constexpr char32_t kDottedI = 0x130, kSigma = 0x3a3, kSmallSigma = 0x3c3, kFinalSigma = 0x3c2;
  std::string lower;
  lower.reserve(text.size());
  bool in_word = false;
  for (size_t at = 0; at < text.size();) {
    const char32_t c = NextCharacter(text, &at);
    if (c == kSigma) {
      AppendUtf8(in_word && WordEnds(text, at) ? kFinalSigma : kSmallSigma, &lower);
    } else if (c == kDottedI) {
      AppendUtf8('i', &lower);
      AppendUtf8(0x307, &lower);
    } else {
      AppendUtf8(static_cast<char32_t>(towlower_l(Wide(c), Utf8Locale())), &lower);
    }
    in_word = IsLetter(c) || (in_word && c >= 0x300 && c <= 0x36f);
  }
  return lower;
}

std::string Utf8ToUpper(absl::string_view text) {
  std::string upper;
  upper.reserve(text.size());
  for (size_t at = 0; at < text.size();) AppendUpper(NextCharacter(text, &at), &upper);
  return upper;
}

}  // namespace millrace
