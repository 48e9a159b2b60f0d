// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_CORE_UTF8_H_
#define MILLRACE_CORE_UTF8_H_

// Which bytes are characters of UTF-8 (RFC 3629): neither longer than needed, nor surrogates, nor
// above U+10FFFF.

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace millrace {

// Bytes of the character with which `text`, which is not empty, begins; 0 when it is none.
size_t Utf8Length(absl::string_view text);
// Appends the character of a code point, which is at most 0x10ffff and no surrogate.
void AppendUtf8(uint32_t code_point, std::string* text);

}  // namespace millrace

#endif  // MILLRACE_CORE_UTF8_H_
