// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_STRINGS_UNICODE_H_
#define MILLRACE_OPS_STRINGS_UNICODE_H_

// UTF-8 texts: characters in bytes, and upper and lower case.
//
// Characters are counted as TensorFlow counts them: a byte that is no continuation byte begins one,
// also in bytes that are no UTF-8. Case follows Unicode's full mapping without a language (a sharp
// s becomes SS, a capital sigma at the end of a word a final one); what is no UTF-8 becomes the
// replacement character, one for each longest part of a character.
//
// Thread-safety: pure functions; they do not depend on the process' locale. Failure: none.

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace millrace {

// A byte inside of a character.
inline bool IsContinuationByte(char c) { return (static_cast<uint8_t>(c) & 0xc0) == 0x80; }

int64_t CountCharacters(absl::string_view text);

// Moves `*byte`, a place in `text`, by up to `count` characters towards the end, or the beginning.
// False: there were fewer; then it is at the end, or the beginning.
bool SkipCharacters(absl::string_view text, int64_t count, size_t* byte);
bool SkipCharactersBack(absl::string_view text, int64_t count, size_t* byte);

std::string Utf8ToLower(absl::string_view text);
std::string Utf8ToUpper(absl::string_view text);

}  // namespace millrace

#endif  // MILLRACE_OPS_STRINGS_UNICODE_H_
