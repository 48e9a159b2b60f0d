// SPDX-License-Identifier: Apache-2.0
#include "core/utf8.h"

#include <cstdint>

namespace millrace {

size_t Utf8Length(absl::string_view text) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<uint8_t>(text[i]) : 0; };
  const auto in = [&](size_t i, int low, int high) { return byte(i) >= low && byte(i) <= high; };
  const auto rest = [&](size_t i) { return in(i, 0x80, 0xbf); };
  if (in(0, 0, 0x7f)) return 1;
  if (in(0, 0xc2, 0xdf)) return rest(1) ? 2 : 0;
  if (in(0, 0xe0, 0xef)) {
    // Neither longer than needed nor a surrogate.
    if (!in(1, byte(0) == 0xe0 ? 0xa0 : 0x80, byte(0) == 0xed ? 0x9f : 0xbf)) return 0;
    return rest(2) ? 3 : 0;
  }
  if (in(0, 0xf0, 0xf4)) {
    if (!in(1, byte(0) == 0xf0 ? 0x90 : 0x80, byte(0) == 0xf4 ? 0x8f : 0xbf)) return 0;
    return rest(2) && rest(3) ? 4 : 0;
  }
  return 0;
}

void AppendUtf8(uint32_t code_point, std::string* text) {
  const auto add = [&](uint32_t byte) { text->push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    add(code_point);
  } else if (code_point < 0x800) {
    add(0xc0 | code_point >> 6);
    add(0x80 | (code_point & 0x3f));
  } else if (code_point < 0x10000) {
    add(0xe0 | code_point >> 12);
    add(0x80 | (code_point >> 6 & 0x3f));
    add(0x80 | (code_point & 0x3f));
  } else {
    add(0xf0 | code_point >> 18);
    add(0x80 | (code_point >> 12 & 0x3f));
    add(0x80 | (code_point >> 6 & 0x3f));
    add(0x80 | (code_point & 0x3f));
  }
}

}  // namespace millrace
